"""From a run of the engine under a draft budget, or with lookups, to a replay that decides the same."""

import json

import pytest

from refimpl.core.errors import InputError
from simulator.engine_runs.acceptance_fit import fit_all
from simulator.engine_runs.parity import check_parity, replay_scenario
from simulator.service.simulation import simulate_once
from simulator.settings.fields import Spec
from simulator.settings.traces import read_engine_trace
from tests.traced_runs import traced

DECISIONS = {
    "by_load": {"draft_budget": "by_load:2=2,3=1"},
    "by_load to none": {"draft_budget": "by_load:3=0"},
    "capacity": {"draft_budget": "capacity:4"},
    "goodput": {"draft_budget": "goodput:1=1.2/1.5/1.8,3=1.5/2.2"},
    "goodput of ngrams": {"drafter": "ngram", "draft_budget": "goodput:1=1.2/1.5/1.8"},
    "confidence": {"draft_budget": "confidence:0.02"},
    "ngram": {"drafter": "ngram"},
    "suffix": {"drafter": "suffix"},
    "hybrid": {"drafter": "hybrid"},
    "head": {"drafter": "head"},
    "head by capacity": {"drafter": "head", "draft_budget": "capacity:4"},
    "hybrid by load": {"drafter": "hybrid", "draft_budget": "by_load:3=2"},
}
METHODS = ("inplace", "eqspec", "masked+grouped", "rollback", "paged+continuous")


LOOKUPS = [name for name, settings in DECISIONS.items() if "drafter" in settings]


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, method) for name in DECISIONS for method in METHODS if method != "rollback" or name not in LOOKUPS],
)
def test_a_run_is_replayed_without_a_difference(llama, tmp_path, name, method):
    result = traced(llama, tmp_path / "run.ndjson", method=method, **DECISIONS[name])
    parity = check_parity(tmp_path / "run.ndjson")
    assert parity.exact, parity.first_difference
    assert parity.rows == sum(len(record.rows) for record in result.rounds)


@pytest.mark.parametrize("name", ["hybrid", "by_load to none"])
def test_groups_of_rows_whose_draft_rests_are_replayed(llama, tmp_path, name):
    result = traced(llama, tmp_path / "run.ndjson", method="exspec", **DECISIONS[name])
    assert max(row.draft_lag for record in result.rounds for row in record.rows) > 2
    parity = check_parity(tmp_path / "run.ndjson")
    assert parity.exact, parity.first_difference


@pytest.mark.parametrize("name", DECISIONS)
def test_budgets_and_lookups_decide_something(llama, tmp_path, name):
    """Replayed as if every row were offered all that it can use, the same runs differ."""
    path = tmp_path / "run.ndjson"
    traced(llama, path, method="inplace", **DECISIONS[name])
    header, *rows = path.read_text().splitlines()
    fixed = {"drafter": "model", "draft_budget": "fixed"}
    path.write_text("\n".join([json.dumps(json.loads(header) | fixed), *rows]) + "\n")
    assert not check_parity(path).exact


def test_draft_passes_of_a_replay_are_those_of_the_engine(llama, tmp_path):
    """Also where the last pass only shows that nobody goes on."""
    for name in ("confidence", "capacity", "hybrid", "head"):
        result = traced(llama, tmp_path / "run.ndjson", method="inplace", **DECISIONS[name])
        lines = simulate_once(replay_scenario(read_engine_trace(tmp_path / "run.ndjson"))).log.rounds
        assert [line.passes for line in lines] == [record.rows[0].draft_passes for record in result.rounds]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"survival": [0.5, "a"]}, r":2: survival must be a list of numbers ≥ 0"),
        ({"survival": 0.5}, r":2: survival must be a list of numbers ≥ 0"),
        ({"looked_up": 99}, r":2: looked_up must be a whole number ≥ 0, at most drafted"),
        ({"looked_up": "x"}, r":2: looked_up must be a whole number ≥ 0, at most drafted"),
    ],
)
def test_impossible_estimates_are_refused(llama, tmp_path, bad, message):
    path = tmp_path / "run.ndjson"
    traced(llama, path, method="inplace", **DECISIONS["capacity"])
    header, row, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, json.dumps(json.loads(row) | bad), *rows]) + "\n")
    with pytest.raises(InputError, match=message):
        read_engine_trace(path)


def test_lookups_for_positions_that_rollback_drafts_again_are_not_replayed(llama, tmp_path):
    traced(llama, tmp_path / "run.ndjson", method="rollback", drafter="ngram")
    with pytest.raises(InputError, match=r"run\.ndjson:1: rollback drafts positions again, where a lookup"):
        check_parity(tmp_path / "run.ndjson")


def test_forced_acceptance_of_positions_that_rollback_drafts_again_is_not_replayed(llama, tmp_path):
    """It is drawn anew for each round; other layouts never meet a position twice."""
    forced = {"acceptance": "forced", "forced_lengths": (0.3, 0.3, 0.2, 0.2)}
    for method in ("rollback", "masked"):
        traced(llama, tmp_path / f"{method}.ndjson", method=method, **forced)
    with pytest.raises(InputError, match=r"rollback\.ndjson:1: rollback drafts positions again, which forced"):
        check_parity(tmp_path / "rollback.ndjson")
    assert check_parity(tmp_path / "masked.ndjson").exact


def test_a_budget_that_reads_probabilities_needs_a_trace_with_estimates(llama, tmp_path):
    path = tmp_path / "run.ndjson"
    traced(llama, path, method="inplace", **DECISIONS["capacity"])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("\n".join(json.dumps({k: v for k, v in e.items() if k != "survival"}) for e in lines) + "\n")
    with pytest.raises(InputError, match="does not say how likely drafts were to survive"):
        check_parity(path)


@pytest.mark.parametrize("name", ["ngram", "hybrid", "capacity", "confidence", "head by capacity"])
def test_what_a_trace_says_of_its_drafts_goes_with_its_own_rounds(llama, tmp_path, name):
    """Rounds of another acceptance begin elsewhere. There, rows had no drafts, or a list ended too soon."""
    traced(llama, tmp_path / "run.ndjson", method="inplace", **DECISIONS[name])
    trace = read_engine_trace(tmp_path / "run.ndjson")
    other = replay_scenario(trace, acceptance=Spec.of("iid", probability=0.5))
    with pytest.raises(InputError, match=r"run\.ndjson: no round of sequence \d began at \d+ tokens, .*: keep the run"):
        simulate_once(other)
    with pytest.raises(InputError, match=r"run\.ndjson:1: no model can be held against a run with drafter .* alone$"):
        fit_all(trace, replications=2)


@pytest.mark.parametrize("name", ["by_load", "goodput", "head"])
def test_acceptance_is_fitted_to_runs_whose_drafts_are_known_anywhere(llama, tmp_path, name):
    traced(llama, tmp_path / "run.ndjson", method="inplace", **DECISIONS[name])
    assert fit_all(read_engine_trace(tmp_path / "run.ndjson"), replications=2)["iid"].table["model"].notna().all()
