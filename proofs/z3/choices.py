"""How many drafts count, and which mass decides: length limits (INV-7) and the sampling formulas."""

from types import ModuleType

import z3

from proofs.z3.obligation import Obligation

NUM_DRAFTS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 16)  # `num_accepted` folds over a Python iterable: unrolled
VOCABULARIES = (2, 3, 4)


def obligations(kernels: ModuleType) -> list[Obligation]:
    """All claims about lengths and sampling."""
    runs = [accepted_run(kernels, k) for k in NUM_DRAFTS]
    laws = [claim for size in VOCABULARIES for claim in one_token_law(kernels, size)]
    return [*runs, *limits(kernels), *one_token(kernels), *laws]


def accepted_run(kernels: ModuleType, k: int) -> Obligation:
    """`num_accepted` is the longest accepted prefix within the limit."""
    matches = [z3.Int(f"match_{i}") for i in range(k)]
    limit, n = z3.Ints("limit n")
    given = [z3.Or(m == 0, m == 1) for m in matches] + [limit >= 0, limit <= k, n >= 0, n <= k]
    prefix_accepted = z3.And(z3.BoolVal(True), *[z3.Implies(i < n, matches[i] == 1) for i in range(k)])
    cannot_grow = z3.Or(n == limit, *[z3.And(n == i, matches[i] == 0) for i in range(k)])
    longest = z3.And(prefix_accepted, n <= limit, cannot_grow)
    name = f"accepted: the longest accepted prefix within the row's limit, {k} drafts"
    return Obligation(name, given, (kernels.num_accepted(matches, limit) == n) == longest)


def limits(kernels: ModuleType) -> list[Obligation]:
    """INV-7: a round fits the budget."""
    wished, remaining, accepted = z3.Ints("num_speculative_tokens remaining accepted")
    limit = kernels.draft_limit(wished, remaining)
    given = [wished >= 0, remaining >= 1]
    within = [accepted >= 0, accepted <= limit]
    return [
        Obligation(
            "budget: a row may always use between 0 and the wished number of drafts (INV-7)",
            given,
            z3.And(limit >= 0, limit <= wished),
        ),
        Obligation(
            "budget: whatever is accepted, the round fits the budget (INV-7)",
            [*given, *within],
            kernels.num_kept(accepted) <= remaining,
        ),
        Obligation(
            "budget: a draft that fits is not given up (INV-7)", [*given, limit < wished], limit + 1 == remaining
        ),
        Obligation("progress: a round keeps at least one token", [*given, *within], kernels.num_kept(accepted) >= 1),
    ]


def one_token(kernels: ModuleType) -> list[Obligation]:
    """The acceptance test and the residual of one token, over all reals."""
    p, q, u = z3.Reals("p q u")
    mass = [p >= 0, q > 0, p <= 1, q <= 1]
    draw = [u >= 0, u < 1]
    threshold = z3.If(p < q, p / q, z3.RealVal(1))
    accepts = kernels.accepts(u, p, q)
    both = kernels.overlap(p, q)
    rest = kernels.residual(p, q)
    return [
        Obligation(
            "sampling: a draft is accepted exactly when u < min(1, p/q)", [*mass, *draw], accepts == (u < threshold)
        ),
        Obligation("sampling: q · min(1, p/q) is the overlap min(p, q)", mass, q * threshold == both),
        Obligation("sampling: a token without target mass is never accepted", [*mass, *draw, p == 0], z3.Not(accepts)),
        Obligation(
            "sampling: a token with at least the draft's mass is always accepted", [*mass, *draw, p >= q], accepts
        ),
        Obligation("sampling: overlap and residual add up to the target's mass", [p >= 0, q >= 0], both + rest == p),
        Obligation(
            "sampling: the overlap lies between 0 and either mass",
            [p >= 0, q >= 0],
            z3.And(both >= 0, both <= p, both <= q),
        ),
        Obligation(
            "sampling: the residual is not negative, and positive where the target has more",
            [p >= 0, q >= 0],
            z3.And(rest >= 0, (rest > 0) == (p > q)),
        ),
    ]


def one_token_law(kernels: ModuleType, size: int) -> list[Obligation]:
    """On a vocabulary of `size` tokens the emitted token has the target's law (hypotheses of Rejection.v)."""
    p = [z3.Real(f"p_{t}") for t in range(size)]
    q = [z3.Real(f"q_{t}") for t in range(size)]
    given = [*(x >= 0 for x in p + q), z3.Sum(p) == 1, z3.Sum(q) == 1]
    overlap = z3.Sum([kernels.overlap(a, b) for a, b in zip(p, q, strict=True)])
    rest = [kernels.residual(a, b) for a, b in zip(p, q, strict=True)]
    share = z3.Real("share")  # residual of token 0, normalised
    return [
        Obligation(
            f"sampling: mass rejected is the residual's mass, {size} tokens", given, 1 - overlap == z3.Sum(rest)
        ),
        Obligation(
            f"sampling: accepted or recovered, token 0 comes with the target's mass, {size} tokens",
            [*given, z3.Sum(rest) > 0, share * z3.Sum(rest) == rest[0]],
            kernels.overlap(p[0], q[0]) + (1 - overlap) * share == p[0],
        ),
    ]
