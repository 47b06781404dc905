"""A round preserves INV-1 … INV-6 in the left-padded, masked and in-place layouts: any batch, lengths, k, acceptance.

Each claim is about one arbitrary column, position or pair of columns; hypotheses about the store before the round
are instances, at that very place, of the invariant that the round before has left behind.
"""

from types import ModuleType

import z3

from proofs.z3.obligation import Obligation
from proofs.z3.row import Row, between, store

ROW = Row()
COLUMN, OTHER, POSITION, QUERY = z3.Ints("column other position query")


def obligations(kernels: ModuleType) -> list[Obligation]:
    """All claims about the layouts' kernels."""
    return [*left_padded(kernels), *masked(kernels), *inplace(kernels), *draft_cache(kernels)]


def left_padded(kernels: ModuleType) -> list[Obligation]:
    """The `realigned` and `rollback` layouts."""
    row, c, p, t = ROW, COLUMN, POSITION, QUERY
    pads = kernels.num_pad(row.width, row.seq_len)
    real_pads = row.width - row.seq_len
    query_column = row.width - 1 + t
    in_block = [between(0, t, row.k + 1), c >= 0]
    sees = kernels.visible_left_padded(c, query_column, pads)

    def claim(name: str, given: list, that: z3.BoolRef, **shown: z3.ExprRef) -> Obligation:
        return Obligation(f"left-padded: {name}", [*row.lengths, *given], that, {**row.shown, **shown})

    before = store("before")

    def verified(column: z3.ArithRef) -> z3.ArithRef:
        return z3.If(
            between(row.width - 1, column, row.width + row.k),
            row.fed(kernels.left_padded_position(column, pads)),
            before(column),
        )

    def cached_before(column: z3.ArithRef) -> z3.BoolRef:
        return z3.Implies(
            between(real_pads, column, real_pads + row.seq_len - 1), before(column) == row.text(column - real_pads)
        )

    new_pads = kernels.num_pad(row.new_width, row.new_len)
    shift = kernels.realign_shift(pads, new_pads)
    target_column = row.new_width - row.new_len + p
    source = kernels.realign_source(target_column, shift)
    cached_after = between(0, p, row.new_len - 1)
    return [
        claim("rows are rectangular (INV-1)", [], z3.And(pads + row.seq_len == row.width, pads >= 0)),
        claim(
            "position p stands in column width - seq_len + p and back (INV-2)",
            [between(0, p, row.seq_len + row.k)],
            z3.And(
                kernels.left_padded_column(p, pads) == real_pads + p,
                kernels.left_padded_position(real_pads + p, pads) == p,
            ),
            position=p,
        ),
        claim(
            "the verify block stands at positions seq_len - 1 … seq_len + k - 1 (INV-2)",
            [between(0, t, row.k + 1)],
            kernels.left_padded_position(query_column, pads) == row.seq_len - 1 + t,
            query=t,
        ),
        claim(
            "a query sees its row's positions up to its own and nothing else (INV-3)",
            in_block,
            sees == z3.And(c - real_pads >= 0, c - real_pads <= row.seq_len - 1 + t),
            column=c,
            query=t,
        ),
        claim(
            "every real query sees itself (INV-3)",
            [between(0, t, row.k + 1)],
            kernels.visible_left_padded(query_column, query_column, pads),
            query=t,
        ),
        claim(
            "every visible column holds the token of the position it claims (INV-4)",
            [*in_block, sees, cached_before(c)],
            verified(c) == row.fed(c - real_pads),
            column=c,
            query=t,
        ),
        claim(
            "realignment gathers from written columns (INV-4)",
            [cached_after],
            between(0, source, row.width + row.k),
            position=p,
            source=source,
        ),
        claim(
            "after realignment every cached position holds its token (INV-4, INV-5)",
            [cached_after, cached_before(source)],
            verified(source) == row.committed(p),
            position=p,
            source=source,
        ),
        claim(
            "after realignment the rows are rectangular (INV-1)",
            [],
            z3.And(new_pads >= 0, new_pads + row.new_len == row.new_width),
        ),
        claim(
            "where every row keeps the same number of tokens nothing moves",
            [row.new_width == row.width + row.accepted + 1],
            z3.And(shift == 0, kernels.realign_source(c, shift) == c),
            column=c,
        ),
    ]


