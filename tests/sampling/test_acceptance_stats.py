"""Acceptance statistics: definitions, identities, the collapse warning, and the trace they can be recomputed from."""

import json
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl import Request, generate, stream
from refimpl.core.records import RowOutcome
from refimpl.core.stats import (
    COLLAPSE_ROW_ROUNDS,
    AcceptanceCollapseWarning,
    AcceptanceStats,
    CollapseWatch,
    acceptance_stats,
    request_weighted_length,
    request_weighted_rate,
)
from refimpl.models.table_model import table_pair
from refimpl.pairs import random_pair

METHODS = ["eqspec", "exspec", "masked", "rollback", "rollback+fifo", "inplace", "autoregressive"]
SAMPLING = {"temperature": 0.9, "top_p": 0.95}
REQUESTS = [
    Request([3, 1, 4], max_new_tokens=20, num_speculative_tokens=0),
    Request([1, 5], max_new_tokens=17, num_speculative_tokens=4, stop_token_ids=[9, 11, 13]),
    Request([9, 2, 6, 5], max_new_tokens=3, num_speculative_tokens=2),
    Request([3], max_new_tokens=24, num_speculative_tokens=6),
]


def outcome(drafted: int, accepted: int, kept: int | None = None) -> RowOutcome:
    kept = accepted + 1 if kept is None else kept
    return RowOutcome(0, 5, 1, drafted, drafted, accepted, kept, "bonus", False)


def test_definitions_by_hand():
    """Three row-rounds: 5 drafted 2 accepted; 5 and 5, the last two tokens cut by the budget; 1 and 0."""
    stats = acceptance_stats([outcome(5, 2), outcome(5, 5, kept=4), outcome(1, 0)])
    assert (stats.row_rounds, stats.drafted, stats.accepted, stats.generated, stats.cut) == (3, 11, 7, 8, 2)
    assert stats.histogram == (1, 0, 1, 0, 0, 1)
    assert stats.draft_acceptance_rate == 7 / 11
    assert stats.mean_acceptance_length == 1 + 7 / 3
    assert stats.tokens_per_verified_token == 8 / (11 + 3)
    assert stats.per_position == (2 / 3, 2 / 3, 1 / 3, 1 / 3, 1 / 3)


def test_positions_that_no_row_reached_are_reported_as_zero():
    assert acceptance_stats([outcome(4, 1), outcome(4, 0)]).per_position == (0.5, 0, 0, 0)


def test_requests_and_tokens_weigh_differently():
    """One request of a single full round, one of nine empty rounds."""
    lucky, unlucky = acceptance_stats([outcome(4, 4)]), acceptance_stats([outcome(4, 0)] * 9)
    together = acceptance_stats([outcome(4, 4)] + [outcome(4, 0)] * 9)
    assert (together.mean_acceptance_length, together.draft_acceptance_rate) == (1.4, 0.1)
    assert request_weighted_length([lucky, unlucky, AcceptanceStats()]) == 3
    assert request_weighted_rate([lucky, unlucky, acceptance_stats([outcome(0, 0)])]) == 0.5


rounds = st.integers(0, 6).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k)))


@given(st.lists(rounds.flatmap(lambda r: st.tuples(st.just(r[0]), st.just(r[1]), st.integers(1, r[1] + 1)))))
def test_identities_hold_for_any_rounds(rows):
    stats = acceptance_stats([outcome(*row) for row in rows])
    assert sum(stats.histogram) == stats.row_rounds
    assert sum(i * n for i, n in enumerate(stats.histogram)) == stats.accepted
    assert stats.generated == stats.accepted + stats.row_rounds - stats.cut
    assert sum(stats.per_position) * stats.row_rounds == pytest.approx(stats.accepted)
    assert list(stats.per_position) == sorted(stats.per_position, reverse=True)
    if rows:
        assert stats.mean_acceptance_length == pytest.approx(1 + sum(stats.per_position))


@pytest.mark.parametrize("broken", [{"histogram": (2,)}, {"accepted": 2}, {"generated": 9}, {"cut": 1}])
def test_counts_that_contradict_each_other_are_refused(broken):
    right = {"row_rounds": 2, "drafted": 6, "accepted": 3, "generated": 5, "cut": 0, "histogram": (0, 1, 1)}
    AcceptanceStats(**right)
    with pytest.raises(ValueError, match=r"histogram|generated"):
        AcceptanceStats(**right | broken)


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
@pytest.mark.parametrize("method", METHODS)
def test_a_run_adds_up(llama, method, acceptance):
    result = generate(llama, REQUESTS, method=method, batch_size=3, acceptance=acceptance, checks="host", **SAMPLING)
    whole, parts = result.stats.acceptance, [s.stats for s in result.sequences]
    for name in ("row_rounds", "drafted", "accepted", "generated", "cut"):
        assert getattr(whole, name) == sum(getattr(part, name) for part in parts)
    assert [part.generated for part in parts] == [len(s.token_ids) for s in result.sequences]
    assert result.stats.num_generated == whole.generated
    assert result.stats.request_weighted_length == request_weighted_length(parts)
    assert result.stats.request_weighted_rate == request_weighted_rate(parts)
    assert parts[0].mean_acceptance_length == 1
    if method == "rollback":
        assert whole.cut > 0  # tokens above the batch minimum were dropped
    if method == "autoregressive":
        assert (whole.drafted, whole.per_position, whole.row_rounds) == (0, (), whole.generated)


