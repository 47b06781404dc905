"""From what a caller hands in (texts, token lists, Requests) to sequences that the engine can run."""

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

from refimpl.core.config import DecodeConfig, SamplingConfig
from refimpl.core.errors import InputError, require, shown
from refimpl.core.processing import Processing
from refimpl.core.request import Request
from refimpl.core.sequence import Sequence, StopStrings
from refimpl.core.shown import counted
from refimpl.core.tokens import check_stops
from refimpl.core.values import require_int
from refimpl.decoding.grammars import matcher_maker
from refimpl.models.adapter import Pair

Prompt = str | Seq[int] | Request


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sequence that is ready to run.

    Attributes:
        sequence: tokens and settings.
        num_cut: tokens cut from the front of its prompt.
        sample: which of its request's samples it is, from 0.
        arrival_s: seconds after the start of the run at which it comes.
    """

    sequence: Sequence
    num_cut: int
    sample: int
    arrival_s: float


def prepare(
    pair: Pair, prompts: Seq[Prompt], config: DecodeConfig, max_prompt_tokens: int | None = None
) -> list[Sequence]:
    """Tokenize, validate and give every prompt its settings.

    Args:
        pair: supplies tokenizer, vocabulary and context length.
        prompts: in the order in which results are returned.
        config: defaults for what a Request leaves open.
        max_prompt_tokens: keep only the last so many tokens of a prompt; None keeps all.

    Returns:
        The samples of the first request, then those of the second, and so on.

    Raises:
        InputError: no prompts, an empty one, one too long for the models' context or for `max_model_len`, ids outside
            the vocabulary, more log-probabilities asked for than there are tokens, stop strings that no text can hold,
            samples that would be tied, no draft for a drafter that needs one, arrivals that go backwards.
    """
    return [each.sequence for each in SequenceMaker(pair, config, max_prompt_tokens).make(prompts)]


class SequenceMaker:
    """Makes sequences of prompts that come bit by bit; arguments as for `prepare`."""

    def __init__(self, pair: Pair, config: DecodeConfig, max_prompt_tokens: int | None = None):
        if not isinstance(pair, Pair):
            raise InputError(f"pair must be one of load_pair or make_pair, not {shown(pair)}")
        if max_prompt_tokens is not None:
            require_int("max_prompt_tokens", max_prompt_tokens, 1)
        if config.resolved_method.layout and config.drafting.uses_draft:
            pair.require_draft()
        if config.resolved_method.layout and config.drafting.drafter == "head":
            pair.require_head()
        if config.logprobs is not None and config.logprobs > pair.vocab_size:
            raise InputError(f"logprobs must be at most the vocabulary of {pair.vocab_size}, not {config.logprobs}")
        if config.max_model_len is not None and config.max_model_len > pair.target.max_positions:
            raise InputError(
                f"max_model_len {config.max_model_len} is more than the context of {pair.target.max_positions}"
            )
        self.pair, self.config, self.max_prompt_tokens = pair, config, max_prompt_tokens
        self.num_given = self.num_sequences = 0  # prompts given, refused ones among them; sequences noted
        self._last_s = 0.0
        self._keys: set[tuple[int, int]] = set()
        self._skipped = Counter[int]()  # seed → places whose keys were taken before they were reached

    def make(self, prompts: Iterable[Prompt]) -> list[Prepared]:
        """Sequences of the next prompts, if they can follow those that were noted.

        Errors name a prompt by its place among all that were given, refused ones included.
        """
        made, prompts, first = list[Prepared](), listed(prompts), self.num_given
        self.num_given += len(prompts)
        for place, prompt in enumerate(prompts, start=first):
            self._add(made, prompt if isinstance(prompt, Request) else Request(prompt), place)
        self._require_new_keys(self._drawn(made))
        return made

    def note(self, made: Seq[Prepared]) -> None:
        """These sequences belong to the run: the next ones follow them."""
        self.num_sequences += len(made)
        self._last_s = made[-1].arrival_s
        self._keys.update((sequence.seed, sequence.sequence_id) for sequence in self._drawn(made))

    def _drawn(self, made: Seq[Prepared]) -> list[Sequence]:
        """Those whose tokens are drawn."""
        return [each.sequence for each in made if not (each.sequence.sampling or self.config.sampling).greedy]

    def _add(self, made: list[Prepared], request: Request, place: int) -> None:
        """Add the samples of a request to what was made before it."""
        self._require_time(request.arrival_s, made[-1].arrival_s if made else self._last_s, place)
        token_ids = encode(self.pair, request.prompt, place)
        cut = 0 if self.max_prompt_tokens is None else max(0, len(token_ids) - self.max_prompt_tokens)
        for sample in range(request.n):
            index = self.num_sequences + len(made)
            sequence = _sequence(self.pair, request, token_ids[cut:], self.config, place, index, sample)
            if request.sequence_id is None:
                sequence.sequence_id = self._free_id(sequence.seed, index)
            self._require_possible(sequence, place)
            made.append(Prepared(sequence, cut, sample, request.arrival_s))

    def _require_time(self, arrival_s: float, last_s: float, place: int) -> None:
        if arrival_s < last_s:
            raise InputError(f"arrivals go backwards: prompt {place} comes at {arrival_s} s, after one at {last_s} s")

    def _require_possible(self, sequence: Sequence, place: int) -> None:
        """Raise InputError unless rounds have room for its drafts."""
        drafts, most = sequence.num_speculative_tokens, self.config.num_speculative_tokens
        self.config.check_drafts(drafts)
        if self.config.max_model_len is not None and drafts > most:
            raise InputError(
                f"prompt {place} asks for {drafts} drafts a round: with max_model_len, num_speculative_tokens {most} "
                "is the most"
            )

    def _free_id(self, seed: int, index: int) -> int:
        """The place in the results, or behind it the next whose key no earlier request has been given."""
        while (seed, index + self._skipped[seed]) in self._keys:
            self._skipped[seed] += 1
        return index + self._skipped[seed]

    def _require_new_keys(self, drawn: Seq[Sequence]) -> None:
        """Raise InputError where two sequences whose tokens are drawn would draw the same numbers."""
        taken = set[tuple[int, int]]()
        for sequence in drawn:
            key = sequence.seed, sequence.sequence_id
            if key in self._keys or key in taken:
                raise InputError(
                    f"two prompts share seed {key[0]} and sequence id {key[1]}, so their samples would be tied: "
                    "give one another seed or sequence id (a sample's own is its place in the results)"
                )
            taken.add(key)


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
    found = list(prompts)
    if not found:
        raise InputError("there are no prompts")
    return found


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
        token_ids = list(pair.tokenizer(prompt, verbose=False)["input_ids"])
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
        return as_token_ids(prompt)
    except TypeError:
        raise InputError(
            f"prompts must be a list of texts or of lists of token ids: prompt {index} is {shown(prompt)}"
        ) from None


def as_token_ids(tokens: Iterable[Any]) -> list[int]:
    """The numbers, of any library; raises TypeError for what is none, True and False included."""
    found = list(tokens)
    if any(isinstance(token, bool) for token in found):
        raise TypeError("a truth value is no token")
    return [operator.index(token) for token in found]


def _sequence(
    pair: Pair, request: Request, token_ids: list[int], config: DecodeConfig, place: int, index: int, sample: int
) -> Sequence:
    """One sample of the request that is at that place of the caller's list."""
    max_new_tokens = request.max_new_tokens or config.max_new_tokens
    _require_that_it_fits(pair, config, place, len(token_ids), max_new_tokens)
    few = (request.logprobs or 0) <= pair.vocab_size
    require(few, f"prompt {place} asks for {request.logprobs} logprobs of a vocabulary of {pair.vocab_size}")
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
        sampling=_own_sampling(request, config, place),
        logprobs=request.logprobs,
        priority=request.priority,
        processing=_own_processing(pair, request, config, place, token_ids, max_new_tokens, stop_token_ids),
    )


