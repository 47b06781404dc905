"""Reading frozen dataclasses from plain mappings, and writing them back: unknown keys and wild values are refused."""

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import wraps
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from refimpl.core.errors import InputError, did_you_mean, require, shown
from refimpl.core.values import is_number, require_bool

D = TypeVar("D")


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
        right = isinstance(value, kinds) and not isinstance(value, bool)  # NaN is inside of no range
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


MAX_TOKENS = 10**9  # of a request; more is a slip
LARGE, SMALL = 1e15, 1e-18  # seconds, bytes, tokens and rates lie within
POSITIVE = Range(0, open_low=True, least=SMALL, most=LARGE)
NON_NEGATIVE = Range(0, most=LARGE)
PROBABILITY = Range(0, 1)
SHARE = Range(0, 1, open_low=True)
LEVEL = Range(0, 1, open_low=True, open_high=True)  # confidence of an interval, share of a band
VARIATION = Range(0, 10)  # relative standard deviations
COUNT = Range(1, integer=True, most=MAX_TOKENS)
WHOLE = Range(0, integer=True, most=MAX_TOKENS)
REQUESTS = Range(1, integer=True, most=10**7, bytes_each=2**11)
REPLICATIONS = Range(1, integer=True, most=10**6, bytes_each=2**12)
PAIRED = Range(2, integer=True, most=10**6, bytes_each=2**12)  # replications of a comparison
WORKERS = Range(1, integer=True, most=max(64, 4 * (os.cpu_count() or 1)), bytes_each=150 * 2**20)
DEVICES = Range(1, 64, integer=True)
TEXT, COUNTS, PROBABILITIES = "text", "counts", "probabilities"

NOUNS = {"str": "a text", "list": "a list", "NoneType": "nothing", "int": "a number", "float": "a number"}
LONGEST = 120  # characters of unknown keys that an error shows

Kinds = Mapping[str, Mapping[str, Any]]  # kind -> parameter -> rule, or (rule, default)


@dataclass(frozen=True, slots=True)
class Spec:
    """One of several kinds, with the parameters of that kind.

    Attributes:
        kind: name of the kind.
        values: its parameters, as a sorted tuple of (name, value), so that a Spec can be hashed and compared.
    """

    kind: str
    values: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, /, kind: str, **values: Any) -> "Spec":
        """Build a Spec from keywords."""
        return cls(kind, tuple(sorted((name, plain(value)) for name, value in values.items())))

    def __getitem__(self, name: str) -> Any:
        return dict(self.values)[name]

    def resolved(self, kinds: Kinds) -> dict[str, Any]:
        """Every parameter of the kind, defaults filled in."""
        defaults = {name: rule[1] for name, rule in kinds[self.kind].items() if isinstance(rule, tuple)}
        return defaults | dict(self.values)

    def as_mapping(self) -> dict[str, Any]:
        """Plain mapping, as written to YAML."""
        return {"kind": self.kind} | {n: list(v) if isinstance(v, tuple) else v for n, v in self.values}


def spec_field(kinds: Kinds, default: Spec) -> Any:
    """A dataclass field that holds a Spec of one of `kinds`: kind → parameter → Range, choices, or (Range, default)."""
    return field(default=default, metadata={"kinds": kinds})


def number_field(limits: Range, default: Any = MISSING) -> Any:
    """A dataclass field with a numeric range; to be given where it has no default."""
    return field(default=default, metadata={"range": limits})


def check_fields(instance: Any) -> None:
    """Make the fields of a dataclass plain and check each; mappings become parts and Specs. For ``__post_init__``.

    Raises:
        InputError: a value out of range; the message begins with the path to it.
    """
    hints = get_type_hints(type(instance))
    for item in fields(instance):
        value = _checked(plain(getattr(instance, item.name)), item, hints[item.name])
        object.__setattr__(instance, item.name, value)  # frozen, but not yet handed out


def _checked(value: Any, item: Any, hint: Any) -> Any:
    name, optional = item.name, type(None) in get_args(hint)
    if value is None and optional:
        return None
    if optional:
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    if "range" in item.metadata:
        return item.metadata["range"].check(value, name)
    if "kinds" in item.metadata:
        return as_spec(value, item.metadata["kinds"], name)
    if is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else from_mapping(hint, value, f"{name}.")
    _check_plain(value, hint, name)
    return value


def _check_plain(value: Any, hint: Any, name: str) -> None:
    if get_origin(hint) is Literal:
        allowed = get_args(hint)
        require(value in allowed, f"{name} must be one of {', '.join(map(str, allowed))}, not {shown(value)}")
    elif hint is bool:
        require_bool(name, value)
    elif hint is str:
        require(isinstance(value, str), f"{name} must be a text, not {shown(value)}")


