"""Studies that last as long as the record of their arrivals."""

from dataclasses import replace

import pandas as pd
import pytest

from refimpl.core.errors import InputError
from simulator.runner import simulate
from simulator.service.workload import most_requests
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study

LOG = "time_s,prompt_tokens,output_tokens\n0,10,5\n2,20,6\n"


@pytest.mark.parametrize("kind", ["trace", "replay"])
def test_all_requests_of_a_log_come_where_nothing_says_how_many(tmp_path, engine_trace, kind):
    (tmp_path / "t.csv").write_text(LOG)
    arrivals = Spec.of(kind, path=str(tmp_path / "t.csv" if kind == "trace" else engine_trace))
    whole = Scenario(study=Study(kind="open", arrivals=arrivals), engine=Engine(max_new_tokens=9))
    count = most_requests(whole.study)
    assert count == 2
    given = simulate(whole.but({"study.num_requests": count}), 1)
    pd.testing.assert_frame_equal(simulate(whole, 1).metrics, given.metrics)
    assert simulate(whole.but({"study.num_requests": 1}), 1)["completed"] == 1
    with pytest.raises(InputError, match=r"study.num_requests or duration_s is missing: .* of kind trace or replay"):
        whole.but({"study.arrivals": {"kind": "poisson", "rate_per_s": 1.0}})


@pytest.mark.parametrize("kind_first", [True, False])
def test_a_change_to_recorded_arrivals_brings_all_of_them(tmp_path, kind_first):
    """Where nothing was said of the study: 64 requests are those of a study without a record."""
    (tmp_path / "t.csv").write_text(LOG)
    log = {"kind": "trace", "path": str(tmp_path / "t.csv")}
    changes = {"study.kind": "open"} | {f"study.arrivals.{name}": value for name, value in log.items()}
    made = Scenario().but(changes if kind_first else dict(reversed(changes.items())))
    assert made.study.ends_with_record
    assert simulate(made, 1)["completed"] == 2
    assert Scenario().but({"study.kind": "open"}).study.num_requests == 64
    assert Scenario().but(changes | {"study.num_requests": 1}).study.num_requests == 1
    assert Scenario().but(study={"kind": "open", "num_requests": 1, "arrivals": log}).study.num_requests == 1
    assert Scenario(study={"num_requests": 2}).but(changes).study.num_requests == 2


def test_prompts_are_parted_by_those_of_the_log_alone(tmp_path):
    """Of three requests, as of the log, a third each: not of a thousand that begin with it over and over."""
    lines = "".join(f"{i},{prompt},4\n" for i, prompt in enumerate((10, 20, 30)))
    (tmp_path / "t.csv").write_text("time_s,prompt_tokens,output_tokens\n" + lines)
    study = Study(kind="open", arrivals=Spec.of("trace", path=str(tmp_path / "t.csv")))
    for length in (study, replace(study, duration_s=99.0)):
        made = Scenario(study=length).but(service={"replicas": 2, "router": "by_length"})
        given = simulate(made.but({"study.num_requests": 3}), 1).frame("requests")
        assert simulate(made, 1).frame("requests")["replica"].tolist() == given["replica"].tolist() == [0, 1, 1]
