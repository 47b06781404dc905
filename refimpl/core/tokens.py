"""Token ids: those that other engines give a meaning, where an output stops, and where two outputs part."""

from collections.abc import Collection
from collections.abc import Sequence as Seq

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
