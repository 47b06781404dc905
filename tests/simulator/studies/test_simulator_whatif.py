"""What-if: the scenario is what was asked, the recommendation is a paired difference."""

import re
from dataclasses import fields
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from refimpl.core.errors import InputError
from simulator.intervals import mean_interval
from simulator.runner import Replication, Results, simulate
from simulator.settings.scenario import Scenario
from simulator.studies import whatif
from simulator.studies.whatif import LABELS, METRICS, Outlook, WhatIf, outlook, speedup
from simulator.studies.whatif_grid import answer_grid

DEAR = Scenario(cost={"kind": "linear", "verify_base_s": 0.02, "realign_base_s": 0.02, "concat_base_s": 0.02})
TWO = ("eqspec", "inplace")


def test_the_scenario_is_what_was_asked():
    question = WhatIf(
        batch_size=4, window_size=2, num_speculative_tokens=3, acceptance=0.6, deviation=0.2, rate_per_s=2
    )
    made = question.scenario(DEAR, "exspec")
    assert (made.engine.batch_size, made.engine.window_size, made.engine.num_speculative_tokens) == (4, 4, 3)
    assert (made.study.kind, made.study.arrivals.values) == ("open", (("rate_per_s", 2),))
    drawn = dict(made.acceptance.values)
    a, b = drawn["a"], drawn["b"]
    assert a / (a + b) == pytest.approx(0.6)
    assert a * b / ((a + b) ** 2 * (a + b + 1)) == pytest.approx(0.2**2)
    assert question.scenario(DEAR, "inplace").engine.window_size is None
    assert WhatIf(deviation=0).scenario(DEAR, "inplace").acceptance.kind == "iid"
    assert WhatIf(rate_per_s=0.0).scenario(DEAR, "inplace").study.kind == "offline"


def test_device_and_models_are_laid_over_the_costs_of_the_scenario():
    own = {"kind": "roofline", "device": "h100", "target": "qwen3-8b", "draft": "qwen3-0.6b", "dtype": "float16"}
    base = Scenario(cost=own)
    other = WhatIf(device="l40s").scenario(base, "inplace").cost
    assert other.as_mapping() == own | {"device": "l40s"}
    assert WhatIf(models="qwen3-4b+qwen3-0.6b").scenario(base, "inplace").cost.as_mapping() == own | {
        "target": "qwen3-4b"
    }
    assert WhatIf(device="l40s", models="a+b").scenario(DEAR, "inplace").cost.as_mapping() == {
        "kind": "roofline", "device": "l40s", "target": "a", "draft": "b",
    }  # fmt: skip
    assert WhatIf().scenario(base, "inplace").cost == base.cost


def test_a_calibration_goes_with_the_device_and_the_models_that_it_was_measured_with():
    """Else every device would have the same speed."""
    facts = {"kind": "roofline", "device": "h200", "target": "vicuna-7b", "draft": "vicuna-68m"}
    base = Scenario(cost=facts | {"from_calibration": "nvidia-h200/vicuna"}, study={"num_requests": 8})
    for own in (WhatIf(), WhatIf(device="h200"), WhatIf(device="h200", models="vicuna-7b+vicuna-68m")):
        assert own.scenario(base, "inplace").cost == base.cost
    assert WhatIf(device="b200").scenario(base, "inplace").cost.as_mapping() == facts | {"device": "b200"}
    other = WhatIf(models="llama-3-8b+vicuna-68m").scenario(base, "inplace").cost
    assert other.as_mapping() == facts | {"target": "llama-3-8b"}
    grid = answer_grid(base, TWO, 2, {"device": ("h200", "l40s", "b200")})
    speeds = [answer["methods"]["inplace"][0][0] for answer in grid.answers]
    assert len(set(speeds)) == 3
    assert speeds[1] < speeds[2]


def test_the_requests_are_those_of_the_scenario_unless_a_rate_is_asked_for():
    served = DEAR.but({"study.kind": "open", "study.num_requests": 9, "study.arrivals.rate_per_s": 2.0})
    assert WhatIf().scenario(served, "inplace").study == served.study
    assert WhatIf(rate_per_s=0.0).scenario(served, "inplace").study.num_requests == 64
    found = outlook(WhatIf(batch_size=2), served, TWO, 2)
    assert found.judged_by == "latency_p99_s"
    assert found.results["inplace"]["completed"] == 9


def test_an_answer_says_how_long_it_was_simulated_where_nothing_counts_requests(tmp_path):
    """Or which log's requests all came."""
    closed = DEAR.but(study={"kind": "closed", "clients": 4, "duration_s": 5.0})
    assert repr(outlook(WhatIf(batch_size=2), closed, TWO, 2)).endswith(", of 5 s from an empty server")
    path = tmp_path / "t.csv"
    path.write_text("time_s,prompt_tokens,output_tokens\n0,5,9\n1,5,9\n")
    logged = DEAR.but(study={"kind": "open", "arrivals": {"kind": "trace", "path": str(path)}})
    told = repr(outlook(WhatIf(batch_size=2), logged, TWO, 2))
    assert told.endswith(f", of all requests of {path} from an empty server")


