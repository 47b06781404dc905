"""Which drafters and budgets keep the target's law: exact enumeration of every branch of the engine's own runs."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from refimpl.core.config import DecodeConfig
from refimpl.core.drafting import DRAFT_BUDGETS, DRAFTERS
from refimpl.core.request import Request
from refimpl.decoding.assembly import bias
from refimpl.generation import generate
from refimpl.models.adapter import Pair
from refimpl.selfcheck.enumeration import engine_law, law_config, target_law, total_variation
from refimpl.selfcheck.fraction_model import JointLaw, Penalties, fraction_pair

RULES = ("greedy", "coupled", "rejection", "block")
SEEDS: tuple[int, ...] = (3, 5)  # of the pairs
REQUESTS = [Request([0, 1, 0, 1], 2, 1), Request([1, 0], 2, 1)]  # the first finds its last tokens before
OF_HEAD = [Request([0], 3, 1), Request([1, 0], 3, 1)]  # a token more, as there are no drafts in the first round
LONGER = [Request([0, 1, 0, 1], 3, 1), REQUESTS[1]]  # drafts after those that the first round has rejected
LONGEST = [Request([0, 1, 0, 1], 4, 1), REQUESTS[1]]  # the same for who drafts seldom, and drafts of a row alone
PENALIZED = "fixed, with penalties"
PENALTIES = Penalties(frequency=1, presence=1)
BUDGETS = {  # by name: settings that cut drafts on these pairs
    "fixed": "fixed",
    PENALIZED: "fixed",
    "by_load": "by_load:2=0",
    "capacity": "capacity:1",
    "capacity_own_token": "capacity_own_token:1",
    "goodput": "goodput:1=1.6",
    "confidence": "confidence:0.7",
}


@dataclass(frozen=True, slots=True)
class LawRow:
    """One combination.

    Attributes:
        drafter, draft_budget, acceptance: names.
        allowed: whether the engine runs it.
        total_variation: between the law of two rows' outputs and the target's, the largest over the pairs.
    """

    drafter: str
    draft_budget: str
    acceptance: str
    allowed: bool
    total_variation: float


def combinations() -> Iterator[tuple[str, str]]:
    """Every drafter with every budget that it can have."""
    for drafter, budget in product(DRAFTERS, BUDGETS):
        if DRAFTERS[drafter].has_probabilities or not DRAFT_BUDGETS[budget.partition(",")[0]].reads_probabilities:
            yield drafter, budget


def requests_for(drafter: str, budget: str) -> list[Request]:
    """Two rows that are offered drafts on some branch, and have some cut by the budget."""
    if budget == "by_load":
        return LONGEST
    if budget == "goodput":  # which decides by history
        return LONGER if DRAFTERS[drafter].runs_draft else LONGEST
    usual = OF_HEAD if drafter == "head" else REQUESTS
    return [*map(PENALTIES.request, usual)] if budget == PENALIZED else usual


def law_settings() -> list[tuple[str, str, str]]:
    """Every combination, under every rule that promises the law."""
    return [(*combination, rule) for combination, rule in product(combinations(), RULES)]


def law_row(drafter: str, budget: str, rule: str) -> LawRow:
    """One combination, judged by every branch of its runs."""
    config, requests = config_of(drafter, budget, rule), requests_for(drafter, budget)
    distance = max(variation(fraction_pair(2, seed), requests, config) for seed in SEEDS)
    return LawRow(drafter, budget, rule, not bias(config), float(distance))


def config_of(drafter: str, budget: str, rule: str) -> DecodeConfig:
    """Settings of a combination."""
    return law_config(
        drafter=drafter, draft_budget=BUDGETS[budget], acceptance=rule, temperature=float(rule != "greedy")
    )


def variation(pair: Pair, requests: list[Request], config: DecodeConfig) -> Fraction:
    """Total variation distance between the law of a run, at temperature 0 or 1, and the target's."""
    penalties = None if requests[0].frequency_penalty is None else PENALTIES
    drawn = not config.sampling.greedy
    wanted = target_law(pair, requests, penalties=penalties) if drawn else _greedy_law(pair, requests)
    return total_variation(engine_law(pair, requests, config), wanted)


def _greedy_law(pair: Pair, requests: list[Request]) -> JointLaw:
    found = generate(pair, requests, method="autoregressive").sequences
    return {tuple(tuple(sequence.token_ids) for sequence in found): Fraction(1)}
