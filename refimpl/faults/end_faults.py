"""Where a row ends, and what is reported of it: stops, budgets, texts, counts, log-probabilities."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from refimpl import results
from refimpl.core.records import RowOutcome
from refimpl.core.sequence import Sequence
from refimpl.decoding import rounds
from refimpl.decoding.cached import CachedModel
from refimpl.faults.base import fault, result_changed


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


@fault(Sequence, "extend", "output", "INV-7", sources=("huggingface/transformers#47912",))
def stop_only_at_block_end(original: Any) -> Any:
    """Only the last token of a block is compared with the stop tokens.

    Answers run on for some tokens behind their end, unless the end falls on the last token of a round.
    """

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


@fault(Sequence, "extend", "output", None, sources=("ikawrakow/ik_llama.cpp#2358",))
@result_changed
def budget_one_too_small(right: int, self: Sequence, _: list[int]) -> int:
    """A row ends one token before its budget is used up.

    Answers have fewer tokens than were asked for, though nothing stopped them.
    """
    if not self.finished and self.remaining == 1:
        self.stop_reason = "length"
    return right


@fault(Sequence, "extend", "output", "INV-7", sources=("sgl-project/sglang#31599",))
def budget_before_earlier_stop(original: Any) -> Any:
    """A block that reaches the budget is kept whole, whatever stop token it holds before.

    Some answers that reach their budget run on behind their end-of-sequence token.
    """

    def extend(self: Sequence, tokens: list[int]) -> int:
        if len(tokens) < self.remaining:
            return original(self, tokens)
        kept = tokens[: self.remaining]
        self.token_ids.extend(kept)
        self.stop_reason = "length"
        return len(kept)

    return extend


@fault(Sequence, "extend", "output", None, settings={"stop_as_text": True}, sources=("vllm-project/vllm#47616",))
def stop_string_trims_text_only(original: Any) -> Any:
    """A stop string cuts the text; token ids and log-probabilities run on to the end of the block.

    Text and token ids disagree, and users pay for tokens that they were not shown.
    """

    def extend(self: Sequence, tokens: list[int]) -> int:
        strings, self.stop_strings = self.stop_strings, None
        kept = original(self, tokens)
        self.stop_strings = strings
        if strings and strings.appear_in(self.generated):
            self.stop_reason = "stop"
        return kept

    return extend


# --- what is reported --------------------------------------------------------------------------------------------


@fault(results, "make_result", "output", None)
@result_changed
def outputs_in_sorted_order(right: Any, *_: Any) -> Any:
    """Results come in order of prompt length and are not put back into the caller's (published EXSPEC, sorted)."""
    return replace(right, sequences=sorted(right.sequences, key=lambda s: s.num_prompt_tokens))


@fault(CachedModel, "forward", "output", None, sources=("vllm-project/vllm#14645",))
@result_changed
def logits_in_another_order(right: Tensor, self: CachedModel, *_: Any) -> Tensor:
    """The target's logits come in another order than the rows of the batch.

    Answers are swapped between the requests of a batch.
    """
    return right.flip(0) if self.role == "target" else right


@fault(rounds, "_logprobs", "report", None, sources=("vllm-project/vllm#33391",))
def logprobs_of_another_row(original: Any) -> Any:
    """A token's log-probability is read from the logits of the row before.

    Texts are right and every score is a neighbour's: perplexities and rankings are wrong.
    """
    return lambda logits, *rest: original(logits.roll(1, dims=0), *rest)


@fault(rounds, "_commit_row", "report", None, sources=("ggml-org/llama.cpp#27972", "ggml-org/llama.cpp#27196"))
@result_changed
def accepted_draft_has_probability_one(right: RowOutcome, *_: Any) -> RowOutcome:
    """Accepted drafts are reported with log-probability 0, since only the token after them is looked up.

    Texts are right; scores say that the model is certain of nearly every token.
    """
    found = [replace(each, logprob=0.0) if i < right.accepted else each for i, each in enumerate(right.logprobs)]
    return replace(right, logprobs=tuple(found))


@fault(results, "acceptance_stats", "report", None, sources=("vllm-project/vllm#56101", "sgl-project/sglang#39826"))
def statistics_count_the_cut(original: Any) -> Any:
    """Tokens after a stop or beyond the budget count as generated.

    Counters show more tokens than were delivered, so acceptance looks better than it is.
    """

    def stats(rows: Iterable[RowOutcome]) -> Any:
        return original([replace(row, kept=row.accepted + 1) for row in rows])

    return stats
