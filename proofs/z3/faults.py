"""Wrong uses of the kernels, seen in the wild. Each claim below is false, and both solvers must find it out.

Every fault is the correct use with one deliberate change, so that the counterexample is the bug's own trace. Kernels
that are wrong themselves are in `proofs.z3.zoo`.
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
        *length_faults(kernels),
        *sampling_faults(kernels),
    ]


def fault(name: str, given: list, claim: z3.BoolRef) -> Obligation:
    return Obligation(name, [*ROW.lengths, *given], claim)


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
        ),
        fault("rows are shifted the wrong way", given, kernels.realign_source(column, reversed_shift) == wanted_column),
        fault(
            "one position offset for ragged rows (the batch maximum): a short row's positions jump",
            [between(pads, c, row.width)],
            longest_position == kernels.left_padded_position(c, pads),
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
        ),
        fault(
            "mask one slot too narrow: a query misses itself",
            inside,
            kernels.visible_left_padded(c, query - 1, pads) == right,
        ),
        fault("pads are not masked: a short row sees junk", inside, kernels.visible_left_padded(c, query, 0) == right),
        fault(
            "the mask still has the pads from before realignment",
            inside,
            kernels.visible_left_padded(c, query, kernels.num_pad(row.new_width, row.new_len)) == right,
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
        ),
    ]


def length_faults(kernels: ModuleType) -> list[Obligation]:
    """Drafts that count and should not; the first as the published algorithm is printed."""
    matches = [z3.Int(f"match_{i}") for i in range(3)]
    bits = [z3.Or(m == 0, m == 1) for m in matches]
    limit = z3.Int("limit")
    accepted, first_mismatch = kernels.num_accepted(matches, 3), z3.IntVal(0)
    for at in reversed(range(3)):
        first_mismatch = z3.If(matches[at] == 0, z3.IntVal(at), first_mismatch)
    return [
        Obligation(
            "published: argmax of the mismatches reads full acceptance as full rejection",
            bits,
            first_mismatch == accepted,
        ),
        Obligation("the longest row's limit is used for every row", [*bits, limit >= 0, limit <= 3], accepted <= limit),
        Obligation("accepted drafts are counted, not the accepted prefix", bits, z3.Sum(matches) == accepted),
    ]


def sampling_faults(kernels: ModuleType) -> list[Obligation]:
    """Sampling that is close, but not the target's law. Two tokens of mass p, 1 - p and q, 1 - q."""
    p, q, other = z3.Reals("p q other")
    unit = [p >= 0, p <= 1, q > 0, q < 1]
    overlap = kernels.overlap(p, q)
    rejected = 1 - overlap - kernels.overlap(1 - p, 1 - q)
    return [
        Obligation("after a rejection the target's law is drawn, not the residual", unit, overlap + rejected * p == p),
        Obligation(
            "the ratio uses another q than the draw",
            [*unit, other > 0, other <= 1],
            q * z3.If(p < other, p / other, z3.RealVal(1)) == overlap,
        ),
    ]