def test_everything_that_is_shown_has_a_label():
    assert set(LABELS) == {*(item.name for item in fields(WhatIf)), *METRICS}


def test_docstring_examples_run(monkeypatch):
    """With eight requests: they tell as well whether an example runs."""
    runs = []

    def simulate_few(scenario, replications, **settings):
        runs.append(simulate(scenario.but({"study.num_requests": 8}), 2, **settings))
        return runs[-1]

    monkeypatch.setattr(whatif, "simulate", simulate_few)
    text = Path(whatif.__file__).read_text()
    examples = re.findall(r"Example::\n\n((?: {8}.*\n)+)", text)
    for code in examples:
        exec(dedent(code), vars(whatif) | {})
    assert len(examples) == text.count("Example::") >= 1
    assert len(runs) >= 2 * len(examples)
    assert min(run["tokens_per_s"] for run in runs) > 0


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match=r"deviation must be below 0.46 at a mean of 0.7, not 0.5"):
        WhatIf(deviation=0.5).scenario(DEAR, "inplace")
    with pytest.raises(InputError, match="batch_size must be an integer"):
        WhatIf(batch_size=0)
    with pytest.raises(InputError, match="models must be TARGET"):
        WhatIf(device="h100", models="qwen3-8b").scenario(DEAR, "inplace")
    with pytest.raises(InputError, match="at least two"):
        outlook(WhatIf(), DEAR, ["inplace"])
    with pytest.raises(InputError, match="replications"):
        outlook(WhatIf(), DEAR, TWO, 1)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_the_recommendation_is_the_paired_difference(rate):
    question = WhatIf(batch_size=2, rate_per_s=rate)
    found = outlook(question, DEAR, TWO, 3)
    metric, sign = ("latency_p99_s", -1) if rate else ("tokens_per_s", 1)
    slow, fast = (simulate(question.scenario(DEAR, m), 3).metrics[metric].to_numpy() for m in TWO)
    assert found.ranking == ["inplace", "eqspec"]
    expected = mean_interval(sign * (fast - slow) / slow.mean(), 0.95)[:3]
    np.testing.assert_allclose(found.margin(), expected)
    assert expected[1] > 0
    better = "lower P99 latency" if rate else "more tokens/s"
    assert repr(found).startswith(f"take inplace: {100 * expected[0]:.1f} % {better} than eqspec (95 % interval ")
    assert repr(found).endswith(" %), of 64 requests from an empty server")
    assert list(found.to_frame().columns) == list(METRICS)


def found_latencies(*seconds):
    """Replications of a method with these latencies."""
    done = {"completed": 100.0, "censored": 0.0}
    runs = [Replication(i, dict.fromkeys(METRICS, float(s)) | done, None, (), "") for i, s in enumerate(seconds)]
    return Results(DEAR.but(study={"kind": "closed", "clients": 1, "duration_s": 9.0}), tuple(runs))


def test_methods_are_ranked_by_the_replications_in_which_all_have_the_metric():
    """One finishes no request where another takes long, and one never any."""
    latencies_s = {"few": (2, 4, np.nan), "all": (1, 3, 90), "none": (np.nan, np.nan, np.nan)}
    found = Outlook(WhatIf(), {name: found_latencies(*each) for name, each in latencies_s.items()})
    assert found.ranking == ["all", "few", "none"]
    assert found.margin() == pytest.approx(mean_interval(np.array([1 / 3, 1 / 3]), 0.95)[:3])
    assert found.to_frame()["latency_p99_s"].tolist()[:2] == [2, 3]


def test_one_replication_has_no_interval():
    found = {name: Results(Scenario(), (Replication(0, {"tokens_per_s": speed, "censored": 0.0, "completed": 1.0},
             None, (), ""),)) for name, speed in (("eqspec", 80.0), ("inplace", 100.0))}  # fmt: skip
    assert str(Outlook(WhatIf(), found)) == (
        "inplace or eqspec, not decided: inplace 25.0 % more tokens/s than eqspec (no interval: known in one "
        "replication alone), of 64 requests from an empty server"
    )


def test_methods_that_do_not_differ_are_not_decided():
    found = outlook(WhatIf(batch_size=2), DEAR, ("inplace", "inplace+fifo"), 2)
    assert repr(found).startswith("inplace or inplace+fifo, not decided: inplace 0.0 % more tokens/s")


def test_speed_over_no_drafts_is_a_paired_ratio():
    assert speedup(WhatIf(num_speculative_tokens=0), replications=2) == (1.0, 1.0, 1.0)
    gain, low, high = speedup(WhatIf(acceptance=0.9, deviation=0.0), replications=3)
    assert 1 < low < gain < high
