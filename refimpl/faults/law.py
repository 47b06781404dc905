"""The sampling test: do sampled tokens follow the target's law?

The exact law of the first tokens after one prompt is enumerated from the target's distributions; a few thousand
sequences with keys of their own are counted against it with Pearson's chi-squared test. The rule alone is tested on
many more rows and a larger vocabulary, where errors show that move the law of a run by a few percent.

Overlapped execution runs two rows at a time. The first ends after a token and is not counted; the other is drafted for
beside that row's verify pass, and then has none to take turns with, which is where a row's drafts can be used twice.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

from refimpl.core.config import AcceptanceName, SamplingConfig
from refimpl.core.drafting import DRAFTERS
from refimpl.core.execution import ExecutionName
from refimpl.core.request import Request
from refimpl.decoding.acceptance import RULES
from refimpl.faults import rule_law
from refimpl.generation import generate
from refimpl.models.adapter import Pair
from refimpl.models.table_model import TableModel
from refimpl.oracle.autoregressive import shape_distribution

VOCAB_SIZE, NUM_TOKENS = 5, 3
REPEATED = (3, 1, 4, 3, 1)  # there is something to be found
NUM_SEQUENCES = 4096
NUM_PAIRS = 640  # of rows that take turns
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
    execution: ExecutionName = "serial",
    drafter: str = "model",
    draft_budget: str = "fixed",
    top_k: int = 0,
    seed: int = 0,
    temperature: float = 2.0,
) -> LawTest:
    """Sample from a draft that has nothing in common with the target: by the rule alone, and in a run.

    No two rows share a key, so that their tokens are independent under every rule, coupled numbers among them.
    """
    sampling = SamplingConfig(temperature, top_k, seed=seed)
    pair = Pair(TableModel(VOCAB_SIZE), TableModel(VOCAB_SIZE, salt=1), vocab_size=VOCAB_SIZE, name="law")
    prompt = REPEATED if DRAFTERS[drafter].lookup else REPEATED[:2]
    counts: Counter[tuple[int, ...]] = Counter()
    for requests in _runs(prompt, execution):
        result = generate(
            pair,
            requests,
            method=f"{layout}+{'static' if execution == 'serial' else 'fifo'}",
            batch_size=256,
            acceptance=acceptance,
            execution=execution,
            checks="off",
            max_new_tokens=NUM_TOKENS,
            num_speculative_tokens=2,
            sampling=sampling,
            drafter=drafter,  # type: ignore[arg-type]
            draft_budget=draft_budget,
        )
        rows = zip(requests, result.sequences, strict=True)
        counts.update(tuple(row.token_ids) for request, row in rows if request.max_new_tokens is None)
    run_p = compare(counts, exact_law(pair.target, sampling, prompt))  # type: ignore[arg-type]
    rule_p = rule_law.law_p_value(lambda: RULES[acceptance](sampling))
    return LawTest(min(1.0, 2 * min(run_p, rule_p)))


def _runs(prompt: tuple[int, ...], execution: ExecutionName) -> Iterator[list[Request]]:
    """The requests of each run; those with a budget of their own are not counted."""
    if execution == "serial":
        yield [Request(prompt, sequence_id=i) for i in range(NUM_SEQUENCES)]
        return
    for i in range(NUM_PAIRS):
        yield [Request(prompt, 1, sequence_id=2 * i), Request(prompt, sequence_id=2 * i + 1)]


def compare(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """P-value of Pearson's chi-squared test of counts against a law; an outcome that it does not know gives 0."""
    outcomes = sorted(set(law) | set(counts))
    observed = torch.tensor([counts[o] for o in outcomes], dtype=torch.float64)
    expected = torch.tensor([law.get(o, 0.0) for o in outcomes], dtype=torch.float64)
    return rule_law.chi_square_p_value(observed, expected)
