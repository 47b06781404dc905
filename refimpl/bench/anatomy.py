"""Anatomy of realignment: one forced acceptance trace through every layout, over batch sizes and contexts.

Forced acceptance depends on sequence and position only, so every layout has to cope with the same ragged lengths (the
`rollback` layout excepted, which commits the batch minimum). For each run it is counted how often K/V move, how many
bytes that reads and writes, and how long it takes; `per_row` adds the published way of moving them.
"""

import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch

from refimpl.bench.anatomy_rows import AnatomyRow, AnatomyRun, Scaling, make_row, scalings
from refimpl.bench.per_row import layers_of, num_operations, ragged_plan, realign_row_by_row
from refimpl.bench.probe import measure_rates, median_seconds
from refimpl.bench.settings import random_prompts
from refimpl.bench.work import Rates
from refimpl.core.config import forced, make_config, resolve_method
from refimpl.core.errors import InputError
from refimpl.decoding.engine import Engine
from refimpl.decoding.trace import RoundRecord
from refimpl.layouts.store import KVStore
from refimpl.models.adapter import Pair
from refimpl.requests import prepare

METHODS = ("eqspec", "exspec", "masked", "rollback", "inplace")
PER_ROW = "per_row"
RAGGED_TOKENS = 16  # prompts differ by fewer tokens than this


@dataclass(frozen=True, slots=True)
class AnatomySettings:
    """What the runs share.

    Attributes:
        batch_sizes, contexts: every combination runs; a context is the longest prompt, in tokens.
        methods: layouts with their schedulers.
        forced_lengths: probabilities of 0 … k accepted drafts.
        rounds, warm_rounds: timed rounds of a run, after some that are not.
        repeats: interleaved runs of everything.
        checks: level of the run-time checks.
        seed: of the prompts.
    """

    forced_lengths: tuple[float, ...]
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8)
    contexts: tuple[int, ...] = (64, 256)
    methods: tuple[str, ...] = METHODS
    num_speculative_tokens: int = 5
    rounds: int = 16
    warm_rounds: int = 3
    repeats: int = 2
    checks: str = "host"
    seed: int = 0


Found = tuple[list[AnatomyRow], list[Scaling], Rates]


def run_anatomy(
    pair: Pair,
    settings: AnatomySettings,
    progress: Callable[[str, int, int], None] | None = None,
    save: Callable[[Found], object] | None = None,
) -> Found:
    """Measure every method at every batch size and context, interleaved.

    Args:
        pair: the models.
        settings: see there.
        progress: called with (label, finished, all).
        save: given what was found so far, after each batch size and context.

    Raises:
        InputError: a context that the models do not have, an impossible setting, or nothing to measure.
    """
    _require_room(pair, settings)
    if not any(_methods_at(settings, size) for size in settings.batch_sizes):
        raise InputError("no method to measure: autoregressive has no rounds, speculative runs at batch size 1 only")
    rates = measure_rates(pair.device, pair.dtype)
    places = [(size, context) for size in settings.batch_sizes for context in settings.contexts]
    runs: dict[tuple[str, int, int], list[AnatomyRun]] = defaultdict(list)
    for repeat in range(settings.repeats):
        for done, (size, context) in enumerate(places, start=1):
            for method in _methods_at(settings, size):
                runs[method, size, context].append(_run(pair, settings, method, size, context))
            if "eqspec" in settings.methods:
                runs[PER_ROW, size, context].append(_per_row(pair, settings, size, context, runs))
            if progress:
                progress("anatomy", repeat * len(places) + done, len(places) * settings.repeats)
            if save:
                save(_found(runs, rates))
    return _found(runs, rates)


def _methods_at(settings: AnatomySettings, batch_size: int) -> list[str]:
    """Methods that run at a batch size; one with a size of its own runs at no other."""
    return [name for name in settings.methods if resolve_method(name).batch_size in (None, batch_size)]


def _found(runs: dict[tuple[str, int, int], list[AnatomyRun]], rates: Rates) -> Found:
    rows = [make_row(*key, samples, rates) for key, samples in runs.items()]
    return rows, scalings(rows), rates


