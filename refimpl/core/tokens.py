"""Token ids: those that other engines give a meaning, where an output stops, and where two outputs part."""

import math
from collections.abc import Collection
from collections.abc import Sequence as Seq

from refimpl.core.errors import require, shown
from refimpl.core.values import is_list, require_int

EOS, PAD = 2, 0  # no meaning to this engine, often drawn in tests because other engines give them one


def first_difference(found: Seq[int], wanted: Seq[int]) -> int | None:
    """Index of the first token at which two outputs part (a missing token is a difference), None if they are equal."""
    for i, (a, b) in enumerate(zip(found, wanted, strict=False)):
        if a != b:
            return i
    return None if len(found) == len(wanted) else min(len(found), len(wanted))


def until_stop(tokens: list[int], stops: Collection[int]) -> list[int]:
    """Tokens up to and with the first stop token."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[:end]


def check_stops(stop_token_ids: Collection[int] | None, stop_strings: Seq[str], vocab_size: float = math.inf) -> None:
    """Raise InputError unless stop tokens are a list of ids and stop strings a list of texts, none of them empty."""
    require(is_list(stop_strings, Collection), f"stop_strings must be a list of texts, not {shown(stop_strings)}")
    for text in stop_strings:
        require(isinstance(text, str), f"a stop string must be a text, not {shown(text)}")
        require(text != "", "a stop string must not be empty")
    if stop_token_ids is not None:
        right = is_list(stop_token_ids, Collection)
        require(right, f"stop_token_ids must be a list of token ids, not {shown(stop_token_ids)}")
        for token in stop_token_ids:
            require_int("a stop token id", token, 0, vocab_size - 1)
