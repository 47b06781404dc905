"""A round preserves INV-1 … INV-6 in the left-padded, masked and in-place layouts: any batch, lengths, k, acceptance.

Each claim is about one arbitrary column, position or pair of columns; hypotheses about the store before the round
are instances, at that very place, of the invariant that the round before has left behind.
"""

from collections.abc import Iterator
from functools import partial
from types import ModuleType

import z3

from proofs.z3.lengths import draft_cache
from proofs.z3.obligation import Obligation
from proofs.z3.row import COLUMN, OTHER, POSITION, QUERY, ROW, between, claim, store


def obligations(kernels: ModuleType) -> list[Obligation]:
    """All claims about the layouts' kernels."""
    left_padded, masked, inplace = LeftPadded(kernels), Masked(kernels), Inplace(kernels)
    return [
        *(*left_padded.places(), *left_padded.visibility(), *left_padded.realignment()),
        *(*masked.block(), *masked.tokens(), *masked.compaction()),
        *(*inplace.visibility(), *inplace.tokens()),
        *window(kernels),
        *draft_cache(kernels),
    ]


def window(kernels: ModuleType) -> Iterator[Obligation]:
    """What a layer with a window sees of the positions up to its query's."""
    size = z3.Int("size")
    yield claim(
        "window",
        "a query sees as many positions as the window holds, its own the last (INV-3)",
        [COLUMN >= 0, COLUMN <= QUERY, size >= 1],
        kernels.in_window(COLUMN, QUERY, size) == (size >= QUERY - COLUMN + 1),
    )
    yield claim(
        "window",
        "a query sees nothing in front of the start of its own window or of an earlier query's (INV-26)",
        [OTHER <= QUERY, kernels.window_start(OTHER, size) > COLUMN, size >= 1],
        z3.Not(kernels.in_window(COLUMN, QUERY, size)),
    )


class LeftPadded:
    """The `realigned` and `rollback` layouts: a verify block at the common end, then realignment."""

    _claim = staticmethod(partial(claim, "left-padded"))

    def __init__(self, kernels: ModuleType):
        self.kernels, self.before = kernels, store("before")
        self.pads = kernels.num_pad(ROW.width, ROW.seq_len)
        self.real_pads = ROW.width - ROW.seq_len
        self.query_column = ROW.width - 1 + QUERY
        self.in_block = between(0, QUERY, ROW.k + 1)

    def verified(self, column: z3.ArithRef) -> z3.ArithRef:
        """The store after the verify pass."""
        fed = ROW.fed(self.kernels.left_padded_position(column, self.pads))
        return z3.If(between(ROW.width - 1, column, ROW.width + ROW.k), fed, self.before(column))

    def cached_before(self, column: z3.ArithRef) -> z3.BoolRef:
        """What the round before has left behind in a column."""
        return z3.Implies(
            between(self.real_pads, column, self.real_pads + ROW.seq_len - 1),
            self.before(column) == ROW.text(column - self.real_pads),
        )

    def places(self) -> Iterator[Obligation]:
        """Which position stands where."""
        p, pads, real_pads, kernels = POSITION, self.pads, self.real_pads, self.kernels
        yield self._claim("rows are rectangular (INV-1)", [], z3.And(pads + ROW.seq_len == ROW.width, pads >= 0))
        yield self._claim(
            "position p stands in column width - seq_len + p and back (INV-2)",
            [between(0, p, ROW.seq_len + ROW.k)],
            z3.And(
                kernels.left_padded_column(p, pads) == real_pads + p,
                kernels.left_padded_position(real_pads + p, pads) == p,
            ),
        )
        yield self._claim(
            "the verify block stands at positions seq_len - 1 … seq_len + k - 1 (INV-2)",
            [self.in_block],
            kernels.left_padded_position(self.query_column, pads) == ROW.seq_len - 1 + QUERY,
        )

    def visibility(self) -> Iterator[Obligation]:
        """What a query sees, and what is there."""
        c, t, kernels = COLUMN, QUERY, self.kernels
        given, sees = [self.in_block, c >= 0], kernels.visible_left_padded(c, self.query_column, self.pads)
        position = c - self.real_pads
        yield self._claim(
            "a query sees its row's positions up to its own and nothing else (INV-3)",
            given,
            sees == z3.And(position >= 0, position <= ROW.seq_len - 1 + t),
        )
        yield self._claim(
            "every real query sees itself (INV-3)",
            [self.in_block],
            kernels.visible_left_padded(self.query_column, self.query_column, self.pads),
        )
        yield self._claim(
            "every visible column holds the token of the position it claims (INV-4)",
            [*given, sees, self.cached_before(c)],
            self.verified(c) == ROW.fed(position),
        )

    def realignment(self) -> Iterator[Obligation]:
        """The rectangle after the commit."""
        c, p, kernels = COLUMN, POSITION, self.kernels
        new_pads = kernels.num_pad(ROW.new_width, ROW.new_len)
        shift = kernels.realign_shift(self.pads, new_pads)
        source = kernels.realign_source(ROW.new_width - ROW.new_len + p, shift)
        cached_after = between(0, p, ROW.new_len - 1)
        yield self._claim(
            "realignment gathers from written columns (INV-4)", [cached_after], between(0, source, ROW.width + ROW.k)
        )
        yield self._claim(
            "after realignment every cached position holds its token (INV-4, INV-5)",
            [cached_after, self.cached_before(source)],
            self.verified(source) == ROW.committed(p),
        )
        rectangular = z3.And(new_pads >= 0, new_pads + ROW.new_len == ROW.new_width)
        yield self._claim("after realignment the rows are rectangular (INV-1)", [], rectangular)
        yield self._claim(
            "where every row keeps the same number of tokens nothing moves",
            [ROW.new_width == ROW.width + ROW.accepted + 1],
            z3.And(shift == 0, kernels.realign_source(c, shift) == c),
        )


