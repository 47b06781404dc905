"""Where costs are measured: layouts by batch sizes by drafts by prompt lengths, in levels from coarse to fine."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal


@dataclass(frozen=True, slots=True)
class Variant:
    """A way of running rounds that isolates what a layout does.

    Attributes:
        method: layout+scheduler.
        layout: name of its points in the table.
        rotating: the members change every round (twice as many sequences as rows, all of them always due).
        moved: component to which a round's K/V movement is charged; empty if nothing moves.
        only_moves: draft and verify of this layout are measured by another variant, so one k is enough.
        recorded: its rounds are replayed as CUDA graphs.
        passes: which passes are timed by themselves, instead of rounds: ``"mixed"``, with a chunk of a prompt beside
            the rows, or ``"packed"``, whose rows feed different numbers of tokens, in turn with even ones.
    """

    method: str
    layout: str
    rotating: bool = False
    moved: str = ""
    only_moves: bool = False
    recorded: bool = False
    passes: Literal["", "mixed", "packed"] = ""


IN_PLACE = Variant("inplace+fifo", "inplace")
VARIANTS = (
    Variant("realigned+fifo", "realigned", moved="realign"),
    Variant("realigned+grouped", "realigned", rotating=True, moved="concat", only_moves=True),
    Variant("masked+fifo", "masked", moved="compact"),
    Variant("masked+grouped", "masked", rotating=True, moved="concat", only_moves=True),
    IN_PLACE,
    Variant("inplace+grouped", "inplace_scattered", rotating=True),
    Variant("paged+fifo", "paged"),
)
RECORDED = Variant("inplace+fifo", "inplace_recorded", recorded=True)
MIXED = (
    Variant("inplace+continuous", "any", passes="mixed"),  # a chunk is written straight into the pool, with any layout
    Variant("paged+continuous", "paged", passes="mixed"),
)
PACKED = Variant("inplace+continuous", "any", passes="packed")
MIXED_ROW_TOKENS, MIXED_DRAFTS = 64, 3  # of the rows beside a chunk


@dataclass(frozen=True, slots=True)
class MixedAxes:
    """Values of a grid of mixed passes.

    Attributes:
        batch_sizes: rows beside the chunk.
        chunk_tokens: tokens of the chunk, from 0 on: what a chunk adds is told from the pass without.
        starts: tokens of its prompt that are cached before it.
    """

    batch_sizes: tuple[int, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PackedAxes:
    """Values of a grid of packed passes.

    Attributes:
        batch_sizes: rows, an even number: one half of them feeds a token more than the mean, the other a token less.
        tokens: that a row feeds on average.
        contexts: tokens of every row.
    """

    batch_sizes: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Axes:
    """Values of a grid.

    Attributes:
        batch_sizes: rows.
        drafts: values of k, from 0 on.
        prompt_lens: tokens that a row has before the timed rounds.
        prefill_lens: longest prompt of a prefill.
        moving_drafts: the k of variants that are there only for their moves.
        mixed: of passes that feed chunks of prompts beside rows that decode.
        packed: of passes whose rows feed different numbers of tokens.
        recorded: whether recorded rounds are measured, too.
    """

    batch_sizes: tuple[int, ...]
    drafts: tuple[int, ...]
    prompt_lens: tuple[int, ...]
    prefill_lens: tuple[int, ...]
    moving_drafts: int
    mixed: MixedAxes = MixedAxes()
    packed: PackedAxes = PackedAxes()
    recorded: bool = False

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        chunked = max(self.mixed.starts, default=0) + max(self.mixed.chunk_tokens, default=0) + 1
        return max(*self.prompt_lens, *self.prefill_lens, *self.packed.contexts, chunked, MIXED_ROW_TOKENS)


@dataclass(frozen=True, slots=True)
class Cell:
    """What one visit measures: rounds of a variant for each of `drafts`; only the prefill without a variant.

    Of mixed passes, `drafts` are the tokens of a chunk beside the rows, and `prompt_len` those cached before it; of
    packed ones, `drafts` are the tokens that a row feeds on average.
    """

    variant: Variant | None
    batch_size: int
    drafts: tuple[int, ...]
    prompt_len: int

    def __str__(self) -> str:
        values = ", ".join(map(str, self.drafts))
        if self.variant and self.variant.passes:
            fed = f"chunks of {values} tokens" if self.variant.passes == "mixed" else f"packed, {values} tokens a row,"
            return f"{self.variant.method}: {self.batch_size} rows, {fed} after {self.prompt_len}"
        what = self.variant.method if self.variant else "prefill"
        what = f"recorded {what}" if self.variant and self.variant.recorded else what
        drafts = f" with k = {values}" if self.variant else ""
        return f"{what} of {self.batch_size} rows of {self.prompt_len} tokens{drafts}"

    @property
    def num_sequences(self) -> int:
        """Sequences with K/V during the visit."""
        if self.variant and self.variant.passes:
            return self.batch_size + 1
        return self.batch_size * (2 if self.variant and self.variant.rotating else 1)


def cells_of(axes: Axes) -> Iterator[Cell]:
    """Every place of a grid. In place, one row is always in neighbouring slots."""
    variants = (*VARIANTS, *([RECORDED] if axes.recorded else []))
    for variant, rows, length in product(variants, axes.batch_sizes, axes.prompt_lens):
        yield Cell(variant, rows, (axes.moving_drafts,) if variant.only_moves else axes.drafts, length)
    for rows, length in product(axes.batch_sizes, axes.prefill_lens):
        yield Cell(None, rows, (1,), length)
    for variant, rows, start in product(MIXED, axes.mixed.batch_sizes, axes.mixed.starts):
        yield Cell(variant, rows, axes.mixed.chunk_tokens, start)
    for rows, length in product(axes.packed.batch_sizes, axes.packed.contexts):
        yield Cell(PACKED, rows, axes.packed.tokens, length)


CPU_MIXED = MixedAxes((1, 4, 8), (0, 16, 64, 160, 320), (0, 320))
CPU_PACKED = PackedAxes((2, 4, 8, 32), (1, 2, 4, 7), (30, 300))
CPU = (Axes((1, 2, 4, 8, 32), (0, 1, 2, 3, 6), (2, 100, 300), (2, 16, 64, 160, 320), 3, CPU_MIXED, CPU_PACKED),)
CUDA = (
    Axes(
        (1, 2, 8, 32),
        (0, 5),
        (16, 1024),
        (16, 256, 1024),
        5,
        MixedAxes((1, 64), (0, 64, 1024), (0, 2048)),
        PackedAxes((2, 32), (1, 6), (1024,)),
        recorded=True,
    ),
    Axes(
        (1, 2, 8, 32, 64),
        (0, 1, 5, 16),
        (16, 1024, 4096),
        (16, 64, 256, 1024, 4096),
        5,
        MixedAxes((1, 8, 64), (0, 64, 1024), (0, 2048)),
        PackedAxes((2, 8, 32, 64), (1, 6, 17), (16, 1024)),
        recorded=True,
    ),
    Axes(
        (1, 2, 4, 8, 16, 32, 64),
        (0, 1, 3, 5, 8, 16),
        (16, 256, 1024, 4096, 8000),
        (16, 64, 256, 1024, 4096, 8000),
        5,
        MixedAxes((1, 8, 64), (0, 64, 1024), (0, 2048, 6900)),
        PackedAxes((2, 8, 32, 64), (1, 6, 17), (16, 1024, 4096)),
        recorded=True,
    ),
)


def levels_of(grids: tuple[Axes, ...]) -> list[list[Cell]]:
    """Cells of each level, without what coarser levels have measured."""
    done: dict[tuple[Variant | None, int, int], set[int]] = {}
    levels = []
    for axes in grids:
        level = []
        for cell in cells_of(axes):
            have = done.setdefault((cell.variant, cell.batch_size, cell.prompt_len), set())
            new = tuple(k for k in cell.drafts if k not in have)
            have.update(new)
            if new:
                level.append(Cell(cell.variant, cell.batch_size, new, cell.prompt_len))
        levels.append(level)
    return levels
