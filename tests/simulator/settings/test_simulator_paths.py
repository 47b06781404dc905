"""Settings that are reached by their paths."""

import pytest

from refimpl.core.errors import InputError
from simulator.cli import main
from simulator.commands.options import read_scenario
from simulator.settings.fields import Spec, to_mapping
from simulator.settings.kinds import KINDS
from simulator.settings.paths import set_path
from simulator.settings.scenario import (
    Scenario,
    from_data,
)


@pytest.mark.parametrize("path", KINDS)
def test_another_kind_drops_what_it_does_not_know(path):
    for kind, parameters in KINDS[path].items():
        data = to_mapping(Scenario())
        before = dict(at(data, path))
        set_path(data, f"{path}.kind", kind)
        kept = {name: value for name, value in before.items() if name in parameters}
        assert at(data, path) == kept | {"kind": kind}


def at(data, path):
    for name in path.split("."):
        data = data[name]
    return data


def test_settings_reach_every_kind_one_by_one():
    changes = {"cost.kind": "table", "cost.calibration": "cpu/tiny", "acceptance.kind": "markov"}
    changes |= {"acceptance.correlation": 0.5, "workload.prompt_tokens.kind": "geometric"}
    scenario = Scenario().but(changes | {"workload.prompt_tokens.mean_tokens": 9.0})
    assert scenario.cost == Spec.of("table", calibration="cpu/tiny")
    assert scenario.acceptance == Spec.of("markov", probability=0.7, correlation=0.5)
    assert scenario.workload.prompt_tokens == Spec.of("geometric", mean_tokens=9.0)


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (["service={replicas: 2}", "service.router=by_length"], {"service": {"replicas": 2, "router": "by_length"}}),
        (["engine=exspec", "engine.batch_size=4"], {"engine": {"method": "exspec", "batch_size": 4}}),
        (["engine={method: exspec}", "engine.window_size=9"], {"engine": {"method": "exspec", "window_size": 9}}),
        (
            ["study={kind: open, num_requests: 10}", "study.arrivals.rate_per_s=3"],
            {"study": {"kind": "open", "num_requests": 10, "arrivals": {"kind": "poisson", "rate_per_s": 3}}},
        ),
        (["study.kind=open", "seed=1", "study.kind=closed", "study.clients=2", "study.duration_s=9", "seed=2"],
         {"study": {"kind": "closed", "clients": 2, "duration_s": 9}, "seed": 2}),
        (["cost.kind=table", "cost.calibration=x", "cost={kind: linear, verify_base_s: 1.0}", "cost.kind=linear"],
         {"cost": {"kind": "linear", "verify_base_s": 1.0}}),
    ],
)  # fmt: skip
def test_later_changes_see_earlier_ones(sets, expected):
    assert read_scenario(None, sets) == Scenario(**expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"study.duration_s": 5.0, "study.kind": "offline"}, "duration_s has no effect in a study of kind off"),
        ({"study.arrivals.rate_per_s": 5.0, "study.kind": "offline"}, "arrivals has no effect in a study of kind off"),
        ({"acceptance.probability": 0.5, "acceptance.kind": "beta", "acceptance.a": 4.0, "acceptance.b": 2.0},
         "acceptance: unknown key probability; allowed: a, b"),
    ],
)  # fmt: skip
def test_no_order_of_changes_leaves_one_of_them_out(changes, message):
    """Else a sweep would label its points with a setting that none of them has."""
    for ordered in (changes, dict(reversed(changes.items()))):
        with pytest.raises(InputError, match=message):
            Scenario().but(ordered)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["engine=5", "method=exspec"], "method: engine must be a mapping or a method, not 5"),
        (["engine=[]", "engine.method=exspec"], "engine.method: engine must be a mapping or a method, not []"),
        (["acceptance={1: 2}", "acceptance.kind=iid"], "acceptance.kind: no such setting; allowed: nothing"),
        (["acceptance={kind: iid, 1: 2}", "acceptance.prob=0.5"], "acceptance: unknown key 1, prob; allowed: "),
        (["switches={true: 2}", "switches.refil=false"], "switches.refil: no such setting; allowed: refill"),
        (["engine={1: 2}", "engine.batch_size=3"], "engine: unknown key 1; allowed: batch_size"),
    ],
)
def test_parts_that_are_no_parts_are_one_line(sets, message, capsys):
    assert main(["run", *(f"--set={each}" for each in sets)]) == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed
    assert "\n" not in printed


def test_a_whole_engine_agrees_with_what_is_set_beside_it():
    with pytest.raises(InputError, match=r"engine.batch_size: method speculative has 1, not 4; leave one of them out"):
        read_scenario(None, ["engine=speculative", "engine.batch_size=4"])


def test_a_change_leaves_the_given_mapping_as_it_was():
    arrivals = {"kind": "poisson", "rate_per_s": 1.0}
    study = {"kind": "open", "num_requests": 3, "arrivals": arrivals}
    assert Scenario().but({"study": study, "study.arrivals.rate_per_s": 9.0}).study.arrivals["rate_per_s"] == 9
    assert arrivals["rate_per_s"] == 1


def test_paths_reach_every_setting_and_no_other():
    data = to_mapping(Scenario())
    set_path(data, "engine.batch_size", 3)
    set_path(data, "acceptance.probability", 0.1)
    set_path(data, "study.kind", "closed")
    assert data["study"]["num_requests"] is None  # a closed study would ignore, hence refuse it
    set_path(data, "study.clients", 2)
    set_path(data, "study.duration_s", 9.0)
    assert from_data(data).engine.batch_size == 3
    with pytest.raises(InputError, match=r"engine.batch: no such setting; allowed: batch_size"):
        set_path(data, "engine.batch", 3)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["run", "exampel"], "example"),
        (["compare", "example", "exmaple"], "example"),
        (["sweep", "exampel", "--out", "out"], "example"),
        (["run", "folder/mien.yaml"], "mine.yaml"),
        (["run", "folder/exampel"], ""),  # the word stands alone
        (["run", "other"], ""),
        (["run", "x" * 5000], ""),
        (["run", "exampel\0"], ""),
        (["run", "-s", "enginee.batch_size=4"], "engine"),
        (["run", "-s", "study.arivals.rate_per_s=3"], "arrivals"),
        (["run", "-s", "study={1: 2}", "-s", "study.arivals.rate_per_s=3"], "arrivals"),
        (["run", "-s", "cost.kind.base_s=3"], ""),
    ],
)
def test_a_name_that_is_nearly_right_is_told_the_right_one(arguments, meant, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.yaml").write_text("seed: 1\n")
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f" (did you mean {meant}?)") if meant else "did you mean" not in line
