"""Values of options from their text."""

from collections.abc import Callable
from typing import TypeVar

from refimpl.core.errors import InputError

TableValue = TypeVar("TableValue")


def parse_sizes(text: str, option: str = "--batch-sizes") -> list[int]:
    """Read the comma-separated positive integers of an option.

    Raises:
        InputError: the text is something else.
    """
    sizes = parse_integers(text, option)
    if not sizes or min(sizes) < 1:
        raise InputError(f"{option} must be at least 1, not {text!r}")
    return sizes


def parse_integers(text: str, option: str) -> list[int]:
    """Read the comma-separated integers of an option; an empty text has none.

    Raises:
        InputError: the text is something else.
    """
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError as error:
        raise InputError(f"{option} must be comma-separated integers, not {text!r}") from error


def parse_table(
    text: str, option: str, example: str, value: Callable[[str], TableValue]
) -> tuple[tuple[int, TableValue], ...]:
    """Read pairs of a number of rows and a value, like ``1=7,4=5,16=2``.

    Raises:
        InputError: the text is something else.
    """
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return tuple((int(rows), value(what)) for rows, what in pairs)
    except ValueError as error:
        raise InputError(f"{option} must look like {example}, not {text!r}") from error


def numbers(text: str) -> tuple[float, ...]:
    """Numbers of a cell of a table, separated by slashes."""
    return tuple(map(float, text.split("/")))
