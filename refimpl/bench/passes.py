"""Passes by themselves: packed rows beside a rectangle, rows with a chunk of a prompt beside the two passes apart, and
prompts packed beside prompts padded.

Nothing is committed, so a pass can run again and again on the same cached tokens. Its seconds include making its block,
as those of a round do.
"""

import random
import statistics
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from refimpl.bench.prefill import PrefillBench
from refimpl.bench.settings import random_prompts, spread
from refimpl.core.config import make_config
from refimpl.core.errors import require
from refimpl.decoding.cached import CachedModel, last_tokens
from refimpl.decoding.engine import Engine
from refimpl.decoding.prefill import Chunks, packed_chunks, prefill_chunks
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.store import Block
from refimpl.models.adapter import Pair
from refimpl.requests import prepare
from refimpl.scheduling import Chunk

SCHEDULER = "continuous"
WARM_UPS = 2
Run = Callable[[], None]
Timed = Callable[[], float]  # runs a pass and returns its seconds
Comparison = tuple[list[Timed], list[Timed]]  # passes, and those that they replace
Name = tuple[str, int]  # of a comparison: the pass, and tokens of its chunk
Seconds = dict[Name, tuple[float, float]]  # of the passes, and of those that they replace


class PassBench:
    """Rows that decode, and a prompt of which some tokens are cached: passes over them, whole or in part.

    Args:
        pair: the models.
        method: a layout and the scheduler `continuous`.
        rows: tokens of the rows.
        prompt: tokens that chunks are taken from.
        start: how many of them count as cached.
        num_speculative_tokens: drafts of a row, at most.
        checks: level of the engine's run-time checks.

    Raises:
        InputError: the K/V do not fit, a row has one token, or the target runs no packed passes.
    """

    def __init__(
        self,
        pair: Pair,
        method: str,
        rows: Seq[list[int]],
        prompt: list[int],
        start: int,
        *,
        num_speculative_tokens: int,
        checks: str,
    ):
        prompts, span = [*rows, prompt], num_speculative_tokens + 1
        require(min(map(len, rows)) > 1, "a row needs at least two tokens: all but the last are cached")
        config = make_config(
            method=method, batch_size=len(prompts), num_speculative_tokens=num_speculative_tokens,
            max_new_tokens=span + 1, stop_token_ids=[], checks=checks, prefix_sharing=False,
            token_budget=sum(map(len, prompts)) + len(prompts) * span,
        )  # fmt: skip
        require_packed(pair)
        self.engine = Engine(pair, prepare(pair, prompts, config), config)
        self.engine.run_one_round()  # caches all prompts
        *self.rows, self.prompt = self.engine.sequences
        self.engine.scheduler.room.reserve(self.rows)
        self.target, self.draft = self.engine.context.models
        for cached in (self.target, self.draft):
            cached.note_cached(self.prompt, start)

    @torch.inference_mode()
    def stages(self, run: Run) -> tuple[float, float]:
        """Seconds of chunks in passes of their own, and of verify passes."""
        self.engine.timer.take()
        run()
        stage_s = self.engine.timer.take()
        return stage_s["prefill_s"], stage_s["verify_s"]

    def seconds(self, run: Run) -> float:
        """Seconds that passes take."""
        return sum(self.stages(run))

    def rectangle(self, counts: Seq[int]) -> None:
        """Row i feeds `counts[i]` tokens, and pads up to the most of them."""
        self._verify(counts, lambda block: self.target.forward(block, max(counts)))

    def packed(self, counts: Seq[int]) -> None:
        """Row i feeds `counts[i]` tokens, and no pads."""
        forward = self.target.forward_packed
        assert forward is not None
        self._verify(counts, lambda block: forward(PackedBlock.of_rows(block, counts), sum(counts)))

    def mixed(self, counts: Seq[int], tokens: int) -> None:
        """As a round of the engine feeds `counts[i]` tokens of row i, with so many of the prompt beside."""
        target, chunks = self.target, self._chunks(tokens)
        self._verify(counts, lambda block: target.forward_rows(block, counts, packed_chunks(target, chunks)))

    def chunk(self, cached: CachedModel, tokens: int) -> None:
        """So many tokens of the prompt in a pass of their own."""
        prefill_chunks(cached, self._chunks(tokens))

    def of_round(self, counts: Seq[int], tokens: int) -> None:
        """The passes of a round that a chunk has a part in: the verify pass, and the draft's pass over the chunk."""
        self.mixed(counts, tokens)
        self.chunk(self.draft, tokens)

    def _verify(self, counts: Seq[int], forward: Callable[[Block], object]) -> None:
        target, q = self.target, max(counts)
        target.begin(self.rows, span=q)
        with target.timer.stage("verify"):
            tokens = last_tokens(self.rows, 1, target.layout.shape.device).expand(-1, q)
            forward(target.block(tokens, -1, [tokens[:, 1:]]))

    def _chunks(self, tokens: int) -> Chunks:
        return [Chunk(self.prompt, tokens)] if tokens else ()


def require_packed(pair: Pair) -> None:
    """Raise InputError where the target runs rectangles only, so that chunks are fed in passes of their own."""
    require(pair.target.forward_packed is not None, f"the target of {pair.name} runs no packed passes")


