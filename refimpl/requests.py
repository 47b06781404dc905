"""From what a caller hands in (texts, token lists, Requests) to sequences that the engine can run."""

import operator
from collections.abc import Iterable, Mapping, Set
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from refimpl.core.config import DecodeConfig, Request, require_verify_tokens
from refimpl.core.errors import InputError, shown
from refimpl.core.request import check_stops
from refimpl.core.sequence import Sequence, StopStrings
from refimpl.core.values import require_int
from refimpl.models.adapter import Pair

Prompt = str | Seq[int] | Request


@dataclass(frozen=True, slots=True)
class Prepared:
    """Sequences ready to run.

    Attributes:
        sequences: the samples of the first request, then those of the second, and so on.
        num_cut: prompt tokens cut from the front of each.
        samples: which of its request's samples each is, from 0.
    """

    sequences: list[Sequence]
    num_cut: list[int]
    samples: list[int]


def prepare(pair: Pair, prompts: Seq[Prompt], config: DecodeConfig, max_prompt_tokens: int | None = None) -> Prepared:
    """Tokenize, validate and give every prompt its settings.

    Args:
        pair: supplies tokenizer, vocabulary and context length.
        prompts: in the order in which results are returned.
        config: defaults for what a Request leaves open.
        max_prompt_tokens: keep only the last so many tokens of a prompt; None keeps all.

    Raises:
        InputError: no prompts, an empty one, one too long for the models' context, ids outside the vocabulary, more
            log-probabilities asked for than there are tokens, stop strings that no text can hold, samples that would be
            tied, no draft for a drafter that needs one.
    """
    if not isinstance(pair, Pair):
        raise InputError(f"pair must be one of load_pair or make_pair, not {shown(pair)}")
    prompts = listed(prompts)
    if max_prompt_tokens is not None:
        require_int("max_prompt_tokens", max_prompt_tokens, 1)
    if config.resolved_method.layout and config.drafting.uses_draft:
        pair.require_draft()
    if config.logprobs is not None and config.logprobs > pair.vocab_size:
        raise InputError(f"logprobs must be at most the vocabulary of {pair.vocab_size}, not {config.logprobs}")
    prepared = Prepared([], [], [])
    for place, prompt in enumerate(prompts):
        request = prompt if isinstance(prompt, Request) else Request(prompt)
        token_ids = encode(pair, request.prompt, place)
        cut = 0 if max_prompt_tokens is None else max(0, len(token_ids) - max_prompt_tokens)
        for sample in range(request.n):
            index = len(prepared.sequences)
            prepared.sequences.append(_sequence(pair, request, token_ids[cut:], config, place, index, sample))
            prepared.num_cut.append(cut)
            prepared.samples.append(sample)
    if config.resolved_token_budget is not None:
        most = max(s.num_speculative_tokens for s in prepared.sequences)
        require_verify_tokens(config.resolved_token_budget, most)
    if not config.sampling.greedy:
        _require_distinct_ids(prepared.sequences)
    return prepared


