"""Block verification as it is got wrong: another run of drafts, another residual, numbers that serve twice."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from refimpl.core import kernels
from refimpl.decoding.acceptance import BlockRule, DrawnMass, Proposal, RejectionRule, RowNumbers, rejection
from refimpl.faults.base import BLOCK, REJECTION, fault


@fault(BlockRule, "_accept", "law", None, settings=BLOCK, source="vllm-project/vllm-ascend#7807")
def block_with_the_residual_of_a_token(original: Any) -> Any:
    """After the accepted block the next token is drawn from max(p − q, 0), not from max(P · p − q, 0)."""

    def accept(self: BlockRule, drawn: DrawnMass, draft: Tensor, target: Tensor, numbers: RowNumbers) -> Any:
        accepted, _ = original(self, drawn, draft, target, numbers)
        return accepted, rejection.next_weights(target, draft, accepted, numbers.limits)

    return accept


@fault(kernels, "last_accepted", "law", None, settings=BLOCK)
def block_ends_at_the_first_rejection(original: Any) -> Any:
    """The leading run of drafts that pass is accepted, as if each were tested alone."""
    return kernels.num_accepted


@fault(kernels, "block_mass", "law", None, settings=BLOCK)
def block_mass_is_not_capped(original: Any) -> Any:
    """The ratio of a whole prefix is taken, so that a likely draft pays for all that follow."""
    return lambda mass, target, draft: mass * target / draft


@fault(BlockRule, "fresh_numbers", "law", None, settings=BLOCK)
def block_draws_with_old_numbers(original: Any) -> Any:
    """Drafts behind the end of a block are drawn again with the numbers that the block was judged by."""
    return False


@fault(
    RejectionRule, "propose", "law", None, settings=REJECTION | {"top_k": 3}, source="huggingface/transformers#47932"
)
def ratio_of_the_raw_draft(original: Any) -> Any:
    """The draft's token is drawn from its processed distribution; ratio and residual use the plain softmax."""

    def propose(self: RejectionRule, logits: Tensor, keys: Any, position: Tensor) -> Proposal:
        right = original(self, logits, keys, position)
        return replace(right, probabilities=logits.double().softmax(dim=-1))

    return propose