@dataclass(frozen=True, slots=True)
class PassSettings:
    """What is timed.

    Attributes:
        layouts: where K/V are stored.
        batch_sizes: rows.
        chunk_tokens: of a prompt, beside the rows.
        num_speculative_tokens: drafts of a row beside a chunk; of a packed pass, rows draw from 1 to so many.
        context_tokens: of every row.
        repeats: of every pass, in turn.
        seed: of prompts and of the numbers of drafts.
    """

    layouts: tuple[str, ...] = ("inplace", "paged")
    batch_sizes: tuple[int, ...] = (8, 32)
    chunk_tokens: tuple[int, ...] = (64, 256)
    num_speculative_tokens: int = 8
    context_tokens: int = 100
    repeats: int = 20
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PassRow:
    """A pass beside what it replaces; medians over repeats.

    Attributes:
        layout: where K/V are stored.
        batch_size: rows that decode.
        pass_name: ``packed``: rows with different numbers of drafts, without pads; instead of a rectangle. ``mixed``:
            rows that all draft alike, and a chunk of a prompt; instead of a pass each. ``prefill``: prompts that enter
            together, without pads; instead of pads up to the longest. It is of both models, the others of the target.
        chunk_tokens: of the prompt beside rows; 0 where there is none.
        ms: of the pass.
        instead_ms: of what it replaces.
        gain: `instead_ms` over `ms`, within a repeat.
        gain_min, gain_max: least and most of them.
    """

    layout: str
    batch_size: int
    pass_name: str
    chunk_tokens: int
    ms: float
    instead_ms: float
    gain: float
    gain_min: float
    gain_max: float


def measure_passes(
    pair: Pair,
    settings: PassSettings,
    progress: Callable[[str, int, int], None] | None = None,
    *,
    prompts: Seq[list[int]] = (),
) -> list[PassRow]:
    """Time passes and what they replace, in turn, the other way round in every other repeat.

    Args:
        pair: the models.
        settings: what is timed.
        progress: called with (layout and rows, finished, all) after each repeat.
        prompts: token ids; as many as rows enter together, evenly spaced. Without them there is no prefill.

    Raises:
        InputError: the rows do not fit, the prompts are fewer, or the target runs no packed passes.
    """
    require(settings.num_speculative_tokens > 0, "rows of a packed pass draw their drafts from 1 on: k must be above 0")
    most = max(settings.batch_sizes)
    require(not prompts or len(prompts) >= most, f"{most} rows need as many prompts, there are {len(prompts)}")
    rows = []
    for layout, size in product(settings.layouts, settings.batch_sizes):
        passes, rng, samples = _passes(pair, layout, size, settings), random.Random(settings.seed), []
        prefill = _prefill(pair, layout, spread(prompts, size))
        for repeat in range(WARM_UPS + settings.repeats):
            samples.append(_repeat(_comparisons(passes, size, settings, rng) | prefill, bool(repeat % 2)))
            if progress:
                progress(f"{layout}, {size} rows", repeat + 1, WARM_UPS + settings.repeats)
        rows += [_row(layout, size, *name, [each[name] for each in samples[WARM_UPS:]]) for name in samples[0]]
    return rows


def _passes(pair: Pair, layout: str, size: int, settings: PassSettings) -> PassBench:
    texts = random_prompts(pair, size, settings.context_tokens, settings.seed)
    (prompt,) = random_prompts(pair, 1, max(settings.chunk_tokens, default=0) + 1, settings.seed)
    k = settings.num_speculative_tokens
    return PassBench(pair, f"{layout}+{SCHEDULER}", texts, prompt, 0, num_speculative_tokens=k, checks="off")


def _prefill(pair: Pair, layout: str, prompts: Seq[list[int]]) -> dict[Name, Comparison]:
    """Caching the prompts each way."""
    if not prompts:
        return {}
    bench = PrefillBench(pair, layout, prompts, checks="off")
    return {("prefill", 0): ([bench.packed], [bench.padded])}


def _comparisons(passes: PassBench, size: int, settings: PassSettings, rng: random.Random) -> dict[Name, Comparison]:
    """Passes over rows, the packed one with drafts drawn anew."""
    k = settings.num_speculative_tokens
    drawn, alike = [rng.randint(1, k) + 1 for _ in range(size)], [k + 1] * size

    def timed(run: Callable[..., None], *of: object) -> Timed:
        return partial(passes.seconds, partial(run, *of))

    found = {("packed", 0): ([timed(passes.packed, drawn)], [timed(passes.rectangle, drawn)])}
    for tokens in settings.chunk_tokens:
        apart = [timed(passes.chunk, passes.target, tokens), timed(passes.mixed, alike, 0)]
        found["mixed", tokens] = [timed(passes.mixed, alike, tokens)], apart
    return found


def _repeat(comparisons: dict[Name, Comparison], backwards: bool) -> Seconds:
    """Every pass and what it replaces, once; the other way round where `backwards`.

    The first of two finds a processor's cache filled by larger passes, the second by its like.
    """
    found = {}
    for name, sides in comparisons.items():
        own, instead = (sum(run() for run in runs) for runs in (reversed(sides) if backwards else sides))
        found[name] = (instead, own) if backwards else (own, instead)
    return found


def _row(layout: str, size: int, name: str, chunk_tokens: int, seconds: list[tuple[float, float]]) -> PassRow:
    ms, instead_ms = (1000 * statistics.median(each) for each in zip(*seconds, strict=True))
    gains = [instead / own for own, instead in seconds]
    return PassRow(layout, size, name, chunk_tokens, ms, instead_ms, statistics.median(gains), min(gains), max(gains))
