"""Attribution: shares add up, name the factors, and are nothing where a factor has no effect."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given

from refimpl.core.errors import InputError
from simulator.runner import simulate
from simulator.settings.scenario import Scenario
from simulator.studies.attribution import FLAGS, attribute, differing_factors, flatten, unflatten
from tests.simulator.scenarios import engines, rarely_finishing, scenario


def test_shares_add_up_and_name_the_factors():
    a, b = scenario(), scenario({"engine.scheduler": "grouped", "engine.window_size": 16, "switches.keep_bonus": False})
    assert set(differing_factors(a, b)) == {"refill", "grouping", "bonus token"}
    found = attribute(a, b, 4)
    sums = found.per_replication.sum(axis=1)
    assert np.allclose(sums.mean(), found.b - found.a)
    assert found.table.loc["total", "share"] == pytest.approx(found.b - found.a)
    assert found.table.loc["refill", "verdict"] == "b higher, better"
    assert found.table.loc["bonus token", "share"] < 0


def test_a_factor_without_effect_has_no_share():
    common = {"kind": "system_prompt", "tokens": 2}  # which a layout without blocks cannot share
    found = attribute(scenario(), scenario({"engine.scheduler": "fifo", "workload.common": common}), 3)
    assert found.table.loc["workload.common", ["share", "verdict"]].tolist() == [0, "equal"]


@pytest.mark.parametrize("others", [set(), {"grouping"}])
def test_prompts_in_chunks_are_a_factor(others):
    """Beside them grouping does nothing."""
    chunked = scenario({"engine.scheduler": "continuous", "engine.token_budget": 40})
    other = scenario({"engine.scheduler": "grouped" if others else "static"})
    found = attribute(other, chunked, 2)
    assert set(found.table.index) == {"prompts in chunks", "total"} | (others or {"refill"})
    assert found.per_replication.sum(axis=1).mean() == pytest.approx(found.b - found.a)
    assert found.b == pytest.approx(simulate(chunked, 2)["tokens_per_s"])
    for made in (chunked, chunked.but({"switches.refill": False})):
        assert unflatten(flatten(made)) == made


def test_a_scheduler_without_flags_is_a_factor_of_its_own(monkeypatch):
    monkeypatch.delitem(FLAGS, "continuous")
    chunked = scenario({"engine.scheduler": "continuous", "engine.token_budget": 40})
    assert unflatten(flatten(chunked)) == chunked
    found = attribute(scenario({"engine.scheduler": "fifo"}), chunked, 2)
    assert "scheduler" in found.table.index
    assert found.b == pytest.approx(simulate(chunked, 2)["tokens_per_s"])


STUDIES = {
    "all at once": {"num_requests": 20},
    "requests": {"kind": "open", "num_requests": 4, "arrivals": {"kind": "poisson", "rate_per_s": 2.0}},
    "seconds": {"kind": "open", "duration_s": 3.0, "arrivals": {"kind": "fixed", "interval_s": 0.5}},
    "a log": {"kind": "open", "arrivals": {"kind": "trace", "path": "t.csv"}},
}


@pytest.mark.parametrize("pair", [*combinations(STUDIES, 2)], ids=" and ".join)
def test_studies_that_end_otherwise_are_one_factor(tmp_path, monkeypatch, pair):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("time_s,prompt_tokens,output_tokens\n0,5,9\n1,5,9\n2,5,9\n")
    a, b = (scenario().but(study=STUDIES[name]) for name in pair)
    assert set(attribute(a, b, 2).table.index) == {"study", "total"}


def test_shares_are_of_the_replications_in_which_every_mixture_has_the_metric():
    """Where that is one alone, nothing is decided."""
    a, b = rarely_finishing(1.0), rarely_finishing(1.6).but({"workload.output_tokens.mean_tokens": 8.0})
    found = attribute(a, b, 12, metric="latency_mean_s")
    assert 1 < len(found.per_replication) < 12
    assert found.per_replication.sum(axis=1).mean() == pytest.approx(found.b - found.a)
    assert found.table["relative"].drop("total").sum() == pytest.approx(1)
    alone = attribute(a, b, 4, metric="latency_mean_s")
    assert (len(alone.per_replication), set(alone.table["verdict"])) == (1, {"undecided"})
    with pytest.raises(InputError, match="no replication has latency_mean_s in every mixture"):
        attribute(a, b.but({"cost.verify_base_s": 20.0}), 2, metric="latency_mean_s")


def test_attribution_refuses_nonsense():
    with pytest.raises(InputError, match="do not differ"):
        attribute(scenario(), scenario(name="b"), 2)
    with pytest.raises(InputError, match="seed differs"):
        attribute(scenario(), scenario(seed=2), 2)


@given(engines)
def test_flattening_is_undone(engine):
    made = Scenario(engine=engine)
    assert unflatten(flatten(made)) == made