def test_a_trace_holds_one_row_per_sequence_and_round_and_gives_the_same_statistics(llama, tmp_path):
    result = generate(llama, REQUESTS, method="exspec", batch_size=2, window_size=3, **SAMPLING)
    result.write_trace(tmp_path / "run.ndjson")
    header, *rows = (json.loads(line) for line in (tmp_path / "run.ndjson").read_text().splitlines())
    assert header["schema"].startswith("raggedspec.trace/")
    assert [header[name] for name in ("method", "acceptance", "layout")] == ["exspec", "coupled", "realigned"]
    assert len(rows) == result.stats.acceptance.row_rounds
    assert len({(row["round"], row["sequence"]) for row in rows}) == len(rows)
    for sequence in result.sequences:
        mine = [row for row in rows if row["sequence"] == sequence.index]
        assert sum(row["kept"] for row in mine) == len(sequence.token_ids)
        assert sum(row["accepted"] for row in mine) == sequence.stats.accepted
        assert [row["seq_len"] for row in mine][1:] == [row["seq_len"] + row["kept"] for row in mine][:-1]
        assert [row["finished"] for row in mine] == [False] * (len(mine) - 1) + [True]
    for row in rows:
        assert row["mode"] in {"grouped", "fallback", "aged"}
        assert 0 <= row["accepted"] <= row["drafted"] <= row["k"]
        assert row["next_token"] in {"recovered", "bonus", "draft"}
        assert all(row[f"{stage}_s"] >= 0 for stage in ("prefill", "draft", "verify", "realign", "host", "round"))


@pytest.mark.parametrize(("batch_size", "rows"), [(1, 1), (2, 2)])
def test_a_row_alone_is_no_group(batch_size, rows):
    """The integer model accepts every draft, so that two equal prompts are in step to their end."""
    settings = {"method": "inplace+grouped", "batch_size": batch_size, "max_new_tokens": 12}
    result = generate(table_pair(), [[3, 1], [3, 2]], num_speculative_tokens=2, **settings)
    assert {(record.mode, len(record.rows)) for record in result.rounds} == {("grouped", rows)}
    assert result.stats.grouping_rate == (1.0 if rows > 1 else 0.0)
    assert result.stats.num_grouped_rounds == (result.stats.num_rounds if rows > 1 else 0)


@pytest.mark.parametrize("method", ["rollback+static", "inplace"])
def test_the_trace_names_the_kind_of_the_last_token(llama, method):
    result = generate(llama, [[3], [4, 5], [6]], method=method, batch_size=3, max_new_tokens=24, **SAMPLING)
    for row in (row for record in result.rounds for row in record.rows):
        kind = "draft" if row.kept <= row.accepted else "bonus" if row.accepted == row.drafted else "recovered"
        assert row.next_token == kind
    kinds = {row.next_token for record in result.rounds for row in record.rows}
    assert ("draft" in kinds) == (method == "rollback+static")


def test_rollback_counts_what_the_target_accepted_and_what_the_batch_minimum_cut():
    """Of three drafts a round the target accepts all of the first row and one of the second: both commit two tokens.

    Five rounds make ten tokens; in the last one, with two tokens left, each row may use one draft.
    """
    pair = table_pair({5: (True, False) * 10})
    rows = generate(pair, [[3, 1], [5, 1]], method="rollback", max_new_tokens=10, num_speculative_tokens=3).sequences
    first, second = (s.stats for s in rows)
    assert first == AcceptanceStats(5, drafted=13, accepted=13, generated=10, cut=8, histogram=(0, 1, 0, 4))
    assert second == AcceptanceStats(5, drafted=13, accepted=5, generated=10, cut=0, histogram=(0, 5, 0, 0))


HOPELESS = {"temperature": 1.5, "batch_size": 5, "max_new_tokens": 60, "num_speculative_tokens": 1, "checks": "host"}


@pytest.fixture(scope="module")
def hopeless():
    """A draft that has nothing to do with its target."""
    return random_pair("llama", draft_noise=50.0)


@pytest.mark.parametrize("run", [generate, lambda *a, **k: list(stream(*a, **k))], ids=["generate", "stream"])
def test_a_collapse_is_reported_once_with_likely_causes(hopeless, run):
    with pytest.warns(AcceptanceCollapseWarning) as caught:
        run(hopeless, [[i] for i in range(5)], **HOPELESS)
    assert [warning.filename for warning in caught] == [__file__]
    message = str(caught[0].message)
    for cause in ("tokenizers", "weights are random", "cache is out of step", "temperature"):
        assert cause in message


def test_no_event_is_lost_where_the_warning_is_an_error(hopeless):
    run = stream(hopeless, [[i] for i in range(5)], **HOPELESS)
    tokens = {index: [] for index in range(5)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(AcceptanceCollapseWarning):
            collect(run, tokens)
        collect(run, tokens)
    assert [sequence.token_ids for sequence in run.result().sequences] == list(tokens.values())


def collect(run, tokens):
    for event in run:
        tokens[event.index] += event.token_ids


def test_no_warning_without_drafts_or_with_a_good_draft(llama):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        generate(llama, [[i] for i in range(5)], **HOPELESS | {"num_speculative_tokens": 0})
        generate(random_pair("llama", draft_noise=0.0), [[i] for i in range(5)], **HOPELESS)
    assert [str(warning.message) for warning in caught] == []


def test_the_watch_looks_at_a_window_and_speaks_in_time():
    """A collapse in the middle of a run is noticed although the beginning was good."""
    watch = CollapseWatch()
    watch.observe([outcome(5, 5)] * 50)
    with warnings.catch_warnings(record=True) as early:
        warnings.simplefilter("always")
        watch.observe([outcome(5, 0)] * (COLLAPSE_ROW_ROUNDS - 2))
    with pytest.warns(AcceptanceCollapseWarning, match="over the last 200 row-rounds") as told:
        watch.observe([outcome(5, 0)] * 2)
    assert (len(early), len(told)) == (0, 1)