def _own_sampling(request: Request, config: DecodeConfig, place: int) -> SamplingConfig | None:
    """The shape of a prompt's distribution, where that is not the run's.

    Raises:
        InputError: the run cannot give a prompt another one than its own.
    """
    own = request.shape(config.sampling)
    if own == config.sampling:
        return None
    possible = own.greedy or config.acceptance != "greedy"
    require(possible, f"acceptance 'greedy' needs temperature 0, and prompt {place} has {own.temperature}")
    require(not config.cuda_graphs, f"prompt {place} has sampling of its own: cuda_graphs records that of the run")
    return own


def _own_processing(
    pair: Pair,
    request: Request,
    config: DecodeConfig,
    place: int,
    token_ids: list[int],
    max_new_tokens: int,
    stop_token_ids: Iterable[int],
) -> Processing | None:
    """What a prompt's text does to its logits; None for nothing.

    Raises:
        InputError: the settings name tokens that do not exist, leave none, or exceed the budget; or the run has no
            place for them.
    """
    found = pair.checkpoint(request.processing, token_ids, max_new_tokens) if pair.checkpoint else request.processing
    if found is None or found.is_idle:
        return None
    outside = [token for token in found.tokens if token >= pair.vocab_size]
    require(
        not outside,
        f"prompt {place} has logit_bias, bad_words_ids or allowed_token_ids of token {outside[:1]}, outside the "
        f"vocabulary of {pair.vocab_size}",
    )
    least = request.min_new_tokens or 0
    require(least <= max_new_tokens, f"prompt {place} has min_new_tokens {least}, and a budget of {max_new_tokens}")
    allowed = range(pair.vocab_size) if found.allowed_token_ids is None else found.allowed_token_ids
    possible = set(allowed) - found.banned - set(stop_token_ids if found.min_new_tokens else ())
    require(bool(possible), f"prompt {place} leaves no token that can be generated")
    require(
        not config.cuda_graphs,
        f"prompt {place} has processors of its logits, or the target's generation config has: cuda_graphs records none",
    )
    return found if found.grammar is None else _with_matchers(pair, found, place, stop_token_ids)


def _with_matchers(pair: Pair, found: Processing, place: int, stop_token_ids: Iterable[int]) -> Processing:
    """The same with a grammar that makes matchers.

    Raises:
        InputError: there are none, or what else the prompt asks for could leave no token that its grammar allows.
    """
    others = [name for name in ("bad_words_ids", "allowed_token_ids", "min_new_tokens") if getattr(found, name)]
    require(not others, f"prompt {place} has a grammar and {others[:1]}, which together can leave no token")
    if callable(found.grammar):
        return found
    require(bool(stop_token_ids), f"prompt {place} has a grammar, and no stop token where its text could end")
    try:
        return replace(found, grammar=matcher_maker(found.grammar or {}, pair.tokenizer, pair.vocab_size))
    except InputError as error:
        raise InputError(f"the grammar of prompt {place}: {error}") from error


def _require_that_it_fits(pair: Pair, config: DecodeConfig, place: int, prompt_len: int, max_new_tokens: int) -> None:
    context = pair.target.max_positions
    limits = {f"the context of {context}": context, f"max_model_len {config.max_model_len}": config.max_model_len}
    for name, limit in limits.items():
        if limit is not None and prompt_len + max_new_tokens > limit:
            raise InputError(
                f"prompt {place} has {counted(prompt_len, 'token')}: with {max_new_tokens} new ones it does not fit "
                f"{name} (see max_prompt_tokens)"
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