def _require_room(pair: Pair, settings: AnatomySettings) -> None:
    most = min(model.max_positions for model in pair.models()) - _budget(settings)
    if max(settings.contexts) > most:
        raise InputError(
            f"{settings.rounds} rounds of {settings.num_speculative_tokens} drafts behind a context of "
            f"{max(settings.contexts)} tokens do not fit the models' {most + _budget(settings)}: ask for fewer"
        )
    if min(settings.contexts) <= RAGGED_TOKENS:
        raise InputError(f"a context must be longer than {RAGGED_TOKENS} tokens, not {min(settings.contexts)}")


def _budget(settings: AnatomySettings) -> int:
    """New tokens that no row can exhaust, also where rows wait for another window."""
    return (settings.rounds + settings.warm_rounds + 1) * (settings.num_speculative_tokens + 1)


def _run(pair: Pair, settings: AnatomySettings, method: str, batch_size: int, context: int) -> AnatomyRun:
    """Decode some rounds; rows are chosen from a window of twice as many."""
    config = make_config(
        method=method, batch_size=batch_size, num_speculative_tokens=settings.num_speculative_tokens,
        max_new_tokens=_budget(settings), stop_token_ids=(), checks=settings.checks,
        acceptance=forced(settings.forced_lengths),
    )  # fmt: skip
    count = batch_size * (2 if config.scheduler_facts.windowed else 1)
    engine = Engine(pair, prepare(pair, _prompts(pair, count, context, settings.seed), config), config)
    for _ in range(settings.warm_rounds):
        engine.run_one_round()
    with counted_bytes() as moved:
        records = [engine.run_one_round() for _ in range(settings.rounds)]
    return _mean_of(records, sum(moved))


def _prompts(pair: Pair, count: int, context: int, seed: int) -> list[list[int]]:
    """Random prompts, the first of `context` tokens, the others up to `RAGGED_TOKENS` shorter."""
    rng = random.Random(seed)
    prompts = random_prompts(pair, count, context, seed)
    return [prompts[0], *(prompt[rng.randrange(RAGGED_TOKENS) :] for prompt in prompts[1:])]


def _mean_of(records: Seq[RoundRecord], num_bytes: int) -> AnatomyRun:
    return AnatomyRun(
        operations=statistics.mean(r.num_moves for r in records),
        num_bytes=num_bytes / len(records),
        realign_s=statistics.mean(r.stage_s["realign_s"] for r in records),
        round_s=statistics.mean(r.stage_s["round_s"] - r.stage_s["prefill_s"] for r in records),
    )


@contextmanager
def counted_bytes() -> Iterator[list[int]]:
    """Yield a list that gets the bytes that each gather and each copy between stores reads and writes."""
    moved: list[int] = []
    gather, copy_slots = KVStore.gather, KVStore.copy_slots

    def counting_gather(store: KVStore, slots: torch.Tensor, memory: torch.Tensor) -> KVStore:
        result = gather(store, slots, memory)
        moved.append(2 * result.num_bytes)
        return result

    def counting_copy(store: KVStore, source: KVStore, source_slots: torch.Tensor, slots: torch.Tensor) -> None:
        copy_slots(store, source, source_slots, slots)
        moved.append(2 * len(slots) * store.shape.bytes_per_token)

    with patch.object(KVStore, "gather", counting_gather), patch.object(KVStore, "copy_slots", counting_copy):
        yield moved


def _per_row(
    pair: Pair,
    settings: AnatomySettings,
    batch_size: int,
    context: int,
    runs: dict[tuple[str, int, int], list[AnatomyRun]],
) -> AnatomyRun:
    """The published way on the target's K/V, as ragged as forced acceptance makes them; the round is eqspec's."""
    shape, rng = pair.target.kv_shape, random.Random(settings.seed)
    kept = rng.choices(range(1, len(settings.forced_lengths) + 1), settings.forced_lengths, k=batch_size)
    layers, plan = layers_of(shape, batch_size, context), ragged_plan(kept, context, shape.device)
    seconds = median_seconds(shape.device, lambda: realign_row_by_row(layers, plan), repeats=3)
    ours = runs["eqspec", batch_size, context][-1]
    num_bytes = 2 * batch_size * context * shape.bytes_per_token
    operations = num_operations(shape.num_layers, batch_size)
    return AnatomyRun(operations, num_bytes, seconds, ours.round_s - ours.realign_s + seconds)
