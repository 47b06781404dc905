"""Wrong lengths, stops, budgets and choices: what the host's integers and the acceptance can get wrong."""

from dataclasses import replace
from typing import Any

import torch

from refimpl import results
from refimpl.core import kernels
from refimpl.core.sequence import Sequence
from refimpl.decoding import rounds
from refimpl.decoding.acceptance import Decision, Proposal, RejectionRule, RowNumbers, matching, rejection
from refimpl.decoding.cached import CachedModel
from refimpl.decoding.sampling import Purpose, RandomSource, probabilities
from refimpl.faults.base import COUPLED, REJECTION, fault, result_changed

PAD_TOKEN = 0

# --- cached lengths ----------------------------------------------------------------------------------------------


@fault(kernels, "draft_cached_after", "acceptance", "INV-6", source="vllm-project/vllm#9730")
def draft_cache_hole(original: Any) -> Any:
    """After a full acceptance the last draft's entry, which was never written, counts as cached."""
    return lambda seq_len, num_drafted, new_seq_len: new_seq_len - 1


@fault(kernels, "draft_cached_after", "crash", "INV-6")
def draft_cache_not_rolled_back(original: Any) -> Any:
    """The draft's cached length still counts the tokens that were rejected."""
    return lambda seq_len, num_drafted, new_seq_len: seq_len + num_drafted - 1


@fault(rounds, "_commit_row", "output", "INV-5", layouts=("masked",))
@result_changed
def next_token_counted_as_cached(right: Any, row: Sequence, *_: Any) -> Any:
    """The target's cached length includes the token chosen last, which it has not been fed."""
    row.target_cached = row.seq_len
    return right


@fault(CachedModel, "rows", "output", "INV-8")
@result_changed
def pad_found_by_token_value(right: Any, _: Any, members: Any) -> Any:
    """A row's length is the number of tokens that differ from the pad id, which is a token like any other."""
    lengths = [sum(token != PAD_TOKEN for token in m.token_ids) for m in members]
    return [row._replace(seq_len=n) for row, n in zip(right, lengths, strict=True)]


# --- stop and budget ---------------------------------------------------------------------------------------------


@fault(Sequence, "extend", "output", None)
@result_changed
def stop_found_in_prompt(right: int, self: Sequence, _: list[int]) -> int:
    """A stop token anywhere in the row ends it, in the prompt too."""
    if self.stop_token_ids & set(self.token_ids[: self.prompt_len]):
        self.stop_reason = "stop"
    return right


@fault(Sequence, "extend", "output", "INV-7")
def stop_does_not_cut(original: Any) -> Any:
    """A stop token inside a block ends the row, but the rest of the block is kept."""

    def extend(self: Sequence, tokens: list[int]) -> int:
        kept = tokens[: self.remaining]
        self.token_ids.extend(kept)
        if self.stop_token_ids & set(kept):
            self.stop_reason = "stop"
        elif self.remaining == 0:
            self.stop_reason = "length"
        return len(kept)

    return extend


@fault(Sequence, "extend", "output", "INV-7", source="huggingface/transformers#47912")
def stop_only_at_block_end(original: Any) -> Any:
    """Only the last token of a block is compared with the stop tokens."""

    def extend(self: Sequence, tokens: list[int]) -> int:
        kept = tokens[: self.remaining]
        self.token_ids.extend(kept)
        if kept[-1] in self.stop_token_ids:
            self.stop_reason = "stop"
        elif self.remaining == 0:
            self.stop_reason = "length"
        return len(kept)

    return extend


@fault(Sequence, "remaining", "output", "INV-7")
def budget_one_too_large(original: Any) -> Any:
    """One token more than the budget is left."""
    return property(lambda self: self.max_new_tokens - self.num_generated + 1)


@fault(Sequence, "extend", "output", None)
@result_changed
def budget_one_too_small(right: int, self: Sequence, _: list[int]) -> int:
    """A row ends one token before its budget is used up."""
    if not self.finished and self.remaining == 1:
        self.stop_reason = "length"
    return right


@fault(results, "make_result", "output", None)
@result_changed
def outputs_in_sorted_order(right: Any, *_: Any) -> Any:
    """Results come in order of prompt length and are not put back into the caller's (published EXSPEC, sorted)."""
    return replace(right, sequences=sorted(right.sequences, key=lambda s: s.num_prompt_tokens))


# --- acceptance --------------------------------------------------------------------------------------------------


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


# --- chance ------------------------------------------------------------------------------------------------------


@fault(RandomSource, "draw", "output", "INV-12", settings=COUPLED, source="NVIDIA/TensorRT-LLM#19487")
def shared_random_stream(original: Any) -> Any:
    """All draws come from one generator, so that a row's tokens depend on its neighbours and on the drafts."""
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


@fault(RandomSource, "draw", "law", None, settings=REJECTION, source="vllm-project/vllm#47386")
def recovery_reuses_draft_noise(original: Any) -> Any:
    """The token after a rejection is drawn with the noise that drew the rejected draft."""

    def draw(self: RandomSource, weights: Any, keys: Any, position: Any, purpose: Purpose) -> torch.Tensor:
        return original(self, weights, keys, position, Purpose.DRAFT if purpose is Purpose.NEXT else purpose)

    return draw
