"""Synthetic acceptance: the numbers asked for come out, and both models still do their full work."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refimpl import InputError, generate
from refimpl.bench.forced import iid_lengths, iid_of_length, parse_forced
from refimpl.core.config import forced


@pytest.mark.parametrize(("text", "k"), [("iid:0.8", 5), ("rate:0.228", 5), ("iid:0", 3), ("iid:1", 3)])
def test_probabilities(text, k):
    lengths = parse_forced(text, k)
    assert len(lengths) == k + 1
    assert sum(lengths) == pytest.approx(1)
    if text.startswith("rate"):
        assert sum(n * p for n, p in enumerate(lengths)) / k == pytest.approx(0.228)


@given(st.integers(1, 8), st.floats(0.1, 20), st.floats(0.5, 2))
@example(3, 2.0, 2.0)  # a round is as fast as a step without drafts: they always pay off
@example(3, 4.0, 1.0)  # only if all are accepted
@example(3, 4.01, 1.0)  # never
def test_drafts_pay_off_from_the_least_acceptance_that_makes_up_for_their_time(k, round_s, plain_s):
    """Tried out: tokens a second of a row, for every acceptance of a grid."""
    found, steps = iid_of_length(round_s / plain_s, k), 500
    tokens = [1 + sum(n * p for n, p in enumerate(iid_lengths(i / steps, k))) for i in range(steps + 1)]
    faster = [i for i, each in enumerate(tokens) if each / round_s >= (1 - 1e-12) / plain_s]
    assert (found is None) == (not faster)
    if found is not None:
        assert faster[0] - 1 < found * steps <= faster[0] + 1e-6


@pytest.mark.parametrize("text", ["iid", "iid:x", "iid:1.5", "magic:0.5", "trace:nowhere.ndjson"])
def test_bad_text_is_refused(text):
    with pytest.raises(InputError):
        parse_forced(text, 5)


@pytest.mark.filterwarnings("ignore:mean acceptance length")
@pytest.mark.parametrize(("alpha", "length"), [(0.0, 1.0), (1.0, 5.0)])
def test_forced_lengths_are_what_happens(llama, ragged_prompts, alpha, length):
    settings = {"num_speculative_tokens": 4, "max_new_tokens": 20, "stop_token_ids": []}
    result = generate(llama, ragged_prompts, method="eqspec", acceptance=forced(iid_lengths(alpha, 4)), **settings)
    assert result.stats.acceptance.mean_acceptance_length == length
    assert all(record.stage_s["verify_s"] > 0 for record in result.rounds)
    assert all(record.stage_s["draft_s"] > 0 for record in result.rounds if any(row.drafted for row in record.rows))


def test_forced_lengths_do_not_depend_on_the_layout(llama, ragged_prompts, tmp_path):
    settings = {"acceptance": forced(iid_lengths(0.7, 5)), "max_new_tokens": 40}
    runs = [generate(llama, ragged_prompts, method=m, **settings) for m in ("inplace", "masked+fifo", "exspec")]
    histograms = [[s.stats.histogram for s in run.sequences] for run in runs]
    assert histograms[0] == histograms[1] == histograms[2]
    runs[0].write_trace(tmp_path / "trace.ndjson")
    assert len(parse_forced(f"trace:{tmp_path / 'trace.ndjson'}", 5)) == 6


def test_a_trace_of_prompts_in_chunks_has_lines_without_drafts(llama, ragged_prompts, tmp_path):
    runs = [
        generate(llama, ragged_prompts, method=method, token_budget=12, max_new_tokens=20, stop_token_ids=[])
        for method in ("inplace+continuous", "inplace")
    ]
    assert any(record.chunks for record in runs[0].rounds)
    for run in runs:
        run.write_trace(tmp_path / "trace.ndjson")
        assert len(parse_forced(f"trace:{tmp_path / 'trace.ndjson'}", 5)) == 6
