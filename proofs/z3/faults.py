"""Wrong uses of the kernels, seen in the wild. Each claim below is false, and both solvers must find it out.

Every fault is the correct use with one deliberate change, so that the counterexample is the bug's own trace. Kernels
that are wrong themselves are in `proofs.z3.zoo`. What no kernel decides is an illustration: it counts for no invariant.
"""

from types import ModuleType

import z3

from proofs.z3.obligation import Obligation
from proofs.z3.row import COLUMN, POSITION, QUERY, ROW, between, store


def obligations(kernels: ModuleType) -> list[Obligation]:
    """All of them."""
    return [
        *alignment_faults(kernels),
        *mask_faults(kernels),
        *cache_faults(kernels),
        *published_faults(kernels),
        *length_faults(kernels),
        *sampling_faults(kernels),
        *illustrations(),
    ]


def fault(name: str, given: list, claim: z3.BoolRef, **shown: z3.ExprRef) -> Obligation:
    return Obligation(name, [*ROW.lengths, *given], claim, {**ROW.shown, **shown})


def alignment_faults(kernels: ModuleType) -> list[Obligation]:
    """Realignment left out, or turned round; one offset for ragged rows."""
    row, p, c = ROW, POSITION, COLUMN
    pads, new_pads = kernels.num_pad(row.width, row.seq_len), kernels.num_pad(row.new_width, row.new_len)
    cached = between(0, p, row.new_len - 1)
    wanted_column = pads + p  # where the entry of position p stands before realignment
    column = kernels.left_padded_column(p, new_pads)
    given = [cached, row.new_width >= row.width]
    reversed_shift = kernels.realign_shift(new_pads, pads)
    longest_position = kernels.left_padded_position(c, 0)
    return [
        fault(
            "rows are not realigned after a ragged round: a position's column holds another position",
            given,
            column == wanted_column,
            new_width=row.new_width,
            position=p,
            column=column,
            holds=wanted_column,
        ),
        fault(
            "rows are shifted the wrong way",
            given,
            kernels.realign_source(column, reversed_shift) == wanted_column,
            new_width=row.new_width,
            position=p,
        ),
        fault(
            "one position offset for ragged rows (the batch maximum): a short row's positions jump",
            [between(pads, c, row.width)],
            longest_position == kernels.left_padded_position(c, pads),
            column=c,
            given_position=longest_position,
            right_position=kernels.left_padded_position(c, pads),
        ),
    ]


def mask_faults(kernels: ModuleType) -> list[Obligation]:
    """Masks that show too much or too little."""
    row, c, t = ROW, COLUMN, QUERY
    pads = kernels.num_pad(row.width, row.seq_len)
    query = row.width - 1 + t
    inside = [between(0, t, row.k + 1), between(0, c, row.width + row.k)]
    right = z3.And(c >= pads, c <= query)
    return [
        fault(
            "mask one slot too wide: a draft sees its successor",
            inside,
            kernels.visible_left_padded(c, query + 1, pads) == right,
            column=c,
            query=query,
        ),
        fault(
            "mask one slot too narrow: a query misses itself",
            inside,
            kernels.visible_left_padded(c, query - 1, pads) == right,
            column=c,
            query=query,
        ),
        fault(
            "pads are not masked: a short row sees junk",
            inside,
            kernels.visible_left_padded(c, query, 0) == right,
            column=c,
            query=query,
            pads=pads,
        ),
        fault(
            "the mask still has the pads from before realignment",
            inside,
            kernels.visible_left_padded(c, query, kernels.num_pad(row.new_width, row.new_len)) == right,
            column=c,
            query=query,
            pads=pads,
        ),
    ]


def cache_faults(kernels: ModuleType) -> list[Obligation]:
    """Entries that should be gone."""
    row, c, t = ROW, COLUMN, QUERY
    before = store("before")
    late = z3.If(between(row.seq_len, c, row.seq_len + row.k), row.fed(c), before(c))
    return [
        fault(
            "inplace: the block starts one column late, so a stale entry is visible",
            [
                between(0, t, row.k + 1),
                kernels.visible_by_position(c, row.seq_len - 1 + t),
                z3.Implies(between(0, c, row.seq_len - 1), before(c) == row.text(c)),
            ],
            late == row.fed(c),
            column=c,
            query=t,
            holds=late,
            wanted=row.fed(c),
        ),
    ]


