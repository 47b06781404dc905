"""Wrong decisions: drafts accepted that should not be, next tokens from the wrong place, chance used twice."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from refimpl.core import kernels
from refimpl.decoding.acceptance import BlockRule, Decision, Proposal, RejectionRule, RowNumbers, matching, rejection
from refimpl.decoding.acceptance.records import DrawnMass
from refimpl.decoding.sampling import Purpose, RandomSource, probabilities
from refimpl.faults.base import BLOCK, COUPLED, REJECTION, fault, result_changed


@fault(matching, "match", "output", None)
@result_changed
def dsd_next_token_from_draft(right: Decision, draft_tokens: Any, target_tokens: Any, _: Any) -> Decision:
    """At the first mismatch the draft's token is appended instead of the target's (published DSD)."""
    return replace(right, emitted=torch.cat([draft_tokens, target_tokens[:, -1:]], dim=1))


@fault(kernels, "num_accepted", "output", "INV-4")
def matches_counted_past_mismatch(original: Any) -> Any:
    """All matching drafts are counted, not the leading run of them."""
    return lambda matches, limit: kernels.minimum(sum(matches, limit * 0), limit)


@fault(kernels, "num_accepted", "output", "INV-4")
@result_changed
def one_accepted_too_many(right: Any, _: Any, limit: Any) -> Any:
    """The first rejected draft's successor is committed too."""
    return kernels.minimum(right + 1, limit)


@fault(kernels, "num_accepted", "crash", None)
def row_limit_ignored(original: Any) -> Any:
    """A row accepts drafts beyond its own k, because another row's is larger."""
    return lambda matches, limit: original(matches, limit * 0 + 64)


@fault(
    matching,
    "match",
    "output",
    None,
    sources=("vllm-project/vllm-xpu-kernels#599", "vllm-project/vllm-xpu-kernels#600", "vllm-project/vllm#54740"),
)
@result_changed
def short_row_in_wide_buffer(right: Decision, _: Tensor, target_tokens: Tensor, limits: Tensor) -> Decision:
    """All rows are taken to have as many drafts as the widest: the token after a short row's last draft is read from
    the last column of the batch.

    Right while every row drafts alike. With lookup, whose drafts are ragged, or near the end of a budget: garbage, or a
    failed assertion.
    """
    return replace(right, emitted=right.emitted.scatter(1, limits[:, None], target_tokens[:, -1:]))


# --- chance ------------------------------------------------------------------------------------------------------