def listed(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Prompts as a list, whatever they come in.

    Raises:
        InputError: there are none, or they have no order, or are one prompt or a tokenizer's mapping.
    """
    if isinstance(prompts, Mapping | set | frozenset):
        advice = ": pass its input_ids" if "input_ids" in prompts else ""
        raise InputError(f"prompts must be a list, not {type(prompts).__name__}{advice}")
    if isinstance(prompts, str | Request) or not isinstance(prompts, Iterable):
        raise InputError("prompts must be a list; put a single prompt into one")
    listed = list(prompts)
    if not listed:
        raise InputError("there are no prompts")
    return listed


def encode(pair: Pair, prompt: str | Seq[int], index: int) -> list[int]:
    """Token ids of a prompt.

    Raises:
        InputError: the prompt is empty, has ids outside the vocabulary, or is text for a pair without tokenizer.
    """
    if isinstance(prompt, str):
        if pair.tokenizer is None:
            raise InputError(f"prompt {index} is text, but the pair {pair.name!r} has no tokenizer: pass token ids")
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"prompt {index} is no text: {error.reason} at character {error.start}") from error
        token_ids = list(pair.tokenizer(prompt)["input_ids"])
    elif isinstance(prompt, Mapping) and "input_ids" in prompt:
        raise InputError(f"prompt {index} is a {type(prompt).__name__}: pass its input_ids")
    elif isinstance(prompt, bytes | bytearray | Mapping | Set):
        raise InputError(f"prompt {index} must be a text or a list of token ids, not {type(prompt).__name__}")
    else:
        token_ids = _integers(prompt, index)
    if not token_ids:
        raise InputError(f"prompt {index} is empty")
    outside = [token for token in token_ids if not 0 <= token < pair.vocab_size]
    if outside:
        raise InputError(f"prompt {index} holds token {shown(outside[0])}, outside the vocabulary of {pair.vocab_size}")
    return token_ids


def _integers(prompt: Seq[int], index: int) -> list[int]:
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        raise InputError(
            f"prompts must be a list of texts or of lists of token ids: prompt {index} is {shown(prompt)}"
        ) from None


def _sequence(
    pair: Pair, request: Request, token_ids: list[int], config: DecodeConfig, place: int, index: int, sample: int
) -> Sequence:
    """One sample of the request that is at that place of the caller's list."""
    max_new_tokens = request.max_new_tokens or config.max_new_tokens
    context = min(model.max_positions for model in pair.models(config.drafting.uses_draft))
    if len(token_ids) + max_new_tokens > context:
        raise InputError(
            f"prompt {place} has {len(token_ids)} tokens: with {max_new_tokens} new ones it does not fit "
            f"the context of {context} (see max_prompt_tokens)"
        )
    stop_token_ids = _first(request.stop_token_ids, config.stop_token_ids, pair.stop_token_ids)
    if stop_token_ids is not pair.stop_token_ids:
        check_stops(stop_token_ids, (), pair.vocab_size)
    stop_strings = tuple(_first(request.stop_strings, config.stop_strings))
    return Sequence(
        index=index,
        token_ids=token_ids,
        max_new_tokens=max_new_tokens,
        num_speculative_tokens=_first(request.num_speculative_tokens, config.num_speculative_tokens),
        stop_token_ids=frozenset(stop_token_ids),
        sequence_id=index if request.sequence_id is None else request.sequence_id + sample,
        seed=_first(request.seed, config.sampling.seed),
        stop_strings=_stop_strings(pair, stop_strings, place),
        draft_cached=0 if config.drafting.uses_draft else None,
    )


def _first(*choices: Any) -> Any:
    return next(choice for choice in choices if choice is not None)


def _stop_strings(pair: Pair, stop_strings: tuple[str, ...], index: int) -> StopStrings | None:
    if not stop_strings:
        return None
    if pair.tokenizer is None:
        raise InputError(f"prompt {index} has stop strings, but the pair {pair.name!r} has no tokenizer")
    _require_that_text_holds(stop_strings, _special_tokens(pair.tokenizer))
    return StopStrings(stop_strings, pair.decode)


def _require_that_text_holds(stop_strings: tuple[str, ...], special_tokens: dict[str, int]) -> None:
    for text, token in ((text, token) for text in stop_strings for token in special_tokens if token in text):
        raise InputError(
            f"stop string {text!r} cannot occur, as special tokens are left out of the text: "
            f"instead put {special_tokens[token]} into stop_token_ids"
        )


def _special_tokens(tokenizer: Any) -> dict[str, int]:
    """Ids of the tokens that decoding leaves out, by name; blank ones may be part of other tokens, too."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {token.content: id_ for id_, token in added.items() if token.special}
    named = zip(getattr(tokenizer, "all_special_tokens", ()), getattr(tokenizer, "all_special_ids", ()), strict=False)
    return {token: id_ for token, id_ in (special | dict(named)).items() if token.strip()}


def _require_distinct_ids(sequences: list[Sequence]) -> None:
    keys = [(s.seed, s.sequence_id) for s in sequences]
    if len(set(keys)) != len(keys):
        double = next(key for key in keys if keys.count(key) > 1)
        raise InputError(
            f"two prompts share seed {double[0]} and sequence id {double[1]}, so their samples would be tied: "
            "give one another seed or sequence id (a sample's own is its place in the results)"
        )