class Masked:
    """The `masked` layout: a slot knows its position or is dead. A block of any size is appended anywhere."""

    _claim = staticmethod(partial(claim, "masked"))

    def __init__(self, kernels: ModuleType):
        self.kernels, self.before, self.claims = kernels, store("before"), store("claims")
        self.start, self.first, self.cached, self.size = z3.Ints("start first cached size")
        self.given = [
            self.first <= self.cached,
            between(0, self.cached, ROW.seq_len),
            self.size >= 1,
            self.start >= 0,
            self.tidy(COLUMN),
            self.tidy(OTHER),
        ]

    def in_block(self, column: z3.ArithRef) -> z3.BoolRef:
        """Whether a column is written."""
        return between(self.start, column, self.start + self.size)

    def position_of(self, column: z3.ArithRef) -> z3.ArithRef:
        """The position that is fed there."""
        return self.first + column - self.start

    def new_claims(self, column: z3.ArithRef) -> z3.ArithRef:
        """The position that a slot claims after the block."""
        position = self.position_of(column)
        fresh = self.kernels.masked_slot_position(position, self.cached, position + 1)
        return z3.If(self.in_block(column), fresh, self.claims(column))

    def new_store(self, column: z3.ArithRef) -> z3.ArithRef:
        """The store after the block."""
        return z3.If(self.in_block(column), ROW.fed(self.position_of(column)), self.before(column))

    def tidy(self, column: z3.ArithRef) -> z3.BoolRef:
        """Old slots claim cached positions only, and nothing stands where the block goes."""
        claims = self.claims
        return z3.And(
            claims(column) < self.cached,
            z3.Implies(column >= self.start, claims(column) < 0),
            z3.Implies(claims(column) >= 0, self.before(column) == ROW.text(claims(column))),
        )

    def killed(self, column: z3.ArithRef) -> z3.ArithRef:
        """The position that a slot claims after the commit."""
        claimed = self.new_claims(column)
        return self.kernels.masked_slot_position(claimed, claimed * 0, ROW.new_len - 1)

    def block(self) -> Iterator[Obligation]:
        """Which position a slot claims while and after a block is fed."""
        c, d, p, t, claims, new_claims = COLUMN, OTHER, POSITION, QUERY, self.claims, self.new_claims
        unique_before = z3.Implies(z3.And(c != d, claims(c) >= 0), claims(c) != claims(d))
        yield self._claim(
            "a query sees the live slots up to its position (INV-3)",
            [claims(c) >= -1, t >= 0],
            self.kernels.visible_by_position(claims(c), t) == z3.And(claims(c) != -1, claims(c) <= t),
        )
        yield self._claim(
            "no position is claimed twice after a block (INV-3)",
            [*self.given, unique_before, c != d, new_claims(c) >= 0],
            new_claims(c) != new_claims(d),
        )
        yield self._claim(
            "a block claims every position from the cached ones to its end (INV-3)",
            [*self.given, between(self.cached, p, self.first + self.size)],
            new_claims(self.start + p - self.first) == p,
        )
        fresh_or_dead = z3.Or(new_claims(c) == -1, new_claims(c) >= self.cached)
        yield self._claim(
            "a slot outside the block keeps its claim, and the block claims nothing cached (INV-3)",
            self.given,
            z3.If(self.in_block(c), fresh_or_dead, new_claims(c) == claims(c)),
        )

    def tokens(self) -> Iterator[Obligation]:
        """What stands in a slot, and what is left of it after the commit."""
        c, t, new_claims, killed = COLUMN, QUERY, self.new_claims, self.killed
        fits, kept = self.first + self.size <= ROW.seq_len + ROW.k, between(0, new_claims(c), ROW.new_len - 1)
        yield self._claim(
            "every visible slot holds the token of the position it claims (INV-4)",
            [*self.given, fits, self.kernels.visible_by_position(new_claims(c), t)],
            self.new_store(c) == ROW.fed(new_claims(c)),
        )
        yield self._claim(
            "after the commit a slot is live exactly when its token was kept (INV-4, INV-5)",
            self.given,
            z3.And(z3.Implies(kept, killed(c) == new_claims(c)), z3.Implies(z3.Not(kept), killed(c) == -1)),
        )
        yield self._claim(
            "a kept slot holds the committed token of its position (INV-4)",
            [*self.given, fits, killed(c) >= 0],
            self.new_store(c) == ROW.committed(killed(c)),
        )

    def compaction(self) -> Iterator[Obligation]:
        """A rectangle without holes."""
        c, cached, longest = COLUMN, self.cached, z3.Int("longest")
        position = self.kernels.left_padded_position(c, longest - cached)
        compacted = self.kernels.masked_slot_position(position, position * 0, cached)
        yield self._claim(
            "compaction gives the last columns to the cached positions, in order, and kills the rest (INV-2, INV-3)",
            [between(0, c, longest), between(0, cached, longest + 1)],
            compacted == z3.If(c >= longest - cached, c - (longest - cached), -1),
        )
        yield self._claim(
            "columns beyond a compacted batch are dead (INV-3)",
            [c >= longest, between(0, cached, longest + 1)],
            compacted == -1,
        )


