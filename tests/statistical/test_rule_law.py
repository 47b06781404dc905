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
from refimpl.faults import FAULTS
from refimpl.faults.law import check_law
from refimpl.faults.rule_law import KEY_PARTS, rule_p_value

FALSE_ALARM, MARGIN = 1e-6, 1e3
PLAIN = SamplingConfig(temperature=2.0, seed=1)
NUCLEUS = SamplingConfig(temperature=2.0, top_p=0.9, seed=1)
TOP_3 = SamplingConfig(temperature=2.0, top_k=3, seed=1)
RULES = {"rejection": RejectionRule, "block": BlockRule}
ZOO = (*wrong_rules.ZOO, "block-mass-is-not-capped", "block-ends-at-the-first-rejection")


@pytest.mark.parametrize("vary", KEY_PARTS)
@pytest.mark.parametrize("sampling", [PLAIN, NUCLEUS, TOP_3], ids=["plain", "top-p", "top-k"])
@pytest.mark.parametrize("rule", [RejectionRule, BlockRule, CoupledRule])
def test_a_right_rule_draws_the_targets_law(rule, sampling, vary):
    assert rule_p_value(rule(sampling), vary) > FALSE_ALARM


@pytest.mark.parametrize("rule", wrong_rules.ALL)
def test_power_to_reject_a_wrong_rule(rule):
    assert rule_p_value(rule(PLAIN), "seed") < FALSE_ALARM / MARGIN


@pytest.mark.parametrize("name", ZOO)
def test_power_to_reject_a_fault_of_a_rule(name):
    settings = FAULTS[name].settings
    sampling = TOP_3 if "top_k" in settings else PLAIN
    with FAULTS[name].injected():
        assert rule_p_value(RULES[settings.get("acceptance", "rejection")](sampling), "seed") < FALSE_ALARM / MARGIN


@pytest.mark.parametrize("rule", [wrong_rules.OneUniformARound, wrong_rules.SeedlessBonus])
def test_the_law_test_of_the_fault_zoo_has_that_power(monkeypatch, rule):
    """The second changes nothing of the law of sequences with one seed."""
    monkeypatch.setitem(acceptance.RULES, "rejection", rule)
    assert check_law().p_value < FALSE_ALARM / MARGIN
