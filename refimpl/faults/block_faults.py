"""Block verification as it is got wrong: another run of drafts, another residual, numbers that serve twice."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from refimpl.core import kernels
from refimpl.decoding.acceptance import BlockRule, Proposal, RejectionRule, rejection
from refimpl.faults.base import BLOCK, REJECTION, fault, result_changed


@fault(BlockRule, "_accept", "law", None, settings=BLOCK, source="vllm-project/vllm-ascend#7807")
@result_changed
def block_with_the_residual_of_a_token(right: Any, _: Any, __: Any, draft: Tensor, target: Tensor, numbers: Any) -> Any:
    """After the accepted block the next token is drawn from max(p − q, 0), not from max(P · p − q, 0)."""
    accepted, _ = right
    return accepted, rejection.next_weights(target, draft, accepted, numbers.limits)


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
@result_changed
def ratio_of_the_raw_draft(right: Proposal, _: Any, logits: Tensor, *__: Any) -> Proposal:
    """The draft's token is drawn from its processed distribution; ratio and residual use the plain softmax."""
    return replace(right, probabilities=logits.double().softmax(dim=-1))
