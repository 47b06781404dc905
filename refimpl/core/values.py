"""Checks of single values that a caller gives."""

import math
import numbers
import os
import sys
from collections.abc import Sequence as Seq
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeGuard

from refimpl.core.errors import require, shown

MAX_SPECULATIVE_TOKENS = 64
MAX_NESTING = 3  # of a setting: a table of pairs, one of which is a list


def require_int(name: str, value: Any, low: int, high: float = math.inf) -> None:
    """Raise InputError unless the value is an integer, of any library, in low … high."""
    limit = f"≥ {low}" if high == math.inf else f"in [{low}, {high}]"
    require(is_integer(value) and low <= value <= high, f"{name} must be an integer {limit}, not {shown(value)}")


def require_bool(name: str, value: Any) -> None:
    """Raise InputError unless the value is True or False: anything else, even ``"no"``, would count as one of them."""
    require(isinstance(value, bool), f"{name} must be true or false, not {shown(value)}")


def as_path(value: Any) -> Path:
    """The path; raises InputError for what is none."""
    require(isinstance(value, str | os.PathLike), f"give the path of a file, not {shown(value)}")
    return Path(value)


def split_names(text: str) -> list[str]:
    """Names in a text with commas, without blanks around them, each once."""
    return list(dict.fromkeys(map(str.strip, text.split(","))))


def use_plain_numbers(settings: Any) -> None:
    """Replace numpy's numbers in the fields, and in tables there, by Python's, which JSON and comparisons know."""
    for entry in fields(settings):
        object.__setattr__(settings, entry.name, _plain(getattr(settings, entry.name), MAX_NESTING))


def _plain(value: Any, nesting: int) -> Any:
    if isinstance(value, numbers.Real) and hasattr(value, "item"):
        return value.item()
    if nesting and type(value) in (list, tuple):
        return type(value)(_plain(each, nesting - 1) for each in value)
    return value


def is_number(value: Any) -> bool:
    """Whether the value is a number that a float can hold; True and False are none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= sys.float_info.max
    return isinstance(value, float)


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether the value is an integer of any library; True and False are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_list(value: Any, kind: type = Seq) -> bool:
    """Whether the value holds several others, as a sequence unless another kind will do; a text does not."""
    return isinstance(value, kind) and not isinstance(value, str | bytes)
