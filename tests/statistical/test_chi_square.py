"""The keyed generator and the real rules, against the exact law of autoregressive sampling.

Each test compares the outputs of thousands of sequences with their law (by fractions) in one chi-square statistic.
Seeds are fixed; on a fresh seed a right rule fails a test with probability 1e-7, all of them together with less than
1e-6. The same statistic must find out every wrong rule.
"""

from collections import Counter

import pytest
import wrong_rules
from scipy.stats import chi2
from table_model import sequence_law, table_pair

from refimpl import acceptance, generate

FALSE_ALARM = 1e-7
BUDGET = 4
SHARPNESS, TOP_K = 2, 3  # temperature 0.5


def p_value(counts: Counter, law: dict) -> float:
    """Chi-square test; outcomes expected fewer than five times are pooled."""
    total = sum(counts.values())
    if set(counts) - {outcome for outcome, p in law.items() if p}:
        return 0.0
    common = [outcome for outcome, p in law.items() if p * total >= 5]
    cells = [(counts[outcome], float(law[outcome] * total)) for outcome in common]
    rest = total - sum(expected for _, expected in cells)
    if rest > 1e-9:
        cells.append((total - sum(observed for observed, _ in cells), rest))
    statistic = sum((observed - expected) ** 2 / expected for observed, expected in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def output_p_value(method: str, accept: str, batch_size: int = 128, num_sequences: int = 5000) -> float:
    pair = table_pair(4, seed=11)
    shape = {"temperature": 1 / SHARPNESS, "top_k": TOP_K, "seed": 1, "acceptance": accept}
    result = generate(
        pair,
        [[0]] * num_sequences,
        method=method,
        batch_size=batch_size,
        num_speculative_tokens=2,
        max_new_tokens=BUDGET,
        checks="off",
        **shape,
    )
    law = sequence_law(pair.target.table, [0], BUDGET, None, SHARPNESS, TOP_K)
    return p_value(Counter(tuple(s.token_ids) for s in result.sequences), law)


METHODS = ["realigned+static", "masked+fifo", "inplace+grouped", "rollback+fifo"]


@pytest.mark.parametrize("method", METHODS)
def test_rejection_draws_the_target_law(method):
    assert output_p_value(method, "rejection") > FALSE_ALARM


def test_rejection_draws_the_target_law_when_few_rows_roll_each_other_back():
    assert output_p_value("rollback+static", "rejection", batch_size=4, num_sequences=1500) > FALSE_ALARM


def test_coupled_noise_draws_the_target_law():
    assert output_p_value("inplace+fifo", "coupled") > FALSE_ALARM


def test_the_oracle_draws_the_target_law():
    assert output_p_value("autoregressive", "coupled", num_sequences=2000) > FALSE_ALARM


@pytest.mark.filterwarnings("ignore:mean acceptance length")
@pytest.mark.parametrize(
    "rule",
    [
        wrong_rules.ResidualNotTaken,
        wrong_rules.ResidualNotRenormalised,
        wrong_rules.RatioFromUnprocessedLogits,
        wrong_rules.GreedyDraft,
        wrong_rules.RollbackRedraws,
        wrong_rules.OneStreamForAllPurposes,
        wrong_rules.OneStreamForAllRows,
    ],
)
def test_power_to_detect_a_wrong_rule(rule, monkeypatch):
    monkeypatch.setitem(acceptance.RULES, "rejection", rule)
    method = "rollback+fifo" if rule is wrong_rules.RollbackRedraws else "inplace+fifo"
    assert output_p_value(method, "rejection") < FALSE_ALARM
