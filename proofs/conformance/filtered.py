"""The law at another temperature, and with top-k, top-p and min-p: the engine's own `probabilities`, on logarithms.

What the law should be is computed here, in fractions, from the definitions. The engine's logarithms and exponentials
round, so that total variation is not 0 here, but below `ROUNDING`.
"""

import math
from collections.abc import Iterator
from fractions import Fraction

from proofs.conformance import laws
from proofs.conformance.laws import Job, Shape
from proofs.conformance.perfect_memory import Table, pair_of
from proofs.report import FINDINGS, Verdict, ended_by
from refimpl.core.config import SamplingConfig

ROUNDING = Fraction(1, 2**40)
SHAPE: Shape = (3, [Job((1,), 3, 2)])
SAMPLINGS = (
    SamplingConfig(temperature=0.5),
    SamplingConfig(temperature=1.0, top_k=2),
    SamplingConfig(temperature=1.0, top_p=0.6),
    SamplingConfig(temperature=1.0, min_p=0.5),
    SamplingConfig(temperature=0.5, top_k=2, top_p=0.8, min_p=0.2),
)


def processed(mass: tuple[float, ...], sampling: SamplingConfig) -> tuple[Fraction, ...]:
    """Temperature 1/n raises to the n-th power; then top-k, top-p and min-p, each on what is left, as defined."""
    power = round(1 / sampling.temperature)
    left = normalized(Fraction(m) ** power for m in mass)
    ranked = sorted(left, reverse=True)
    if sampling.top_k:
        left = normalized(m if m >= ranked[sampling.top_k - 1] else Fraction(0) for m in left)
    order = sorted(range(len(left)), key=lambda token: (-left[token], token))
    before = {token: sum(left[other] for other in order[:rank]) for rank, token in enumerate(order)}
    left = normalized(m if before[token] < sampling.top_p else Fraction(0) for token, m in enumerate(left))
    return normalized(m if m >= Fraction(sampling.min_p) * max(left) else Fraction(0) for m in left)


def normalized(weights: Iterator[Fraction]) -> list[Fraction]:
    some = list(weights)
    return [weight / sum(some) for weight in some]


def logarithms(table: Table) -> Table:
    """Logits that the table's probabilities come from."""
    return lambda text: tuple(math.log(mass) if mass else -math.inf for mass in table(text))


def distance(method: str, sampling: SamplingConfig, wanted: SamplingConfig) -> tuple[Fraction, int]:
    """Total variation between the engine's law with a sampling and the target's with the wanted one; paths."""
    vocab_size, jobs = SHAPE
    target, draft = laws.tables(vocab_size, "rejection")
    config = laws.config_of(method, "host", laws.MODEL, "rejection", sampling)
    law, paths = laws.engine_law(config, jobs, pair_of(logarithms(target), logarithms(draft), vocab_size))
    return laws.total_variation(law, laws.autoregressive_law(jobs, lambda text: processed(target(text), wanted))), paths


def verdict(method: str, sampling: SamplingConfig) -> Verdict:
    """Whether the law of the shape is that of the processed target."""
    name = f"{method}, {told(sampling)}"
    try:
        tv, paths = distance(method, sampling, sampling)
    except FINDINGS as error:
        return ended_by(error, name)
    return Verdict(f"{name}: total variation below 2^-40 over {paths} paths", tv < ROUNDING, f"{float(tv)}")


def told(sampling: SamplingConfig) -> str:
    t, k, p, m = sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p
    return f"temperature {t}, top-k {k}, top-p {p}, min-p {m}"


def check() -> Iterator[Verdict]:
    """Every filter by itself, and all together; and that each by itself changes the law of this shape."""
    for sampling in SAMPLINGS:
        yield verdict("inplace+fifo", sampling)
    yield verdict("realigned+static", SAMPLINGS[-1])
    for sampling in SAMPLINGS[:-1]:
        tv, _ = distance("inplace+fifo", laws.AS_IT_IS, sampling)
        name = f"expected failure: the engine does without {told(sampling)}: total variation {float(tv):.3f}"
        yield Verdict(name, tv > ROUNDING)