def masked(kernels: ModuleType) -> list[Obligation]:
    """The `masked` layout: a slot knows its position or is dead."""
    row, c, d, p, t = ROW, COLUMN, OTHER, POSITION, QUERY
    start, first, cached, size = z3.Ints("start first cached size")
    before, claims = store("before"), store("claims")
    in_block = lambda column: between(start, column, start + size)  # noqa: E731
    position_of = lambda column: first + column - start  # noqa: E731

    def new_claims(column: z3.ArithRef) -> z3.ArithRef:
        position = position_of(column)
        fresh = kernels.masked_slot_position(position, cached, position + 1)
        return z3.If(in_block(column), fresh, claims(column))

    def new_store(column: z3.ArithRef) -> z3.ArithRef:
        return z3.If(in_block(column), row.fed(position_of(column)), before(column))

    def tidy(column: z3.ArithRef) -> z3.BoolRef:
        """Old slots claim cached positions only, and nothing stands where the block goes."""
        return z3.And(
            claims(column) < cached,
            z3.Implies(column >= start, claims(column) < 0),
            z3.Implies(claims(column) >= 0, before(column) == row.text(claims(column))),
        )

    unique_before = z3.Implies(z3.And(c != d, claims(c) >= 0), claims(c) != claims(d))
    block = [first <= cached, between(0, cached, row.seq_len), size >= 1, start >= 0, tidy(c), tidy(d)]
    committed_cached = row.new_len - 1

    def killed(column: z3.ArithRef) -> z3.ArithRef:
        return kernels.masked_slot_position(new_claims(column), new_claims(column) * 0, committed_cached)

    def claim(name: str, given: list, that: z3.BoolRef, **shown: z3.ExprRef) -> Obligation:
        names = {"cached": cached, "start": start, "first": first, "size": size}
        return Obligation(f"masked: {name}", [*row.lengths, *given], that, {**row.shown, **names, **shown})

    longest = z3.Int("longest")
    compact = kernels.left_padded_position(c, longest - cached)
    return [
        claim(
            "a query sees the live slots up to its position (INV-3)",
            [claims(c) >= -1, t >= 0],
            kernels.visible_by_position(claims(c), t) == z3.And(claims(c) != -1, claims(c) <= t),
            claimed=claims(c),
            query=t,
        ),
        claim(
            "no position is claimed twice after a block (INV-3)",
            [*block, unique_before, c != d, new_claims(c) >= 0],
            new_claims(c) != new_claims(d),
            column=c,
            other=d,
        ),
        claim(
            "a block claims every position from the cached ones to its end (INV-3)",
            [*block, between(cached, p, first + size)],
            new_claims(start + p - first) == p,
            position=p,
        ),
        claim(
            "a slot outside the block keeps its claim, and the block claims nothing cached (INV-3)",
            block,
            z3.If(in_block(c), z3.Or(new_claims(c) == -1, new_claims(c) >= cached), new_claims(c) == claims(c)),
            column=c,
        ),
        claim(
            "every visible slot holds the token of the position it claims (INV-4)",
            [*block, first + size <= row.seq_len + row.k, kernels.visible_by_position(new_claims(c), t)],
            new_store(c) == row.fed(new_claims(c)),
            column=c,
            query=t,
        ),
        claim(
            "after the commit a slot is live exactly when its token was kept (INV-4, INV-5)",
            block,
            z3.And(
                z3.Implies(between(0, new_claims(c), committed_cached), killed(c) == new_claims(c)),
                z3.Implies(z3.Not(between(0, new_claims(c), committed_cached)), killed(c) == -1),
            ),
            column=c,
        ),
        claim(
            "a kept slot holds the committed token of its position (INV-4)",
            [*block, first + size <= row.seq_len + row.k, killed(c) >= 0],
            new_store(c) == row.committed(killed(c)),
            column=c,
        ),
        claim(
            "compaction gives the last columns to the cached positions, in order, and kills the rest (INV-2, INV-3)",
            [between(0, c, longest), between(0, cached, longest + 1)],
            kernels.masked_slot_position(compact, compact * 0, cached)
            == z3.If(c >= longest - cached, c - (longest - cached), -1),
            column=c,
            longest=longest,
        ),
        claim(
            "columns beyond a compacted batch are dead (INV-3)",
            [c >= longest, between(0, cached, longest + 1)],
            kernels.masked_slot_position(compact, compact * 0, cached) == -1,
            column=c,
            longest=longest,
        ),
    ]


