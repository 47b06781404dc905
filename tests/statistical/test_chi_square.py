"""The keyed generator and the real rules, against the exact law of autoregressive sampling.

Each test compares the outputs of thousands of sequences with their law (by fractions) in one chi-square statistic.
Seeds are fixed; on a fresh seed a right rule fails a test with probability 1e-7, all of them together with less than
1e-6. The same statistic must find out every wrong rule, a thousand times more clearly.
"""

from collections import Counter

import pytest
import torch
import wrong_rules
from scipy.stats import chi2

from refimpl.core.config import SamplingConfig
from refimpl.decoding.acceptance import AcceptanceRule, CoupledRule, Proposal, RejectionRule, RowNumbers
from refimpl.decoding.sampling import RowKeys
from refimpl.faults import FAULTS
from refimpl.selfcheck.fraction_model import fraction_pair, sequence_law

FALSE_ALARM, MARGIN = 1e-7, 1e3
NUM_SEQUENCES = 10_000
BUDGET, K = 4, 2
SHARPNESS, TOP_K = 2, 3
SAMPLING = SamplingConfig(temperature=1 / SHARPNESS, top_k=TOP_K, seed=1)
PAIR = fraction_pair(4, seed=26)  # gives 1e-47 or less to every wrong rule; most pairs are blind to one of them
LAW = sequence_law(PAIR.target.table, [0], BUDGET, None, SHARPNESS, TOP_K)


def p_value(outputs: list[tuple[int, ...]]) -> float:
    """Chi-square test; outcomes expected fewer than five times are pooled."""
    counts, total = Counter(outputs), len(outputs)
    if not all(LAW.get(outcome) for outcome in counts):
        return 0.0
    cells = [(counts[outcome], float(p * total)) for outcome, p in LAW.items() if p * total >= 5]
    observed, expected = (sum(column) for column in zip(*cells, strict=True))
    if total - expected > 1e-9:
        cells.append((total - observed, total - expected))
    statistic = sum((observed - expected) ** 2 / expected for observed, expected in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def decode(rule: AcceptanceRule, rollback: bool = False) -> list[tuple[int, ...]]:
    """Run a rule on rows that differ in their sequence id only; under `rollback`, neighbours commit their minimum."""
    tokens = torch.zeros(NUM_SEQUENCES, 1 + BUDGET + K, dtype=torch.long)
    length = torch.ones(NUM_SEQUENCES, dtype=torch.long)
    while len(live := (length <= BUDGET).nonzero()[:, 0]):
        emitted, kept = one_round(rule, tokens[live], length[live], live)
        if rollback:
            kept = kept.view(-1, 2).amin(dim=1).repeat_interleave(2)
        at = length[live, None] + torch.arange(K + 1)
        tokens[live] = tokens[live].scatter(1, at, emitted)
        length[live] += kept
    return [tuple(row) for row in tokens[:, 1 : 1 + BUDGET].tolist()]


def one_round(rule, tokens, length, sequence):
    """Draft K tokens a row, decide; returns the emitted tokens and how many of them count."""
    keys = RowKeys(torch.full_like(sequence, SAMPLING.seed), sequence)
    row = torch.arange(len(length))
    steps = []
    for step in range(K):
        logits = next_logits(PAIR.draft, tokens, length + step)
        steps.append(rule.propose(logits[:, None], keys, (length + step)[:, None]))
        tokens[row, length + step] = steps[-1].tokens[:, 0]
    mass = None if steps[0].probabilities is None else torch.cat([s.probabilities for s in steps], dim=1)
    proposal = Proposal(torch.cat([s.tokens for s in steps], dim=1), mass)
    logits = torch.stack([next_logits(PAIR.target, tokens, length + step) for step in range(K + 1)], dim=1)
    limits = (BUDGET - length).clamp(max=K)
    decision = rule.decide(proposal, logits, RowNumbers(keys, length[:, None] + torch.arange(K + 1), limits))
    return decision.emitted, decision.num_accepted + 1


def next_logits(model, tokens, length):
    row = torch.arange(len(length))
    before = torch.where(length > 1, tokens[row, length - 2], model.vocab_size)
    return model.next_logits(before, tokens[row, length - 1])


@pytest.mark.parametrize("rollback", [False, True])
def test_rejection_draws_the_target_law(rollback):
    assert p_value(decode(RejectionRule(SAMPLING), rollback)) > FALSE_ALARM


def test_coupled_noise_draws_the_target_law():
    assert p_value(decode(CoupledRule(SAMPLING))) > FALSE_ALARM


UNSEEN = (wrong_rules.SeedlessBonus,)  # all sequences have one seed


@pytest.mark.parametrize("rule", [rule for rule in wrong_rules.ALL if rule not in UNSEEN])
def test_power_to_detect_a_wrong_rule(rule):
    assert p_value(decode(rule(SAMPLING))) < FALSE_ALARM / MARGIN


@pytest.mark.parametrize(
    ("name", "rollback"), [*((name, False) for name in wrong_rules.ZOO), ("rollback-draws-again", True)]
)
def test_power_to_detect_a_fault_of_the_rule(name, rollback):
    with FAULTS[name].injected():
        assert p_value(decode(RejectionRule(SAMPLING), rollback)) < FALSE_ALARM / MARGIN