@fault(
    RandomSource,
    "draw",
    "output",
    "INV-12",
    settings=COUPLED,
    sources=("NVIDIA/TensorRT-LLM#19487", "NVIDIA/TensorRT-LLM#17599"),
)
def shared_random_stream(original: Any) -> Any:
    """All draws come from one generator, so that a row's tokens depend on its neighbours and on the drafts.

    One seed gives another text as soon as other requests are in the batch.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(self: Any, weights: Any, keys: Any, position: Any, purpose: Any) -> Any:
        noise = torch.rand(weights.shape, generator=generator, dtype=torch.float64).clamp(min=1e-12)
        return (weights / -noise.log()).argmax(dim=-1)

    return draw


@fault(RandomSource, "draw", "output", "INV-12", settings=COUPLED)
def noise_keyed_by_batch_row(original: Any) -> Any:
    """Random numbers are keyed by the row of the batch instead of the sequence."""

    def draw(self: Any, weights: Any, keys: Any, position: Any, purpose: Any) -> Any:
        return original(self, weights, replace(keys, sequence=torch.arange(len(keys.sequence))), position, purpose)

    return draw


@fault(rejection, "next_weights", "law", None, settings=REJECTION)
def residual_forgotten(original: Any) -> Any:
    """After a rejection the next token is drawn from p instead of the residual."""
    return lambda target, draft, accepted, limits: target[torch.arange(len(accepted)), accepted]


@fault(kernels, "accepts", "law", None, settings=REJECTION)
def ratio_upside_down(original: Any) -> Any:
    """Drafts are accepted with probability q/p instead of p/q."""
    return lambda uniform, target, draft: original(uniform, draft, target)


@fault(RejectionRule, "propose", "law", "INV-12", settings=REJECTION | {"top_k": 3})
@result_changed
def draft_drawn_from_another_q(right: Proposal, self: Any, logits: Any, keys: Any, position: Any) -> Proposal:
    """The draft's token is drawn from the unfiltered distribution, the ratio uses the filtered one (seen in the
    wild)."""
    unfiltered = probabilities(logits, replace(self.sampling, top_k=0))
    return replace(right, tokens=self.source.draw(unfiltered, keys, position, Purpose.DRAFT))


@fault(RejectionRule, "decide", "law", None, layouts=("rollback",), settings=REJECTION)
@result_changed
def rollback_draws_again(right: Decision, self: Any, _: Any, target_logits: Any, numbers: RowNumbers) -> Decision:
    """Rows cut to the batch minimum draw their last token from p again instead of keeping the accepted draft."""
    drafting = numbers.limits > 0
    at = int(right.num_accepted[drafting].min()) if drafting.any() else 0
    p = probabilities(target_logits[:, at : at + 1], self.sampling)
    again = self.source.draw(p, numbers.keys, numbers.position[:, at : at + 1], Purpose.NEXT)
    emitted = right.emitted.clone()
    emitted[:, at] = torch.where(right.num_accepted > at, again[:, 0], emitted[:, at])
    return replace(right, emitted=emitted)


@fault(RandomSource, "draw", "law", None, settings=REJECTION, sources=("vllm-project/vllm#47386",))
def recovery_reuses_draft_noise(original: Any) -> Any:
    """The token after a rejection is drawn with the noise that drew the rejected draft.

    Greedy output is right; samples favour what the draft has just been refused.
    """

    def draw(self: RandomSource, weights: Any, keys: Any, position: Any, purpose: Purpose) -> torch.Tensor:
        return original(self, weights, keys, position, Purpose.DRAFT if purpose is Purpose.NEXT else purpose)

    return draw


@fault(
    RejectionRule,
    "propose",
    "law",
    None,
    settings=REJECTION | {"top_k": 3},
    sources=("huggingface/transformers#47932",),
)
@result_changed
def ratio_of_the_raw_draft(right: Proposal, _: Any, logits: Tensor, *__: Any) -> Proposal:
    """The draft's token is drawn from its processed distribution; ratio and residual use the plain softmax.

    With top-k or top-p, sampled text drifts: drafts pass too often, and what replaces a rejected one is drawn from
    mass that the draft could never propose.
    """
    return replace(right, probabilities=logits.double().softmax(dim=-1))


@fault(
    RejectionRule,
    "decide",
    "law",
    None,
    settings=REJECTION,
    sources=("sgl-project/sglang#32922", "sgl-project/sglang#31214"),
)
def greedy_in_verify(original: Any) -> Any:
    """Verification takes the most probable token whatever the temperature is, where a kernel that samples is missing.

    Temperature and top-p have no effect, and nothing says so: long reasoning ends in loops.
    """
    return lambda self, *arguments: matching.GreedyRule(self.sampling, self.source).decide(*arguments)


@fault(RejectionRule, "_accept", "law", None, settings=REJECTION)
def accepted_by_the_probability_of_another_token(original: Any) -> Any:
    """A draft is accepted with probability q/p, where p is that of the token which the target has drawn itself; that
    token takes the place of a rejected draft.

    A token that the target gives 0.6 % is 87 % of the samples, because the draft likes it. Greedy output is right.
    """

    def accept(self: RejectionRule, drawn: DrawnMass, _: Tensor, target: Tensor, numbers: RowNumbers) -> Any:
        own = self.source.draw(target, numbers.keys, numbers.position, Purpose.NEXT)
        p = target.gather(-1, own[..., None])[:, :-1, 0]
        passed = self.source.accepts(drawn.mass, p, numbers.keys, numbers.position[:, :-1])
        accepted = kernels.num_accepted(passed.long().unbind(dim=1), drawn.num_used)
        return accepted, target[torch.arange(len(accepted)), accepted]  # the same numbers draw `own` from it again

    return accept


# --- block verification ------------------------------------------------------------------------------------------


@fault(BlockRule, "_accept", "law", None, settings=BLOCK, sources=("vllm-project/vllm-ascend#7807",))
@result_changed
def block_with_the_residual_of_a_token(right: Any, _: Any, __: Any, draft: Tensor, target: Tensor, numbers: Any) -> Any:
    """After the accepted block the next token is drawn from max(p − q, 0), not from max(P · p − q, 0).

    Samples are off by a percent or two. No greedy test can see it, and few statistical ones.
    """
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
