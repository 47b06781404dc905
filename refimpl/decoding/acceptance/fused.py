"""A rule in graphs of `torch.compile`: a decision is a few launches, where PyTorch's operators take up to a hundred."""

from copy import copy
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from refimpl.decoding.acceptance.base import AcceptanceRule
from refimpl.decoding.acceptance.records import Decision, DrawnMass, Proposal, RowNumbers
from refimpl.decoding.sampling import RowKeys


def fuse(rule: AcceptanceRule, **options: Any) -> AcceptanceRule:
    """The same rule, whose proposals and decisions are fused, each decision together with its table.

    Args:
        rule: whose source looks at no value on the host.
        **options: of `torch.compile`.
    """
    fused = copy(rule)
    propose, decide = torch.compile(_proposed, **options), torch.compile(_decided, **options)

    def proposal(logits: Tensor, keys: RowKeys, position: Tensor) -> Proposal:
        return Proposal(*propose(rule, logits, keys, position))

    def decision(proposal: Proposal, target_logits: Tensor, numbers: RowNumbers) -> Decision:
        accepted, emitted, drawn, table = decide(rule, proposal, target_logits, numbers)
        return Decision(accepted, emitted, tuple(DrawnMass(*each) for each in drawn), table)

    if not rule.sampling.greedy:  # else it is one launch already
        fused.propose = proposal  # type: ignore[method-assign]
    fused.decide = decision  # type: ignore[method-assign]
    return fused


def _proposed(
    rule: AcceptanceRule, logits: Float[Tensor, "batch 1 vocab"], keys: RowKeys, position: Int[Tensor, "batch 1"]
) -> tuple[Tensor, Tensor | None]:
    found = rule.propose(logits, keys, position)
    return found.tokens, found.probabilities


def _decided(
    rule: AcceptanceRule, proposal: Proposal, target_logits: Float[Tensor, "batch k1 vocab"], numbers: RowNumbers
) -> tuple[Tensor, Tensor, list[tuple[str, Tensor, Tensor, Tensor]], Tensor]:
    found = rule.decide(proposal, target_logits, numbers)
    drawn = [(each.whose, each.mass, each.tokens, each.num_used) for each in found.drawn]
    return found.num_accepted, found.emitted, drawn, found.table()
