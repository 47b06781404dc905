"""The acceptance rules alone, on 20,000 rows: right ones pass, and every rule that is wrong in the wild is found out.

The false-alarm rate of a test is 1e-6; a wrong rule must be rejected with a margin of a thousand. The rows differ in
the seed, so that numbers that ignore it are the same in all rows. Two errors of block verification, a token's residual
and numbers that serve twice, move the law by too little: exact enumeration judges them (test_block_rule.py).
"""

import pytest
import wrong_rules

from refimpl.core.config import SamplingConfig
from refimpl.decoding import acceptance
from refimpl.decoding.acceptance import BlockRule, CoupledRule, RejectionRule
from refimpl.faults.law import check_law
from refimpl.faults.rule_law import KEY_PARTS, rule_p_value

FALSE_ALARM, MARGIN = 1e-6, 1e3
PLAIN = SamplingConfig(temperature=2.0, seed=1)
NUCLEUS = SamplingConfig(temperature=2.0, top_p=0.9, seed=1)
TOP_3 = SamplingConfig(temperature=2.0, top_k=3, seed=1)
ONLY_WITH_FILTERS = (wrong_rules.TopPAfterTheRatio, wrong_rules.DraftDrawnFromAnotherQ)


@pytest.mark.parametrize("vary", KEY_PARTS)
@pytest.mark.parametrize("sampling", [PLAIN, NUCLEUS, TOP_3], ids=["plain", "top-p", "top-k"])
@pytest.mark.parametrize("rule", [RejectionRule, BlockRule, CoupledRule])
def test_a_right_rule_draws_the_targets_law(rule, sampling, vary):
    assert rule_p_value(rule(sampling), vary) > FALSE_ALARM


@pytest.mark.parametrize("rule", wrong_rules.ALL + wrong_rules.OF_BLOCKS)
def test_power_to_reject_a_wrong_rule(rule):
    sampling = NUCLEUS if rule in ONLY_WITH_FILTERS else PLAIN
    p_value = rule_p_value(rule(sampling), "seed")
    print(
        f"{rule.__name__}: p = {p_value:.1g}, {FALSE_ALARM / max(p_value, 1e-300):.1g} times below the false-alarm rate"
    )
    assert p_value < FALSE_ALARM / MARGIN


@pytest.mark.parametrize(
    "rule", [wrong_rules.RecoveryWithDraftNoise, wrong_rules.OneUniformARound, wrong_rules.SeedlessBonus]
)
def test_the_law_test_of_the_fault_zoo_has_that_power(monkeypatch, rule):
    """The first and the last change the law of a few thousand sequences with one seed too little, or not at all."""
    monkeypatch.setitem(acceptance.RULES, "rejection", rule)
    assert check_law().p_value < FALSE_ALARM / MARGIN
