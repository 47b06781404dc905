"""Constrained decoding: what a row generates follows a grammar.

A grammar is a processor of logits with a state: its matcher follows the row's text, draft by draft, and goes back by
those that were rejected. The matchers of JSON schemas, regular expressions and choices are llguidance's.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Seq
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from refimpl.core.errors import InputError, require
from refimpl.core.extras import missing_extra
from refimpl.core.invariants import require_invariant
from refimpl.core.sequence import Sequence


class Matcher(Protocol):
    """Follows a text, token by token."""

    @property
    def can_end(self) -> bool:
        """Whether the text so far is whole."""

    def allowed(self) -> Bool[np.ndarray, " vocab"]:
        """Tokens that can come next; the caller may change the mask."""

    def advance(self, tokens: list[int]) -> int:
        """Follow the leading tokens that are allowed; say how many."""

    def roll_back(self, count: int) -> None:
        """Forget the last tokens that were followed."""


class GrammarProcessor:
    """Allows the tokens of a grammar behind whatever text it is called with, and stop tokens where that text is whole.

    Args:
        new_matcher: makes one at the beginning of a text.
        prompt_len: leading tokens that no grammar counts.
        stops: tokens that end the row, whatever the grammar makes of their text.
    """

    def __init__(self, new_matcher: Callable[[], Matcher], prompt_len: int, stops: Collection[int]):
        self._new_matcher, self._prompt_len, self._stops = new_matcher, prompt_len, list(stops)
        self._matcher, self._read = new_matcher(), list[int]()

    def __call__(self, ids: Int[Tensor, "1 length"], scores: Float[Tensor, "1 vocab"]) -> Float[Tensor, "1 vocab"]:
        """Scores behind a text; as they are where that has ended, or is none of the grammar's: nothing there counts."""
        if not self._seek(ids[0, self._prompt_len :].tolist()):
            return scores
        return scores.masked_fill(torch.from_numpy(~self._mask()).to(scores.device), -torch.inf)

    def followed(self, text: list[int], drafts: list[int]) -> list[int]:
        """The leading drafts that are allowed behind a text."""
        lengths = range(1, len(drafts) + 1)
        return drafts[: sum(1 for _ in takewhile(lambda n: self._allows(text + drafts[:n]), lengths))]

    def check(self, row: Sequence) -> None:
        """INV-25: all of the row is allowed, and the matcher stands where one does that has read nothing else."""
        text = row.generated
        allowed = not text or self._allows(text)
        require_invariant(allowed, "INV-25", row=row.index, expected="a text of its grammar", found=text)
        if self._seek(text):
            fresh = self._new_matcher()
            fresh.advance(text)
            same = np.array_equal(fresh.allowed(), self._matcher.allowed()) and fresh.can_end == self._matcher.can_end
            require_invariant(same, "INV-25", row=row.index, expected=f"the state behind {text}", found="another")

    def _allows(self, text: list[int]) -> bool:
        """Whether its tokens are allowed, one behind the other."""
        return self._seek(text[:-1]) and bool(self._mask()[text[-1]])

    def _mask(self) -> Bool[np.ndarray, " vocab"]:
        """Tokens that can come next. Where none can, although the text is not whole, it has to stop."""
        mask = self._matcher.allowed()
        stops = [token for token in self._stops if token < len(mask)]
        mask[stops] = False
        mask[stops] = self._matcher.can_end or not mask.any()
        return mask

    def _seek(self, text: list[int]) -> bool:
        """Go to the end of a text; say whether it is the beginning of one that is allowed, and has not stopped."""
        shared = min(len(self._read), len(text))
        while self._read[:shared] != text[:shared]:
            shared -= 1
        self.roll_back(len(self._read) - shared)
        more = list(takewhile(lambda token: token not in self._stops, text[shared:]))
        self._read += more[: self._matcher.advance(more)]
        return len(self._read) == len(text)

    def roll_back(self, count: int) -> None:
        """Forget the last tokens that were read."""
        del self._read[len(self._read) - count :]
        self._matcher.roll_back(count)


class LibraryMatcher:
    """One of llguidance's.

    Args:
        start: at the beginning of a text; it stays there.
        vocab_size: leading tokens that count.
        ends: tokens that end a text for llguidance.
    """

    def __init__(self, start: Any, vocab_size: int, ends: Seq[int]):
        self._matcher, self._vocab_size = start.deep_copy(), vocab_size
        self._ends = [token for token in ends if token < vocab_size]

    @property
    def can_end(self) -> bool:
        """See `Matcher`."""
        return bool(self._matcher.is_accepting())

    def allowed(self) -> Bool[np.ndarray, " vocab"]:
        """See `Matcher`."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        mask[self._ends] = False
        return mask

    def advance(self, tokens: list[int]) -> int:
        """See `Matcher`."""
        return int(self._matcher.try_consume_tokens(tokens))

    def roll_back(self, count: int) -> None:
        """See `Matcher`."""
        self._matcher.rollback(count)


def matcher_maker(grammar: Mapping[str, Any], tokenizer: Any, vocab_size: int) -> Callable[[], Matcher]:
    """What makes matchers of a `Processing.grammar`, for texts that the tokens of a tokenizer spell.

    Raises:
        InputError: there is no tokenizer, llguidance is not installed or reads this one or the grammar not, or no text
            fulfils it.
    """
    require(tokenizer is not None, "the pair has no tokenizer")
    try:
        import llguidance
    except ImportError as error:
        raise InputError(missing_extra(error) or str(error)) from error
    tokens = _tokens(tokenizer)
    start = llguidance.LLMatcher(tokens, _compiled(llguidance.LLMatcher, grammar), log_level=0)
    require(not start.is_error(), " ".join(start.get_error().split()))
    new_matcher = partial(LibraryMatcher, start, vocab_size, tokens.eos_tokens)
    require(new_matcher().can_end or bool(new_matcher().allowed().any()), "no text fulfils it")
    return new_matcher


@lru_cache(maxsize=4)
def _tokens(tokenizer: Any) -> Any:
    """The vocabulary of a tokenizer, as llguidance reads it: about a second for a large one."""
    from llguidance.hf import from_tokenizer

    try:
        return from_tokenizer(tokenizer)
    except ValueError as error:
        raise InputError(f"llguidance does not read the tokenizer: {error}") from error


def _compiled(library: Any, grammar: Mapping[str, Any]) -> str:
    """The grammar in llguidance's own terms."""
    [(kind, what)] = grammar.items()
    if kind == "json_schema":
        return str(library.grammar_from_json_schema(json.dumps(what)))
    return str(library.grammar_from_regex(what if kind == "regex" else "|".join(map(re.escape, what))))
