"""Draft budgets and lookups in the simulator: what they are told, what they find, and what rounds then cost."""

import numpy as np
import pytest

from simulator.runner import simulate
from simulator.service.acceptance import MODELS, make_acceptance
from simulator.service.confidence import DrawnConfidence
from simulator.service.cost import Fed
from simulator.service.simulation import simulate_once
from simulator.service.streams import TILE_REQUESTS, Streams
from simulator.service.table_cost import UNMEASURED_LAG
from simulator.settings.fields import Spec
from simulator.settings.scenario import Scenario

BASE = Scenario(
    study={"num_requests": 30},
    workload={"prompt_tokens": {"kind": "uniform", "low_tokens": 4, "high_tokens": 60}},
    engine={"batch_size": 6, "max_new_tokens": 40},
    cost={"kind": "linear", "verify_base_s": 0.02, "verify_s_per_token": 1e-3, "draft_base_s": 2e-3},
)


def test_a_budget_that_leaves_all_drafts_changes_nothing():
    fixed, whole = (simulate(BASE.but({"engine.draft_budget": name}), 3) for name in ("fixed", "capacity:999"))
    columns = ["request", "rounds", "drafted", "accepted"]
    assert whole.frame("requests")[columns].equals(fixed.frame("requests")[columns])
    assert whole["tokens_per_s"] == pytest.approx(fixed["tokens_per_s"], rel=1e-12)


def test_a_cut_row_pays_in_a_packed_pass_alone_and_was_drawn_all_the_same():
    capped = BASE.but({"engine.draft_budget": "capacity:6", "confidence.information": 0.9})
    packed, padded = simulate(capped, 3), simulate(capped.but({"switches.pad_prompts": True}), 3)
    assert packed["verified_tokens_per_round"] < 0.6 * packed["verified_rectangle_per_round"]
    assert packed["tokens_per_round"] == padded["tokens_per_round"]
    assert packed["tokens_per_s"] > 1.1 * padded["tokens_per_s"]
    none = simulate(capped.but({"engine.draft_budget": "capacity:0"}), 2)
    assert none["tokens_per_round"] == none["verified_tokens_per_round"] < none["drawn_tokens_per_round"] / 4
    assert none["draft_share"] > 0.2


def test_lookups_cost_host_seconds_and_what_they_find():
    looked = BASE.but({"engine.drafter": "ngram", "lookup.found": 0.5, "lookup.host_s_per_row": 1e-4})
    results = simulate(looked, 5)
    assert (results.frame("rounds")["passes"] == 0).all()
    assert results["draft_acceptance_rate"] < 0.5  # of runs of drafts, each right with probability 0.5
    never, always = (looked.but({"lookup.found": share}) for share in (0.0, 1.0))
    assert simulate(never, 2)["mean_acceptance_length"] == 1
    assert simulate(always, 2)["mean_acceptance_length"] == pytest.approx(2 - 0.5**5, rel=0.1)


@pytest.mark.parametrize(("drafter", "reads"), [("ngram", False), ("suffix", False), ("hybrid", True)])
def test_drafters_that_look_alone_do_not_read_the_acceptance(drafter, reads):
    looked = BASE.but({"engine.drafter": drafter})
    few, many = (simulate(looked.but({"acceptance": {"kind": "iid", "probability": p}}), 1) for p in (0.1, 0.9))
    assert (few["tokens_per_s"] != many["tokens_per_s"]) == reads


def test_a_hybrid_runs_its_draft_where_some_row_finds_nothing():
    hybrid = BASE.but({"engine.drafter": "hybrid", "lookup.found": 0.9, "lookup.most_tokens": 2})
    rounds = simulate(hybrid, 3).frame("rounds")
    full = rounds[rounds["live"] == 6]
    assert (full["passes"] == 0).mean() == pytest.approx(0.9**6, abs=0.1)
    assert (full["k"][full["passes"] == 0] <= 2).all()
    assert full["drafted"][full["passes"] > 0].median() > 24


