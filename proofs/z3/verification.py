"""Block verification: the law of a block, and that it keeps no fewer drafts than testing them one by one.

A prefix of j drafts survives with probability P_j, given all drafts. The claims below are the step of the induction
from j to j + 1, for the last draft and for the others, and with it the law of the token that follows.
"""

from types import ModuleType

import z3

from proofs.z3.obligation import Obligation

NUM_DRAFTS = (0, 1, 2, 3, 5, 8)  # `last_accepted` folds over a Python iterable: unrolled
VOCABULARIES = (2, 3)


def obligations(kernels: ModuleType) -> list[Obligation]:
    """All claims about block verification."""
    depths = [deepest(kernels, k) for k in NUM_DRAFTS]
    return [*depths, *survival(kernels), *(claim for size in VOCABULARIES for claim in next_token(kernels, size))]


def deepest(kernels: ModuleType, k: int) -> Obligation:
    """`last_accepted` is the greatest depth within the limit whose test passes."""
    matches = [z3.Int(f"match_{i}") for i in range(1, k + 1)]
    limit, n = z3.Ints("limit n")
    given = [z3.Or(m == 0, m == 1) for m in matches] + [limit >= 0, limit <= k, n >= 0, n <= k]
    depths = list(enumerate(matches, start=1))
    passes = z3.Or(n == 0, *[z3.And(n == i, m == 1) for i, m in depths])
    none_deeper = z3.And(z3.BoolVal(True), *[z3.Implies(z3.And(i > n, i <= limit), m == 0) for i, m in depths])
    return Obligation(
        f"block: the deepest draft within the row's limit whose test passes, {k} drafts",
        given,
        (kernels.last_accepted(matches, limit) == n) == z3.And(passes, none_deeper, n <= limit),
    )


def survival(kernels: ModuleType) -> list[Obligation]:
    """A prefix survives with probability P: its own test passes, or a deeper one does."""
    mass, tested, p, q, rest, passes = z3.Reals("P tested p q rest h")
    total = kernels.block_total(mass, rest)
    given = [mass >= 0, mass <= 1, rest >= 0, total > 0, passes * total == rest]
    deeper = mass - rest  # probability that a deeper test passes: what the drafts take of the target's mass
    longer = kernels.block_mass(mass, p, q)
    chain = [mass <= 1, tested >= 0, tested <= mass, p >= 0, p <= 1, q > 0, q <= 1]
    return [
        Obligation(
            "block: the test of a draft is a probability", [*given, rest <= mass], z3.And(passes >= 0, passes <= 1)
        ),
        Obligation(
            "block: a prefix survives with its mass, by its own test or a deeper one",
            [*given, rest <= mass],
            1 - (1 - passes) * (1 - deeper) == mass,
        ),
        Obligation(
            "block: the last draft passes with its mass, as its row drafts nothing more",
            [*given, rest == mass],
            passes == mass,
        ),
        Obligation(
            "block: a prefix survives no less often than if each draft were tested alone",
            chain,
            z3.And(q * longer >= tested * kernels.overlap(p, q), longer >= 0, longer <= 1),
        ),
    ]


def next_token(kernels: ModuleType, size: int) -> list[Obligation]:
    """After a prefix of mass P, each token follows with P times the target's probability, drafted or drawn."""
    mass = z3.Real("P")
    p = [z3.Real(f"p_{t}") for t in range(size)]
    q = [z3.Real(f"q_{t}") for t in range(size)]
    given = [mass >= 0, mass <= 1, *(x >= 0 for x in p), *(x > 0 for x in q), z3.Sum(p) == 1, z3.Sum(q) == 1]
    drafted = [b * kernels.block_mass(mass, a, b) for a, b in zip(p, q, strict=True)]
    rest = [kernels.residual(mass * a, b) for a, b in zip(p, q, strict=True)]
    return [
        Obligation(
            f"block: drafted and surviving, or drawn from the rest, token 0 has its share of P, {size} tokens",
            given,
            drafted[0] + rest[0] == mass * p[0],
        ),
        Obligation(
            f"block: the rest is what the drafts do not take, {size} tokens",
            given,
            z3.And(z3.Sum(rest) == mass - z3.Sum(drafted), z3.Sum(rest) >= 0, z3.Sum(rest) <= mass),
        ),
    ]
