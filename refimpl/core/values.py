"""Checks of single values that a caller gives."""

import math
import os
import sys
from collections.abc import Sequence as Seq
from dataclasses import fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard

from refimpl.core.errors import require, shown

MAX_SPECULATIVE_TOKENS = 64


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


def use_plain_numbers(settings: Any, *, leave: str = "") -> None:
    """Make the fields of a dataclass plain, in place; that named `leave` stays as it is."""
    for name in (item.name for item in fields(settings) if item.name != leave):
        object.__setattr__(settings, name, plain(getattr(settings, name)))  # frozen, but not yet handed out


def plain(value: Any) -> Any:
    """Numbers and arrays as Python's own, lists and ranges as tuples: to be compared, hashed and written."""
    if isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return tuple(map(plain, value)) if isinstance(value, list | tuple | range) else value


def is_number(value: Any) -> bool:
    """Whether the value is a number that a float can hold; True and False are none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= sys.float_info.max
    return isinstance(value, float)


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether the value is an integer of any library; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_list(value: Any, kind: type = Seq) -> bool:
    """Whether the value holds several others, as a sequence unless another kind will do; a text does not."""
    return isinstance(value, kind) and not isinstance(value, str | bytes)
