"""Passes by themselves: what each feeds, that nothing is committed, and what is made of their seconds."""

import json
import sys
from functools import partial

import pytest
import torch

from refimpl import InputError
from refimpl.bench.passes import PassBench, PassSettings, measure_passes
from refimpl.bench.prefill import PrefillBench
from refimpl.cli import main

ROWS, PROMPT, START = [[5, 3, 8], [4, 1, 9, 2, 7], [6, 2]], list(range(1, 20)), 6
COUNTS = [2, 4, 1]


def passes_of(pair, layout):
    return PassBench(pair, f"{layout}+continuous", ROWS, PROMPT, START, num_speculative_tokens=3, checks="device")


@pytest.fixture
def fed(llama, monkeypatch):
    """Tokens that each pass of the target has fed, pads included."""
    numbers = []

    def count(run, block, num_logits):
        numbers.append(block.tokens.numel())
        return run(block, num_logits)

    for name in ("forward", "forward_packed"):
        monkeypatch.setattr(llama.target, name, partial(count, getattr(llama.target, name)))
    return numbers


@pytest.mark.parametrize("layout", ["inplace", "paged"])
def test_passes_feed_what_they_say(llama, fed, layout):
    passes = passes_of(llama, layout)
    del fed[:]
    runs = [
        partial(passes.rectangle, COUNTS),
        partial(passes.packed, COUNTS),
        partial(passes.mixed, COUNTS, 5),
        partial(passes.mixed, [4, 4, 4], 0),
        partial(passes.chunk, passes.target, 5),
        partial(passes.of_round, [4, 4, 4], 5),
    ]
    assert all(passes.seconds(run) > 0 for run in runs)
    assert fed == [12, 7, 12, 12, 5, 17]


@pytest.mark.parametrize("layout", ["inplace", "paged"])
def test_nothing_is_committed(llama, layout):
    passes = passes_of(llama, layout)
    for _ in range(3):
        passes.seconds(partial(passes.of_round, COUNTS, 5))
    assert [row.token_ids for row in passes.rows] == ROWS
    assert [row.target_cached for row in passes.rows] == [len(row) - 1 for row in ROWS]
    assert (passes.prompt.target_cached, passes.prompt.draft_cached) == (START, START)


@pytest.mark.parametrize("layout", ["inplace", "paged", "exspec"])
def test_a_prefill_feeds_all_tokens_but_the_last_again_and_again_with_pads_or_without(llama, fed, layout):
    prompts = PrefillBench(llama, layout, ROWS, checks="device")
    for _ in range(2):
        del fed[:]
        assert prompts.packed() > 0
        assert prompts.padded() > 0
        assert fed == [2 + 4 + 1, 3 * 4]
    assert [sequence.target_cached for sequence in prompts.engine.sequences] == [2, 4, 1]


def test_a_pass_over_rows_and_a_chunk_includes_the_drafts_pass(llama, monkeypatch):
    """And its seconds are those of both, as stages of a round count them."""
    passes, stages = passes_of(llama, "inplace"), {"prefill_s": 2.0, "verify_s": 1.0}
    drafted, forward = [], llama.draft.forward_packed
    monkeypatch.setattr(
        llama.draft, "forward_packed", lambda block, n: (drafted.append(block.tokens.numel()), forward(block, n))[1]
    )
    monkeypatch.setattr(passes.engine.timer, "take", lambda: stages)
    assert passes.seconds(partial(passes.of_round, COUNTS, 5)) == 3.0
    assert drafted == [5]


def test_gains_are_what_is_replaced_over_the_pass(llama, fed, monkeypatch):
    """With a second a token."""

    def tokens(passes, run):
        before = sum(fed)
        with torch.inference_mode():
            run()
        return float(sum(fed) - before)

    monkeypatch.setattr(PassBench, "seconds", tokens)
    settings = PassSettings(("inplace",), (4,), (8,), num_speculative_tokens=3, context_tokens=5, repeats=3)
    packed, mixed = measure_passes(llama, settings)
    assert (packed.pass_name, packed.chunk_tokens, mixed.pass_name, mixed.chunk_tokens) == ("packed", 0, "mixed", 8)
    assert (mixed.ms, mixed.instead_ms, mixed.gain) == (24000, 24000, 1)  # four rows of four tokens, and the chunk
    assert 1 <= packed.gain_min <= packed.gain <= packed.gain_max <= 2
    assert packed.gain > 1
    assert packed.instead_ms % 4000 == 0


