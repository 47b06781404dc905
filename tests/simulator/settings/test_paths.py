"""Settings that are reached by their paths."""

import pytest

from simulator.commands.options import read_scenario
from simulator.settings.fields import Spec, to_mapping
from simulator.settings.kinds import KINDS
from simulator.settings.paths import set_path
from simulator.settings.scenario import Scenario


def at(data, path):
    for name in path.split("."):
        data = data[name]
    return data


@pytest.mark.parametrize("path", KINDS)
def test_another_kind_drops_what_it_does_not_know(path):
    for kind, parameters in KINDS[path].items():
        data = to_mapping(Scenario())
        before = dict(at(data, path))
        set_path(data, f"{path}.kind", kind)
        kept = {name: value for name, value in before.items() if name in parameters}
        assert at(data, path) == kept | {"kind": kind}


CLOSED = {"kind": "closed", "clients": 2, "duration_s": 9}
OPEN = {"kind": "open", "num_requests": 10}


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (["service={replicas: 2}", "service.router=by_length"], {"service": {"replicas": 2, "router": "by_length"}}),
        (["engine=exspec", "engine.batch_size=4"], {"engine": {"method": "exspec", "batch_size": 4}}),
        (["engine={method: exspec}", "engine.window_size=9"], {"engine": {"method": "exspec", "window_size": 9}}),
        (["study={kind: open, num_requests: 10}", "study.arrivals.rate_per_s=3"],
         {"study": OPEN | {"arrivals": {"kind": "poisson", "rate_per_s": 3}}}),
        (["study.kind=open", "seed=1", "study.kind=closed", "study.clients=2", "study.duration_s=9", "seed=2"],
         {"study": CLOSED, "seed": 2}),  # a closed study would ignore, hence refuse num_requests
        (["cost.kind=table", "cost.calibration=x", "cost={kind: linear, verify_base_s: 1.0}", "cost.kind=linear"],
         {"cost": {"kind": "linear", "verify_base_s": 1.0}}),
        (["acceptance.kind=markov", "acceptance.correlation=0.5", "workload.prompt_tokens.kind=geometric",
          "workload.prompt_tokens.mean_tokens=9.0"],
         {"acceptance": Spec.of("markov", probability=0.7, correlation=0.5),
          "workload": {"prompt_tokens": {"kind": "geometric", "mean_tokens": 9.0}}}),
    ],
)  # fmt: skip
def test_later_changes_see_earlier_ones(sets, expected):
    assert read_scenario(None, sets) == Scenario(**expected)


def test_a_change_leaves_the_given_mapping_as_it_was():
    arrivals = {"kind": "poisson", "rate_per_s": 1.0}
    assert Scenario().but({"study": OPEN | {"arrivals": arrivals}, "study.arrivals.rate_per_s": 9.0}) == Scenario(
        study=OPEN | {"arrivals": {"kind": "poisson", "rate_per_s": 9.0}}
    )
    assert arrivals["rate_per_s"] == 1