def test_a_head_costs_its_steps_and_drafts_from_the_second_round_on():
    headed = BASE.but({"engine.drafter": "head", "head": {"kind": "steps", "step_s": 1e-4, "step_s_per_row": 1e-5}})
    result, model = simulate(headed, 3), simulate(BASE, 3)
    rows = simulate_once(headed, keep_rows=True).log.row_frame()
    assert (result.frame("rounds")["passes"] == 0).all()
    assert (rows.groupby("sequence")["drafted"].first() == 0).all()
    assert model["mean_acceptance_length"] > result["mean_acceptance_length"] > 1.5
    assert result["tokens_per_s"] > model["tokens_per_s"]


@pytest.mark.parametrize("information", [0.05, 0.3, 0.8])
def test_drafts_are_right_as_often_as_they_are_said_to_be(information):
    """Deciles of the probability against the share of right drafts in each; five standard errors."""
    acceptance = make_acceptance(Spec.of("beta", a=4.0, b=2.0), Streams(3, 0), 5)
    drawn = DrawnConfidence(acceptance, information=information, noise=0.0)
    said = np.concatenate([drawn.block(block, number).ravel() for block in range(8) for number in range(4)])
    right = np.concatenate([acceptance.right(block, number).ravel() for block in range(8) for number in range(4)])
    for part in np.array_split(np.argsort(said), 10):
        error = np.sqrt(max(said[part].mean() * (1 - said[part].mean()), 1e-4) / len(part))
        assert abs(right[part].mean() - said[part].mean()) < 5 * error
    own = np.repeat(np.concatenate([acceptance.rates(block) for block in range(8)]), 4 * 64).reshape(8, 256, 4, 64)
    rates = own.transpose(0, 2, 1, 3).ravel()
    explained = np.mean((said - rates) ** 2) / np.mean(rates * (1 - rates))
    assert explained == pytest.approx(information, abs=0.02)


def test_the_ends_of_information_and_noise():
    acceptance = make_acceptance(Spec.of("iid", probability=0.7), Streams(0, 0), 5)
    bits = acceptance.right(0, 0)
    none, all_, wrong = (
        DrawnConfidence(acceptance, information=information, noise=noise).block(0, 0)
        for information, noise in ((0, 0.0), (1, 0.0), (1, 30.0))
    )
    assert np.allclose(none, 0.7)
    assert np.allclose(all_, bits)
    assert 0.01 < np.mean((wrong > 0.5) != bits) < 0.5  # the estimate errs, the drafts stay what they are


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in ("bootstrap", "replay")])
def test_rates_are_the_share_of_right_drafts(kind):
    parameters = {
        "iid": {"probability": 0.6}, "mean_length": {"tokens": 2.5}, "profile": {"probabilities": [0.8, 0.5]},
        "scaling": {"training_tokens": 1e5, "parameters": 2e5},
        "beta": {"a": 3.0, "b": 2.0}, "markov": {"probability": 0.7, "correlation": 0.5},
    }[kind]  # fmt: skip
    acceptance = make_acceptance(Spec.of(kind, **parameters), Streams(1, 0), 5)
    share = np.concatenate([acceptance.right(0, number) for number in range(40)], axis=1).mean(axis=1)
    assert acceptance.rates(0).shape == (TILE_REQUESTS,)
    assert np.abs(share - acceptance.rates(0)).max() < 6 * 0.5 / np.sqrt(40 * 64 / 3)


def test_better_estimates_make_a_better_use_of_the_same_capacity():
    base = BASE.but({"engine.draft_budget": "capacity:9", "acceptance.probability": 0.6})
    speeds = [simulate(base.but({"confidence.information": x}), 5)["tokens_per_round"] for x in (0.0, 0.3, 0.9)]
    assert speeds[0] < speeds[1] < speeds[2]
    noisy = simulate(base.but({"confidence": {"kind": "drawn", "information": 0.9, "noise": 5.0}}), 5)
    assert speeds[0] < noisy["tokens_per_round"] < speeds[2]


PLAIN = {"kind": "roofline", "device": "h100", "target": "qwen3-8b"}