def published_faults(kernels: ModuleType) -> list[Obligation]:
    """What the published algorithm says as printed."""
    matches = [z3.Int(f"match_{i}") for i in range(3)]
    bits = [z3.Or(m == 0, m == 1) for m in matches]
    argmax_of_mismatch = z3.If(
        matches[0] == 0,
        z3.IntVal(0),
        z3.If(matches[1] == 0, z3.IntVal(1), z3.If(matches[2] == 0, z3.IntVal(2), z3.IntVal(0))),
    )
    return [
        Obligation(
            "published: argmax of the mismatches reads full acceptance as full rejection",
            bits,
            argmax_of_mismatch == kernels.num_accepted(matches, 3),
            {f"match_{i}": m for i, m in enumerate(matches)} | {"accepted": kernels.num_accepted(matches, 3)},
        ),
    ]


def illustrations() -> list[Obligation]:
    """What is wrong with a round that no kernel decides, worked out on the terms of `proofs.z3.row`."""
    row, c = ROW, COLUMN
    before = store("before")
    drafts_only = z3.If(between(row.seq_len, c, row.seq_len + row.k), row.fed(c), before(c))
    predicted = row.seq_len - 1 + row.accepted  # query `accepted - 1` of the block predicts this position
    return [
        fault(
            "illustration, published: the next token is missing from the input of later rounds, and its K/V with it",
            [between(0, c, row.new_len - 1), z3.Implies(between(0, c, row.seq_len - 1), before(c) == row.text(c))],
            drafts_only == row.committed(c),
            position=c,
            holds=drafts_only,
            wanted=row.committed(c),
        ),
        fault(
            "illustration, published: the next token is read from the logits one index early",
            [row.accepted >= 1],
            predicted == row.seq_len + row.accepted,
            predicts_position=predicted,
        ),
        fault(
            "illustration: the draft's token is appended at the mismatch",
            [row.accepted < row.k, row.next_token != row.drafts(row.seq_len + row.accepted)],
            row.fed(row.seq_len + row.accepted) == row.committed(row.seq_len + row.accepted),
            drafted=row.fed(row.seq_len + row.accepted),
            target=row.next_token,
        ),
    ]


def length_faults(kernels: ModuleType) -> list[Obligation]:
    """Drafts that count and should not."""
    matches = [z3.Int(f"match_{i}") for i in range(3)]
    bits = [z3.Or(m == 0, m == 1) for m in matches]
    limit = z3.Int("limit")
    return [
        Obligation(
            "the longest row's limit is used for every row",
            [*bits, limit >= 0, limit <= 3],
            kernels.num_accepted(matches, 3) <= limit,
            {f"match_{i}": m for i, m in enumerate(matches)} | {"limit": limit},
        ),
        Obligation(
            "accepted drafts are counted, not the accepted prefix",
            bits,
            z3.Sum(matches) == kernels.num_accepted(matches, 3),
            {f"match_{i}": m for i, m in enumerate(matches)},
        ),
    ]


def sampling_faults(kernels: ModuleType) -> list[Obligation]:
    """Sampling that is close, but not the target's law. Two tokens of mass p, 1 - p and q, 1 - q."""
    p, q, other = z3.Reals("p q other")
    unit = [p >= 0, p <= 1, q > 0, q < 1]
    shown = {"p": p, "q": q}
    overlap = kernels.overlap(p, q)
    rejected = 1 - overlap - kernels.overlap(1 - p, 1 - q)
    return [
        Obligation(
            "after a rejection the target's law is drawn, not the residual",
            unit,
            overlap + rejected * p == p,
            shown | {"emitted": overlap + rejected * p},
        ),
        Obligation(
            "the ratio uses another q than the draw",
            [*unit, other > 0, other <= 1],
            q * z3.If(p < other, p / other, z3.RealVal(1)) == overlap,
            shown | {"other": other},
        ),
    ]