class Inplace:
    """The `inplace` layout: position p in column p, rejected slots overwritten before they are visible."""

    _claim = staticmethod(partial(claim, "inplace"))

    def __init__(self, kernels: ModuleType):
        self.kernels, self.before = kernels, store("before")
        self.in_block = between(0, QUERY, ROW.k + 1)
        self.sees = kernels.visible_by_position(COLUMN, ROW.seq_len - 1 + QUERY)

    def verified(self, column: z3.ArithRef) -> z3.ArithRef:
        """The store after the verify pass."""
        written = between(ROW.seq_len - 1, column, ROW.seq_len + ROW.k)
        return z3.If(written, ROW.fed(column), self.before(column))

    def visibility(self) -> Iterator[Obligation]:
        """What a query sees."""
        c, t = COLUMN, QUERY
        yield self._claim(
            "a query sees the columns up to its position (INV-3)",
            [self.in_block, c >= 0],
            self.sees == (c <= ROW.seq_len - 1 + t),
        )
        yield self._claim(
            "no stale entry is visible: what a query sees was cached or has just been written (INV-3)",
            [self.in_block, self.sees],
            z3.Or(between(0, c, ROW.seq_len - 1), between(ROW.seq_len - 1, c, ROW.seq_len + ROW.k)),
        )

    def tokens(self) -> Iterator[Obligation]:
        """What stands in a column in the round, after it, and in the next one."""
        c, p, t = COLUMN, POSITION, QUERY
        cached_before = z3.Implies(between(0, c, ROW.seq_len - 1), self.before(c) == ROW.text(c))
        yield self._claim(
            "every visible column holds its position's token (INV-4)",
            [self.in_block, self.sees, cached_before],
            self.verified(c) == ROW.fed(c),
        )
        yield self._claim(
            "with nothing moved, what the last cached position sees is the text after the round (INV-4, INV-5)",
            [c >= 0, self.kernels.visible_by_position(c, ROW.new_len - 2), cached_before],
            self.verified(c) == ROW.committed(c),
        )
        visible = self.kernels.visible_by_position(c, p)
        yield self._claim(
            "rejected entries stand where the next block writes or beyond every query of it (INV-4)",
            [c >= ROW.new_len - 1, between(0, p, ROW.new_len + t), t >= 0, visible],
            between(ROW.new_len - 1, c, ROW.new_len + t),
        )