def test_a_prefill_gains_its_pads(llama, fed, monkeypatch):
    """With a second a token of the target."""
    cache_all = PrefillBench._cache_all

    def tokens(bench, models):
        before = sum(fed)
        cache_all(bench, models)
        return float(sum(fed) - before)

    monkeypatch.setattr(PrefillBench, "_cache_all", tokens)
    settings = PassSettings(("paged",), (3,), (), num_speculative_tokens=2, context_tokens=5, repeats=2)
    _, prefill = measure_passes(llama, settings, prompts=ROWS)
    assert (prefill.pass_name, prefill.ms, prefill.instead_ms) == ("prefill", 7000, 12000)
    assert prefill.gain == prefill.gain_min == prefill.gain_max == 12 / 7


def test_of_two_passes_the_one_that_comes_first_changes_from_repeat_to_repeat(llama, monkeypatch):
    """Where a pass that comes after another comparison takes a second more, as the processor's cache holds others."""
    runs, order = ["packed", "rectangle", "mixed", "chunk", "mixed"], []

    def seconds(passes, run):
        order.append(run.func.__name__)
        place = (len(order) - 1) % len(runs)
        return 2.0 if place in (0, 2) else 1.0

    monkeypatch.setattr(PassBench, "seconds", seconds)
    settings = PassSettings(("inplace",), (2,), (4,), num_speculative_tokens=2, context_tokens=5, repeats=4)
    packed, mixed = measure_passes(llama, settings)
    repeats = [order[i : i + len(runs)] for i in range(0, len(order), len(runs))]
    assert repeats == [runs, ["rectangle", "packed", "chunk", "mixed", "mixed"]] * 3
    assert (packed.ms, packed.instead_ms, packed.gain, packed.gain_min, packed.gain_max) == (1500, 1500, 1.25, 0.5, 2)
    assert (mixed.gain_min, mixed.gain_max) == (1, 3)


def test_packed_passes_are_timed_without_chunks_too(llama):
    settings = PassSettings(("paged",), (2,), (), num_speculative_tokens=2, context_tokens=5, repeats=1)
    assert [row.pass_name for row in measure_passes(llama, settings)] == ["packed"]


def test_the_command(monkeypatch, capsys, tmp_path):
    report = tmp_path / "report.json"
    few = ["--batch-sizes", "2", "--chunk-tokens", "4,8", "--repeats", "1", "--context-tokens", "6", "-k", "2"]
    monkeypatch.setattr(sys, "argv", ["raggedspec", "bench-passes", *few, "--output", str(report), "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    whats = [("packed", 0), ("mixed", 4), ("mixed", 8), ("prefill", 0)]
    assert [(row["layout"], row["pass_name"], row["chunk_tokens"]) for row in rows] == [
        (layout, *what) for layout in ("inplace", "paged") for what in whats
    ]
    assert all(0 < row["gain_min"] <= row["gain"] <= row["gain_max"] for row in rows)
    assert json.loads(report.read_text())["meta"]["settings"]["chunk_tokens"] == [4, 8]


def test_a_prefill_of_fewer_prompts_than_rows_is_refused(llama):
    with pytest.raises(InputError, match="4 rows need as many prompts, there are 3"):
        measure_passes(llama, PassSettings(batch_sizes=(2, 4)), prompts=ROWS)


def test_a_target_without_packed_passes_and_rows_without_drafts_are_refused(llama, monkeypatch):
    with pytest.raises(InputError, match="k must be above 0"):
        measure_passes(llama, PassSettings(num_speculative_tokens=0))
    monkeypatch.setattr(llama.target, "forward_packed", None)
    with pytest.raises(InputError, match="runs no packed passes"):
        passes_of(llama, "inplace")
