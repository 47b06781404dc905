"""How many drafts are accepted, and which token follows them: one file for each family of rules.

A rule proposes the draft's tokens and later decides on them, in pure functions on ``[batch, k]``. Greedy and coupled
accept a draft when the target chose the same token (`matching`), rejection sampling compares probabilities
(`rejection`: draft by draft, `block`: all drafts of a row together), and `forced` accepts given lengths.
"""

import torch

from refimpl.core.config import AcceptanceName, DecodeConfig
from refimpl.decoding.acceptance.base import AcceptanceRule
from refimpl.decoding.acceptance.block import BlockRule
from refimpl.decoding.acceptance.forced import ForcedRule
from refimpl.decoding.acceptance.fused import fuse
from refimpl.decoding.acceptance.matching import CoupledRule, GreedyRule
from refimpl.decoding.acceptance.records import Decision, Proposal, RowNumbers
from refimpl.decoding.acceptance.rejection import RejectionRule
from refimpl.decoding.sampling import RandomSource

RULES: dict[AcceptanceName, type[AcceptanceRule]] = {
    "greedy": GreedyRule,
    "coupled": CoupledRule,
    "rejection": RejectionRule,
    "block": BlockRule,
}


def make_rule(
    config: DecodeConfig, source: RandomSource | None = None, device: torch.device | None = None
) -> AcceptanceRule:
    """The rule that a config asks for, for decisions on a device; None for the CPU."""
    if config.resolved_acceptance == "forced":
        return ForcedRule(config.sampling, config.forced_lengths, source, device)
    return RULES[config.resolved_acceptance](config.sampling, source)
