"""Settings declared once: type, range, default and one sentence; checks, options and pages follow from these."""

import math
from collections.abc import Collection, Hashable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from refimpl.core.errors import require, shown
from refimpl.core.values import is_number, plain, require_bool

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Range:
    """What a number may be.

    Attributes:
        low, high: low ≤ value ≤ high; without `low` when `open_low`, without `high` when `open_high`.
        integer, infinite: whether it must be whole; whether it may be infinite.
        least, most: what lies beyond is possible, but runs out of numbers, memory or time.
        bytes_each: memory that each one needs, as the error of a count beyond `most` says.
    """

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    integer: bool = False
    infinite: bool = False
    least: float = 0
    most: float = math.inf
    bytes_each: int = 0

    def check(self, value: Any, where: str) -> Any:
        """Return the value as Python's own number, or raise InputError that names the field and the range."""
        value = plain(value)
        kinds = int if self.integer else (int, float)
        endless = isinstance(value, float) and math.isinf(value)
        require(self.infinite or not endless, f"{where} must be finite, not {shown(value)}")
        fits = self.integer or is_number(value)  # into a float
        right = fits and isinstance(value, kinds) and not isinstance(value, bool)  # NaN is inside of no range
        inside = right and self.low <= value <= self.high
        end = (self.open_low and value == self.low) or (self.open_high and value == self.high)
        require(inside and not end, f"{where} must be {self}, not {shown(value)}")
        require(
            endless or value <= self.most,
            f"{where} must be at most {self.most}, not {shown(value)}{self._needs(value)}",
        )
        require(value >= self.least or value <= 0, f"{where} must be at least {self.least}, not {value}")
        return value

    def _needs(self, value: float) -> str:
        if not self.bytes_each or not is_number(value):
            return ""
        return f": that many would need about {value * self.bytes_each / 2**30:.3g} GiB of memory"

    def __str__(self) -> str:
        noun = "an integer" if self.integer else "a number"
        relation = ">" if self.open_low else "≥"
        if self.high == math.inf:
            return noun if self.low == -math.inf else f"{noun} {relation} {self.low}"
        return f"{noun} in {'(' if self.open_low else '['}{self.low}, {self.high}{')' if self.open_high else ']'}"


def setting(
    default: Any,
    help_: str,
    limits: Range | Collection[Any] | None = None,
    *,
    none: str | None = None,
    option: tuple[str, ...] | None = None,
) -> Any:
    """A field of a dataclass of settings.

    Args:
        default: its value where none is given; a class is called for one.
        help_: one sentence: what it sets, with the unit.
        limits: the numbers that it may be, or the values; None where its type says enough.
        none: what None stands for.
        option: names of the option of its own that commands have; empty for its name, None for no such option
            (`--set NAME=VALUE` reaches every setting).
    """
    start = {"default_factory": default} if isinstance(default, type) else {"default": default}
    return field(**start, metadata={"help": help_, "range": limits, "none": none, "option": option})


def check_fields(instance: Any, cls: Any = None) -> None:
    """Make the fields of a dataclass plain and check each; those of a base class alone, if one is named.

    For ``__post_init__``.

    Raises:
        InputError: a value of the wrong type or out of range; the message begins with the name.
    """
    cls = cls or type(instance)
    hints = hints_of(cls)
    for item in fields(cls):
        value = checked(plain(getattr(instance, item.name)), item, hints[item.name])
        object.__setattr__(instance, item.name, value)  # frozen, but not yet handed out


@lru_cache
def hints_of(cls: Hashable) -> dict[str, Any]:
    """Types of the fields of a dataclass."""
    return get_type_hints(cls)


def checked(value: Any, item: Any, hint: Any) -> Any:
    """The value of a field, as it may stay; raises InputError where the declaration does not allow it."""
    name, optional, limits = item.name, type(None) in get_args(hint), item.metadata.get("range")
    if value is None and optional:
        return None
    if optional:
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    if isinstance(limits, Range):
        return limits.check(value, name)
    allowed = get_args(hint) if limits is None and get_origin(hint) is Literal else limits
    if allowed is not None:
        known = any(type(each) is type(value) and each == value for each in allowed)
        require(known, f"{name} must be one of {', '.join(map(str, allowed))}, not {shown(value)}")
    elif hint is bool:
        require_bool(name, value)
    elif hint is str:
        require(isinstance(value, str), f"{name} must be a text, not {shown(value)}")
    elif is_dataclass(hint) and isinstance(hint, type):
        require(isinstance(value, hint), f"{name} must be a {hint.__name__}, not {shown(value)}")
    return value


def documented(cls: type[C]) -> type[C]:
    """Class decorator: the sentences of declared fields become the attributes of the docstring."""
    lines = [f"        {item.name}: {sentence_of(item)}" for item in fields(cls) if "help" in item.metadata]  # type: ignore[arg-type]
    cls.__doc__ = "\n".join([(cls.__doc__ or "").rstrip(), "", "    Attributes:", *lines])
    return cls


def sentence_of(item: Any) -> str:
    """What a declared field sets, with its range and its default."""
    default = f"None for {item.metadata['none']}" if item.metadata["none"] else shown_default(item)
    limits = f" {str(item.metadata['range'])[0].upper()}{str(item.metadata['range'])[1:]}."
    return f"{item.metadata['help']}{limits if isinstance(item.metadata['range'], Range) else ''} Default: {default}."


def shown_default(item: Any) -> str:
    """The default of a field, as Python writes it."""
    return f"{item.default_factory.__name__}()" if item.default is MISSING else repr(item.default)
