"""Reading frozen dataclasses from plain mappings, and writing them back: unknown keys and wild values are refused."""

import os
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin

from refimpl.core.declared import Range, checked, hints_of
from refimpl.core.errors import InputError, did_you_mean, require, shown
from refimpl.core.values import plain

D = TypeVar("D")


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
REPLICAS = Range(1, integer=True, most=2**12, bytes_each=2**14)
REPLICATIONS = Range(1, integer=True, most=10**6, bytes_each=2**12)
PAIRED = Range(2, integer=True, most=10**6, bytes_each=2**12)  # replications of a comparison
WORKERS = Range(1, integer=True, most=max(64, 4 * (os.cpu_count() or 1)), bytes_each=150 * 2**20)
DEVICES = Range(1, 64, integer=True)
TEXT, COUNTS, PROBABILITIES, TIMES = "text", "counts", "probabilities", "times"
LISTS = {COUNTS: COUNT, PROBABILITIES: PROBABILITY, TIMES: NON_NEGATIVE}

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


def spec_field(kinds: Kinds, default: Spec | None) -> Any:
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
    hints = hints_of(type(instance))  # type: ignore[arg-type]
    for item in fields(instance):
        value = _checked(plain(getattr(instance, item.name)), item, hints[item.name])
        object.__setattr__(instance, item.name, value)  # frozen, but not yet handed out


def _checked(value: Any, item: Any, hint: Any) -> Any:
    if value is not None and "kinds" in item.metadata:
        return as_spec(value, item.metadata["kinds"], item.name)
    part = next((kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and is_dataclass(kind)), None)
    if part is not None and get_origin(hint) is tuple:
        return _parts(part, value, item.name)
    if part is not None and value is not None and not isinstance(value, part):
        return from_mapping(part, value, f"{item.name}.")
    return checked(value, item, hint)


def _parts(cls: type[D], given: Any, where: str) -> tuple[D, ...]:
    require(isinstance(given, tuple), f"{where} must be a list of mappings, not {shown(given)}")
    places = [(each, f"{where}[{at}].") for at, each in enumerate(given)]
    return tuple(each if isinstance(each, cls) else from_mapping(cls, each, place) for each, place in places)


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
    elif rule in LISTS:
        require(isinstance(value, tuple) and len(value) > 0, f"{where} must be a list of numbers, not {shown(value)}")
        for i, item in enumerate(value):
            LISTS[rule].check(item, f"{where}[{i}]")
    else:
        require(value in rule, f"{where} must be one of {', '.join(map(str, rule))}, not {shown(value)}")


def refuse_unknown(given: Collection[Any], known: Collection[str], where: str) -> None:
    """Raise InputError for keys that are not known; it tells all that are, and the nearest to a single one."""
    unknown = sorted(str(key) for key in set(given) - set(known))
    where = where.rstrip(".") or "the scenario"
    allowed = ", ".join(known) or "nothing"
    near = did_you_mean(unknown[0], known) if len(unknown) == 1 else ""
    require(not unknown, f"{where}: unknown key {', '.join(unknown)[:LONGEST]}; allowed: {allowed}{near}")


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
