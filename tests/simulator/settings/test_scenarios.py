"""Scenarios: what stands for what, and YAML that gives back what was written."""

import numpy as np
import pytest
import yaml

from refimpl.core.config import NAMED_METHODS, DecodeConfig
from refimpl.core.errors import InputError
from simulator.settings.fields import Spec, as_spec
from simulator.settings.kinds import KINDS
from simulator.settings.scenario import Engine, Scenario, Study, Switches, from_data, load_scenario


def test_the_hash_ignores_the_name_and_sees_everything_else():
    plain = Scenario()
    assert Scenario(name="a", engine={"execution": "serial"}).content_hash == plain.content_hash
    others = (plain, plain.but(seed=1), plain.but({"engine.contention": 1}), Scenario(engine={"cuda_graphs": True}))
    assert len({each.content_hash for each in others}) == 4


WRITTEN = (
    Scenario(
        name="1e-3",
        seed=np.int64(3),
        study=Study(kind="open", duration_s=3.5, arrivals=Spec.of("gamma", rate_per_s=2.0, cv=3.0)),
        engine=Engine(layout="masked", batch_size=np.int32(4), compaction_threshold=np.float32(0.5)),
        switches=Switches(refill=False),
        acceptance=Spec.of("profile", probabilities=[np.float32(0.5), np.float64(0.25)]),
    ),
    Scenario(
        name="1e-3",
        seed=3,
        study={"kind": "open", "duration_s": 3.5, "arrivals": {"kind": "gamma", "rate_per_s": 2.0, "cv": 3.0}},
        engine={"method": "masked+fifo", "batch_size": 4, "compaction_threshold": 0.5},
        switches={"refill": False},
        acceptance={"kind": "profile", "probabilities": [0.5, 0.25]},
    ),
)


def test_numbers_of_numpy_are_numbers_and_what_is_written_is_read_back(tmp_path):
    ours, plain = WRITTEN
    assert ours == plain
    ours.save(tmp_path / "s.yaml")
    read = load_scenario(tmp_path / "s.yaml")
    assert (read, read.content_hash) == (ours, plain.content_hash)


def test_numbers_are_read_as_yaml_1_2_writes_them(tmp_path):
    (tmp_path / "s.yaml").write_text("name: '1e-3'\ncost: {kind: linear, verify_base_s: 1e-3, draft_base_s: 2E-4}\n")
    read = load_scenario(tmp_path / "s.yaml")
    assert (read.name, read.cost["verify_base_s"], read.cost["draft_base_s"]) == ("1e-3", 0.001, 0.0002)


@pytest.mark.parametrize("value", [np.True_, np.float64(4.0), np.array([4])])
def test_what_is_no_integer_is_refused(value):
    with pytest.raises(InputError, match="batch_size must be an integer"):
        Engine(batch_size=value)


SPEC = {"kind": "beta", "a": 4, "b": 2}
RECURRING = {"kind": "fixed", "interval_s": 2}
MAPPED = [
    lambda: (Scenario(engine={"method": "exspec"}), Scenario(engine=Engine(layout="realigned", scheduler="grouped"))),
    lambda: (Scenario(engine="masked+fifo"), Scenario(engine=Engine(layout="masked"))),
    lambda: (
        Scenario(engine={"method": "speculative", "num_speculative_tokens": 3}),
        Scenario(engine=Engine(batch_size=1, num_speculative_tokens=3)),
    ),
    lambda: (Scenario(engine="autoregressive"), Scenario(engine=Engine(batch_size=1, num_speculative_tokens=0))),
    lambda: (Scenario(acceptance=SPEC), Scenario(acceptance=Spec.of(**SPEC))),
    lambda: (Scenario(study={"num_requests": 9}), Scenario(study=Study(num_requests=9))),
    lambda: (
        Study("open", num_requests=9, arrivals=RECURRING),
        Study("open", num_requests=9, arrivals=Spec.of(**RECURRING)),
    ),
    lambda: (Scenario().but(engine=Engine(layout="masked")), Scenario(engine=Engine(layout="masked"))),
    lambda: (Scenario().but(engine={"method": "exspec"}), Scenario().but(method="exspec")),
    lambda: (Scenario().but({"engine.batch_size": 2}, seed=1), Scenario(engine=Engine(batch_size=2), seed=1)),
    lambda: (Spec.of("values", tokens=np.array([3, 4])), Spec.of("values", tokens=range(3, 5))),
]


@pytest.mark.parametrize("case", range(len(MAPPED)))
def test_mappings_and_methods_stand_for_what_they_describe(case):
    given, meant = MAPPED[case]()
    assert given == meant
    assert hash(given) == hash(meant)


@pytest.mark.parametrize("path", KINDS)
def test_every_default_may_be_given(path):
    for kind, rules in KINDS[path].items():
        optional = {kind: {name: rule for name, rule in rules.items() if isinstance(rule, tuple)}}
        defaults = {name: default for name, (_, default) in optional[kind].items()}
        assert as_spec(Spec.of(kind, **defaults), optional, path).resolved(optional) == defaults


@pytest.mark.parametrize("name", sorted(set(NAMED_METHODS) - {"autoregressive"}))
def test_named_methods_are_those_of_the_engine(name):
    config, engine = DecodeConfig(method=name), from_data({"engine": {"method": name}}).engine
    assert (engine.layout, engine.scheduler) == (config.resolved_method.layout, config.resolved_method.scheduler)
    assert (engine.batch_size, engine.resolved_window_size) == (config.resolved_batch_size, config.resolved_window_size)


@pytest.mark.parametrize(
    "changes",
    [
        {"acceptance": {"kind": "profile", "probabilities": [0.9, 0.9]}},
        {"engine": {"draft_budget": "by_load:1=2"}},
        {"confidence": {"kind": "trace", "path": "run.ndjson"}},
    ],
)
def test_a_profile_goes_with_budgets_that_read_no_drawn_probabilities_or_the_same_of_all_drafts(changes):
    made = {"engine": {"draft_budget": "confidence"}, "acceptance": {"kind": "profile", "probabilities": [0.9, 0.5]}}
    assert Scenario(**made | changes).acceptance == Spec.of(**(made | changes)["acceptance"])


def test_a_relative_path_is_sought_beside_its_file_first(tmp_path, monkeypatch, calibration):
    """Then in the working directory, where what is not found at all is sought as it stands."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, name in ((here, "one.csv"), (here, "both.csv"), (there, "both.csv")):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("tokens\n7\n")
    calibration.rename(there / "mine")
    monkeypatch.chdir(here)

    def loaded(path):
        prompts = {"kind": "file", "path": path, "column": "tokens"}
        data = {"workload": {"prompt_tokens": prompts}, "cost": {"kind": "table", "calibration": "mine"}}
        (there / "s.yaml").write_text(yaml.safe_dump(data))
        read = load_scenario(there / "s.yaml")
        assert read.cost["calibration"] == str(there / "mine")
        return read.workload.prompt_tokens["path"]

    assert [loaded(name) for name in ("both.csv", "one.csv")] == [str(there / "both.csv"), "one.csv"]
    assert loaded(str(here / "both.csv")) == str(here / "both.csv")
