"""The sampling test: do the tokens that a rule of rejection gives follow the target's law?

The exact law of the first tokens after one prompt is enumerated from the target's distributions; a few thousand
sequences with keys of their own are counted against it with Pearson's chi-squared test. The rule alone is tested on
many more rows and a larger vocabulary, where errors show that move the law of a run by a few percent.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import product

import torch

from refimpl.core.config import AcceptanceName, SamplingConfig
from refimpl.core.drafting import DraftingConfig
from refimpl.core.request import Request
from refimpl.decoding.acceptance import RULES
from refimpl.faults import rule_law
from refimpl.generation import generate
from refimpl.models.adapter import Pair
from refimpl.models.table_model import TableModel
from refimpl.oracle.autoregressive import shape_distribution

VOCAB_SIZE, NUM_TOKENS = 5, 3
REPEATED = (3, 1, 4, 3, 1)  # there is something to be found
PROMPTS = {"model": (3, 1), "ngram": REPEATED, "suffix": REPEATED, "hybrid": REPEATED}
MODEL = DraftingConfig()
NUM_SEQUENCES = 4096
FALSE_ALARM_RATE = 1e-6


@dataclass(frozen=True)
class LawTest:
    """Outcome of the test."""

    p_value: float

    @property
    def rejected(self) -> bool:
        """Whether the engine's law is not the target's, at the stated false-alarm rate."""
        return self.p_value < FALSE_ALARM_RATE


def exact_law(target: TableModel, sampling: SamplingConfig, prompt: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of NUM_TOKENS tokens."""
    law = {}
    for tokens in product(range(target.vocab_size), repeat=NUM_TOKENS):
        feed, fed, probability = target.fresh_row(), list(prompt), 1.0
        for token in tokens:
            probability *= float(shape_distribution(feed(fed), sampling)[token])
            fed = [token]
        law[tokens] = probability
    return law


def check_law(
    layout: str = "inplace",
    *,
    acceptance: AcceptanceName = "rejection",
    drafting: DraftingConfig = MODEL,
    top_k: int = 0,
    seed: int = 0,
    temperature: float = 2.0,
) -> LawTest:
    """Sample with a rule of rejection from a draft that has nothing in common with the target: the rule, and a run."""
    sampling = SamplingConfig(temperature, top_k, seed=seed)
    pair = Pair(TableModel(VOCAB_SIZE), TableModel(VOCAB_SIZE, salt=1), vocab_size=VOCAB_SIZE, name="law")
    requests = [Request(PROMPTS[drafting.drafter], sequence_id=i) for i in range(NUM_SEQUENCES)]
    result = generate(
        pair,
        requests,
        method=f"{layout}+static",
        batch_size=256,
        acceptance=acceptance,
        checks="off",
        max_new_tokens=NUM_TOKENS,
        num_speculative_tokens=2,
        sampling=sampling,
        drafting=drafting,
    )
    counts = Counter(tuple(s.token_ids) for s in result.sequences)
    run_p = compare(counts, exact_law(pair.target, sampling, PROMPTS[drafting.drafter]))  # type: ignore[arg-type]
    rule_p = rule_law.law_p_value(lambda: RULES[acceptance](sampling))
    return LawTest(min(1.0, 2 * min(run_p, rule_p)))


def compare(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """P-value of Pearson's chi-squared test of counts against a law; an outcome that it does not know gives 0."""
    outcomes = sorted(set(law) | set(counts))
    observed = torch.tensor([counts[o] for o in outcomes], dtype=torch.float64)
    expected = torch.tensor([law.get(o, 0.0) for o in outcomes], dtype=torch.float64)
    return rule_law.chi_square_p_value(observed, expected)
