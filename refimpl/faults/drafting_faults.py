"""Wrong proposals, wrong accounts of them, and budgets that know too much."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import accumulate
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from refimpl.core import kernels
from refimpl.core.sequence import Sequence
from refimpl.decoding import prefill
from refimpl.decoding.acceptance import Proposal
from refimpl.decoding.drafters import (
    Drafts,
    HybridDrafter,
    ModelDrafter,
    TargetStates,
    head,
    model,
    proposal_tracker,
    states,
)  # fmt: skip
from refimpl.decoding.drafters.proposal_tracker import ProposalTracker
from refimpl.drafting.budgets import CapacityBudget
from refimpl.drafting.budgets.base import ranked
from refimpl.faults.base import REJECTION, fault, result_changed

LOOKUP, HYBRID = {"drafter": "ngram"}, {"drafter": "hybrid"}
HEAD = {"drafter": "head"}
CAPACITY = {"draft_budget": "capacity:256"}
TILE, TILE_COST = 2, 0.02  # drafts that cost as much as one of them, over a round without drafts
THRESHOLD = 0.3
SOLO = {"draft_budget": "by_load:2=0"}  # drafts for a row that is alone
PADDING, LEFT_THERE = 15, 7.75  # rows of an output matrix beyond the vocabulary; the integer model's logits end at 8
CONFIDENCE = {"draft_budget": f"confidence:{THRESHOLD}"}


@fault(Proposal, "distributions", "law", None, settings=REJECTION | LOOKUP)
@result_changed
def looked_up_with_the_q_of_a_draw(right: Any, self: Proposal, vocab_size: int) -> Tensor | None:
    """A token that was looked up is accepted, and what follows drawn, as if it had been drawn evenly."""
    return right if self.looked_up is None else torch.full_like(right, 1 / vocab_size)


@fault(HybridDrafter, "draft", "crash", "INV-6", settings=HYBRID)
@result_changed
def lookup_counts_as_passes(right: Drafts, *_: Any) -> Drafts:
    """After a round in which the draft did not run, its cached length grows as if it had."""
    return replace(right, passes=right.proposal.tokens.shape[1])


@fault(states, "behind", "acceptance", "INV-22", settings=HEAD)
def head_goes_on_behind_rejected_drafts(original: Any) -> Any:
    """The head begins with the state behind the last draft that was verified, whether it was accepted or not."""
    return lambda values, kept: [*values]


@fault(TargetStates, "commit", "acceptance", "INV-22", settings=HEAD, sources=("turbo-tan/llama.cpp-tq3#79",))
@result_changed
def drafter_state_shared(_: None, self: TargetStates, members: Seq[Sequence], __: Seq[int]) -> None:
    """The state that the head goes on from is stored once, for the first row, and serves all of them.

    With one request drafts are good; with several, acceptance collapses for all but one.
    """
    going_on = [member.index for member in members if self.has(member)]
    self._kept |= {index: replace(self._kept[going_on[0]]) for index in going_on}


@fault(
    head,
    "cut",
    "acceptance",
    "INV-22",
    settings=HEAD | {"attending_head": True},
    sources=("turbo-tan/llama.cpp-tq3#79", "TheTom/llama-cpp-turboquant#306"),
)
def head_kv_not_rolled_back(original: Any) -> Any:
    """The K/V that a head has written for its drafts stay when the row drafts again.

    Acceptance falls from a request's first rounds on, or the backend refuses positions that go back.
    """
    return lambda entries, n: entries


@fault(ModelDrafter, "_feed", "acceptance", None, sources=("sgl-project/sglang#37472",))
@result_changed
def draft_beyond_the_vocabulary(right: Tensor, *_: Any) -> Tensor:
    """The draft's logits are not cut where the vocabulary ends: it proposes ids of rows that pad its output matrix.

    Now and then an index error or a device-side assertion ends the server. Where the target takes any id, drafts are
    rejected that were never tokens.
    """
    return torch.nn.functional.pad(right, (0, PADDING), value=LEFT_THERE)


# --- budgets -----------------------------------------------------------------------------------------------------


@fault(
    proposal_tracker, "survival", "law", None, layouts=("realigned", "masked", "inplace"), settings=REJECTION | CAPACITY
)
def own_token_score(original: Any) -> Any:
    """Drafts are ranked by the probability of what was drawn, so likely tokens are verified more often (TETRIS)."""
    return lambda score, draft, tokens: original("own_token", draft, tokens)


@fault(ProposalTracker, "finish", "law", None, settings=REJECTION | CONFIDENCE)
@result_changed
def stop_and_drop(right: list[int], self: ProposalTracker, tokens: Tensor) -> list[int]:
    """A draft that turns out unlikely is dropped after it was drawn."""
    own = proposal_tracker.survival("own_token", torch.cat(self._seen, dim=1)[:, : tokens.shape[1]], tokens)
    sure = (own >= THRESHOLD).sum(dim=1).tolist()
    return [min(pair) for pair in zip(right, sure, strict=True)]


@fault(CapacityBudget, "after", "nothing", "INV-20", settings=CAPACITY)
def argmax_budget(original: Any) -> Any:
    """The capacity that would give most tokens per second is sought among estimates that read the drafts to be cut."""

    def after(self: CapacityBudget, lengths: Seq[int], survival: Seq[Seq[float]]) -> list[int]:
        order = ranked(lengths, survival)
        tokens = accumulate((estimate for estimate, _ in order), initial=float(len(lengths)))
        speeds = [expected / (1 + TILE_COST * -(-count // TILE)) for count, expected in enumerate(tokens)]
        chosen = [row for _, row in order[: speeds.index(max(speeds))]]
        return [chosen.count(row) for row in range(len(lengths))]

    return after


# --- the draft's cache -------------------------------------------------------------------------------------------


@fault(
    kernels,
    "draft_cached_after",
    "acceptance",
    "INV-6",
    sources=("vllm-project/vllm#9730", "NVIDIA/TensorRT-LLM#5285", "ohdearquant/lattice#1396"),
)
def draft_cache_hole(original: Any) -> Any:
    """After a full acceptance the last draft's entry, which was never written, counts as cached.

    Acceptance falls after every round that accepted all drafts: the better the draft, the more is lost.
    """
    return lambda seq_len, num_drafted, new_seq_len: new_seq_len - 1


@fault(
    kernels,
    "draft_cached_after",
    "crash",
    "INV-6",
    sources=("vllm-project/vllm-ascend#14883", "turbo-tan/llama.cpp-tq3#79"),
)
def draft_cache_not_rolled_back(original: Any) -> Any:
    """The draft's cached length still counts the tokens that were rejected.

    The draft goes on behind rejected tokens: acceptance collapses, or the backend refuses positions that decrease.
    """
    return lambda seq_len, num_drafted, new_seq_len: seq_len + num_drafted - 1


@fault(model, "catch_up", "acceptance", "INV-3", settings=SOLO, sources=("NVIDIA/TensorRT-LLM#16888",))
def no_draft_round_leaves_a_hole(original: Any) -> Any:
    """Tokens of rounds without drafts count as cached by the draft, which was never fed them.

    Acceptance collapses after a busy time in which drafting was switched off, and stays low until the request ends.
    """

    def catch_up(*arguments: Any) -> Any:
        with patch.object(prefill, "_feed", lambda *_: None):
            return original(*arguments)

    return catch_up
