"""The errors a user meets: bad input, a model that cannot be driven; and how they show a value."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """The caller asked for something impossible. The message is one line and names what to change."""


class UnsupportedModelError(InputError):
    """A model that cannot be driven. The message follows the model's name: "keeps a recurrent state: choose …"."""

    def __init__(self, reason: str, remedy: str = "choose another model, see docs/models.md"):
        super().__init__(f"{reason}: {remedy}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch found no memory, on a device or on the host; told by words, as torch need not be loaded yet."""
    words = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return type(error).__name__ == "OutOfMemoryError" or any(each in str(error) for each in words)


def require(condition: bool, message: str) -> None:
    """Raise InputError with `message` unless `condition` is true."""
    if not condition:
        raise InputError(message)


def nearest(word: str, known: Iterable[str], similarity: float = 0.6) -> str | None:
    """The known word that may have been meant, if one is so similar."""
    return next(iter(difflib.get_close_matches(word, list(known), 1, similarity)), None)


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """What follows an unknown name in a message: a known one in parentheses, or nothing."""
    near = nearest(word, known) if isinstance(word, str) else None
    return f" (did you mean {near}?)" if near else ""


def shown(value: object, limit: int = 60) -> str:
    """A value as an error shows it: on one line, cut after `limit` characters."""
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # integers of thousands of digits, lists without end
        text = f"a value of type {type(value).__name__} that is too long to show"
    return text if len(text) <= limit else text[:limit] + "…"