def inplace(kernels: ModuleType) -> list[Obligation]:
    """The `inplace` layout: position p in column p, rejected slots overwritten before they are visible."""
    row, c, p, t = ROW, COLUMN, POSITION, QUERY
    before = store("before")
    query_position = row.seq_len - 1 + t
    sees = kernels.visible_by_position(c, query_position)
    cached_before = z3.Implies(between(0, c, row.seq_len - 1), before(c) == row.text(c))

    def verified(column: z3.ArithRef) -> z3.ArithRef:
        return z3.If(between(row.seq_len - 1, column, row.seq_len + row.k), row.fed(column), before(column))

    def claim(name: str, given: list, that: z3.BoolRef, **shown: z3.ExprRef) -> Obligation:
        return Obligation(f"inplace: {name}", [*row.lengths, *given], that, {**row.shown, **shown})

    in_block = between(0, t, row.k + 1)
    return [
        claim(
            "a query sees the columns up to its position (INV-3)",
            [in_block, c >= 0],
            sees == (c <= row.seq_len - 1 + t),
            column=c,
            query=t,
        ),
        claim(
            "no stale entry is visible: what a query sees was cached or has just been written (INV-3)",
            [in_block, sees],
            z3.Or(between(0, c, row.seq_len - 1), between(row.seq_len - 1, c, row.seq_len + row.k)),
            column=c,
            query=t,
        ),
        claim(
            "every visible column holds its position's token (INV-4)",
            [in_block, sees, cached_before],
            verified(c) == row.fed(c),
            column=c,
            query=t,
        ),
        claim(
            "with nothing moved, every cached position holds its token after the round (INV-4, INV-5)",
            [between(0, c, row.new_len - 1), cached_before],
            verified(c) == row.committed(c),
            column=c,
        ),
        claim(
            "rejected entries stand where the next block writes or beyond every query of it (INV-4)",
            [c >= row.new_len - 1, between(0, p, row.new_len + t), t >= 0, kernels.visible_by_position(c, p)],
            between(row.new_len - 1, c, row.new_len + t),
            column=c,
            position=p,
        ),
    ]


def draft_cache(kernels: ModuleType) -> list[Obligation]:
    """INV-5 and INV-6: how far each model's cache lags, and that the draft's entries are right."""
    row, c = ROW, COLUMN
    kept = kernels.num_kept(row.accepted)
    new_len = row.seq_len + kept
    cached = kernels.draft_cached_after(row.seq_len, row.k, new_len)
    lag = kernels.lag(new_len, cached)
    drafted = row.k >= 1
    old_lag = z3.Int("old_lag")
    before = store("before")
    fed = z3.If(between(row.seq_len - old_lag, c, row.seq_len + row.k - 1), row.fed(c), before(c))
    old_cached = z3.Implies(between(0, c, row.seq_len - old_lag), before(c) == row.text(c))

    def claim(name: str, given: list, that: z3.BoolRef, **shown: z3.ExprRef) -> Obligation:
        return Obligation(f"lengths: {name}", [*row.lengths, *given], that, {**row.shown, **shown})

    return [
        claim("a round keeps the accepted drafts and one more token", [], new_len == row.seq_len + row.accepted + 1),
        claim(
            "the target lags by 1 after the commit (INV-5)", [], kernels.lag(new_len, row.seq_len + row.accepted) == 1
        ),
        claim(
            "the draft lags by 2 after a full acceptance, else by 1 (INV-6)",
            [drafted],
            lag == z3.If(row.accepted == row.k, z3.IntVal(2), z3.IntVal(1)),
            lag=lag,
        ),
        claim(
            "what the draft keeps is right: its entries are the committed tokens (INV-6)",
            [drafted, between(1, old_lag, 3), old_cached, between(0, c, cached)],
            fed == row.committed(c),
            column=c,
            old_lag=old_lag,
        ),
        claim(
            "a row cut short by a stop or by the batch minimum lags by 1 (INV-6)",
            [drafted, between(1, z3.Int("committed"), row.k + 1)],
            kernels.lag(
                row.seq_len + z3.Int("committed"),
                kernels.draft_cached_after(row.seq_len, row.k, row.seq_len + z3.Int("committed")),
            )
            == 1,
            committed=z3.Int("committed"),
        ),
    ]