def as_spec(given: Any, kinds: Kinds, where: str) -> Spec:
    """A Spec, given as such or as a mapping.

    Raises:
        InputError: an unknown kind, or a parameter that is missing, unknown or out of range.
    """
    if isinstance(given, Mapping) and "kind" in given:
        given = Spec.of(str(given["kind"]), **{str(name): value for name, value in given.items() if name != "kind"})
    require(isinstance(given, Spec), f"{where} must be a mapping with a key 'kind', not {shown(given)}")
    _check_spec(given, kinds, where)
    return given


def _check_spec(spec: Spec, kinds: Kinds, where: str) -> None:
    require(spec.kind in kinds, f"{where}.kind must be one of {', '.join(kinds)}, not {shown(spec.kind)}")
    known, given = kinds[spec.kind], dict(spec.values)
    refuse_unknown(given, known, where)
    for name, rule in known.items():
        optional = isinstance(rule, tuple)
        if name not in given:
            needed = ", ".join(other for other, rule in known.items() if not isinstance(rule, tuple))
            require(optional, f"{where}.{name} is missing: {spec.kind} needs {needed}")
        elif not optional:
            _check_value(given[name], rule, f"{where}.{name}")
        elif (type(given[name]), given[name]) != (type(rule[1]), rule[1]):  # a default is right, whatever the rule
            _check_value(given[name], rule[0], f"{where}.{name}")


def _check_value(value: Any, rule: Any, where: str) -> None:
    if isinstance(rule, Range):
        rule.check(value, where)
    elif rule == TEXT:
        require(isinstance(value, str) and value != "", f"{where} must be a text, not {shown(value)}")
    elif rule in (COUNTS, PROBABILITIES):
        require(isinstance(value, tuple) and len(value) > 0, f"{where} must be a list of numbers, not {shown(value)}")
        limits = COUNT if rule == COUNTS else PROBABILITY
        for i, item in enumerate(value):
            limits.check(item, f"{where}[{i}]")
    else:
        require(value in rule, f"{where} must be one of {', '.join(map(str, rule))}, not {shown(value)}")


def refuse_unknown(given: Collection[Any], known: Collection[str], where: str) -> None:
    """Raise InputError for keys that are not known; it tells all that are, and the nearest to a single one."""
    unknown = sorted(str(key) for key in set(given) - set(known))
    where = where.rstrip(".") or "the scenario"
    allowed = ", ".join(known) or "nothing"
    near = did_you_mean(unknown[0], known) if len(unknown) == 1 else ""
    require(not unknown, f"{where}: unknown key {', '.join(unknown)[:LONGEST]}; allowed: {allowed}{near}")


def told_names(cls: type[D]) -> type[D]:
    """Class decorator: keywords that a dataclass does not know are refused as keys of a file are, with the nearest."""
    make, known = cls.__init__, {item.name: item for item in fields(cls)}  # type: ignore[arg-type]

    @wraps(make)
    def init(self: D, *args: Any, **given: Any) -> None:
        refuse_unknown(given, known, cls.__name__)
        make(self, *args, **given)

    cls.__init__ = init  # type: ignore[assignment]
    return cls


def from_mapping(cls: type[D], data: Any, where: str = "") -> D:
    """Build a dataclass from a mapping; its ``expanded``, if it has one, first replaces shorthands by settings.

    Raises:
        InputError: an unknown key, one that is missing and has no default, or a value out of range; the message
            carries the dotted path.
    """
    data = getattr(cls, "expanded", lambda given: given)(data)
    place, kind = where.rstrip(".") or "the scenario", type(data).__name__
    require(isinstance(data, Mapping), f"{place} must be a mapping, not {NOUNS.get(kind, kind)}")
    refuse_unknown(data, {item.name: item for item in fields(cls)}, where)  # type: ignore[arg-type]
    for item in fields(cls):  # type: ignore[arg-type]
        optional = item.name in data or item.default is not MISSING or item.default_factory is not MISSING
        require(optional, f"{where}{item.name} is missing")
    try:
        return cls(**data)
    except InputError as error:
        raise InputError(f"{where}{error}") from None


def to_mapping(instance: Any) -> dict[str, Any]:
    """Plain nested mapping of a dataclass, as written to YAML and JSON."""
    return {item.name: as_data(getattr(instance, item.name)) for item in fields(instance)}


def as_data(value: Any) -> Any:
    """Plain data of a field's value."""
    if isinstance(value, Spec):
        return value.as_mapping()
    if is_dataclass(value):
        return to_mapping(value)
    if isinstance(value, tuple):
        return [as_data(item) for item in value]
    return value