@pytest.mark.parametrize("method", ["paged", "exspec"])
def test_a_server_without_a_draft_is_the_same_however_it_is_said(method):
    """Without drafts, or with a lookup that may find none: no draft lags behind what the target has cached."""
    common = {"kind": "sessions", "sessions": 2, "turns": 5}
    engine = {"method": method, "batch_size": 2, "max_new_tokens": 48, "num_speculative_tokens": 0}
    made = BASE.but(cost=PLAIN, engine=engine, noise=False).but({"workload.common": common})
    bare, lookup = (simulate(made.but({"engine.drafter": name}), 1).metrics.loc[0] for name in ("model", "ngram"))
    assert bare.equals(lookup)
    loaded = simulate(made.but({"cost.draft": "qwen3-0.6b"}), 1)
    if method == "paged":
        assert loaded["cache_hit_rate"] == bare["cache_hit_rate"]  # a draft that never runs holds no block back
    assert loaded["grouping_rate"] == bare["grouping_rate"]  # a draft that rests tells no rows of equal length apart


CROWDED = Scenario(
    study={"num_requests": 2},
    workload={
        "prompt_tokens": {"kind": "fixed", "tokens": 10},
        "output_tokens": {"kind": "values", "tokens": [100, 200]},
    },
    engine={
        "batch_size": 2, "max_new_tokens": 300, "num_speculative_tokens": 2, "draft_budget": "by_load:1=2,2=0",
    },
    acceptance={"kind": "iid", "probability": 0.0},
    cost={"kind": "linear", "verify_base_s": 0.01, "draft_base_s": 0.001, "draft_s_per_token": 0.001},
    noise=False,
)  # fmt: skip


@pytest.mark.parametrize(
    "cost",
    [{**PLAIN, "draft": "qwen3-0.6b"}, {"kind": "table", "calibration": "cpu/tiny"}],
    ids=["roofline", "table"],
)
def test_a_draft_that_sat_out_pays_for_what_it_has_missed(cost):
    """Two rows draft nothing for a hundred rounds; then the one that is left feeds them before it drafts."""
    simulation = simulate_once(CROWDED.but({"cost": cost}))
    rounds = simulation.log.round_frame()
    first = rounds.index[rounds["k"] > 0][0]
    caught_up_s = rounds["draft_s"][first] - rounds["draft_s"][first + 1]
    assert first == 100
    assert caught_up_s == pytest.approx(simulation.cost.catch_up_s([Fed(1, 100, 9)]), rel=0.1)
    if cost["kind"] == "roofline":
        all_s = simulation.cost.draft.pass_s([Fed(1, 100, 9)], 1)
        assert caught_up_s == pytest.approx(float(all_s), rel=0.1)
    if cost["kind"] == "table":
        chunk_s = [simulation.cost.point("draft_chunk", 1, tokens, 9) for tokens in (16, 320)]
        assert caught_up_s == pytest.approx(chunk_s[0] + 84 * (chunk_s[1] - chunk_s[0]) / 304, rel=0.1)


def test_what_no_calibration_says_of_catching_up_is_marked(calibration):
    cost = {"kind": "table", "calibration": str(calibration), "outside": "extrapolate"}
    never_sits_out = {"engine.draft_budget": "fixed"}
    assert UNMEASURED_LAG in simulate(CROWDED.but({"cost": cost}), 1).extrapolated
    assert UNMEASURED_LAG not in simulate(CROWDED.but({"cost": cost, **never_sits_out}), 1).extrapolated


def test_rows_drafted_ahead_pay_for_what_they_have_missed():
    """Of two rows that are left, each a cohort, one is drafted for in the round before its own."""
    lengths = {"study.num_requests": 4, "workload.output_tokens.tokens": [100, 100, 200, 200]}
    overlapped = {"engine.execution": "overlapped", "engine.contention": 1.0, "engine.batch_size": 4}
    draft_s = simulate_once(CROWDED.but({**lengths, **overlapped})).log.round_frame()["draft_s"]
    assert draft_s.max() == pytest.approx(0.1 + 0.1, rel=0.1)
    assert sorted(draft_s)[-2] < 0.01
