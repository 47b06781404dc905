"""Logits processors of the oracle: transformers' own, called with the whole text, one token at a time."""

from typing import Any

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from refimpl.core.sequence import Sequence


def processors_of(sequence: Sequence) -> LogitsProcessorList:
    """What a sequence's settings stand for, in transformers' order."""
    settings, found = sequence.processing, LogitsProcessorList()
    if settings is None:
        return found
    if settings.logit_bias:
        found.append(SequenceBiasLogitsProcessor([[[token], bias] for token, bias in settings.logit_bias.items()]))
    if settings.repetition_penalty not in (None, 1):
        found.append(RepetitionPenaltyLogitsProcessor(settings.repetition_penalty))
    if settings.frequency_penalty or settings.presence_penalty:
        _, frequency, presence = settings.penalties
        found.append(CountPenalties(sequence.prompt_len, frequency, presence))
    if settings.min_new_tokens and sequence.stop_token_ids:
        stops = sorted(sequence.stop_token_ids)
        found.append(MinNewTokensLengthLogitsProcessor(sequence.prompt_len, settings.min_new_tokens, stops))
    if settings.bad_words_ids:
        found.append(NoBadWordsLogitsProcessor([list(word) for word in settings.bad_words_ids]))
    if (allowed := settings.allowed_token_ids) is not None:
        found.append(PrefixConstrainedLogitsProcessor(lambda row, ids: list(allowed), 1))
    found.extend(settings.logits_processors or ())
    if callable(settings.grammar):
        found.append(Grammar(settings.grammar(), sequence))
    return found


def process(processors: LogitsProcessorList, text: list[int], logits: Tensor) -> Tensor:
    """Logits ``[vocab]`` of the next token, processed in float32 at least."""
    if not processors:
        return logits
    ids: Any = torch.tensor([text], device=logits.device)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    return processors(ids, wide[None])[0]


class CountPenalties:
    """Frequency and presence penalties, which transformers does not have, counted token by token."""

    def __init__(self, prompt_len: int, frequency: float, presence: float):
        self.prompt_len, self.frequency, self.presence = prompt_len, frequency, presence

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """See `LogitsProcessor`."""
        scores, generated = scores.clone(), input_ids[0, self.prompt_len :].tolist()
        for token in set(generated):
            scores[0, token] -= self.frequency * generated.count(token) + self.presence
        return scores


class Grammar:
    """A mask of what a grammar allows; its matcher reads every token once, and never goes back."""

    def __init__(self, matcher: Any, sequence: Sequence):
        self.matcher, self.num_read, self.stops = matcher, sequence.prompt_len, sequence.stop_token_ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """See `LogitsProcessor`."""
        for token in input_ids[0, self.num_read :].tolist():
            assert self.matcher.advance([token]) == 1
        self.num_read = input_ids.shape[1]
        mask = self.matcher.allowed()
        goes_on = [token for token in mask.nonzero()[0].tolist() if token not in self.stops]
        stops = self.stops if self.matcher.can_end or not goes_on else []
        allowed = [*goes_on, *(token for token in stops if token < len(mask))]
        return torch.full_like(scores, -torch.inf).index_copy(
            1, torch.tensor(allowed, device=scores.device), scores[:, allowed]
        )
