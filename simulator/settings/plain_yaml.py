"""YAML files: plain data within bounds, or one line that names file, line and bound. No objects, no code."""

import re
from pathlib import Path
from typing import Any

import yaml

from refimpl.core.errors import InputError, shown
from refimpl.core.reading import MAX_DEPTH, check_digits, read_text

MAX_YAML = 2**20  # bytes
MAX_VALUES = 200_000  # once its aliases are written out
TOO_DEEP = f"lists and mappings are nested deeper than {MAX_DEPTH}"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # C where it was built
    """Reads 1e-3 as a number, as YAML 1.2 does; PyYAML knows the older 1.0e-3 only."""

    def construct_yaml_int(self, node: Any) -> int:
        check_digits(node.value)
        return int(super().construct_yaml_int(node))


class Dumper(yaml.SafeDumper):
    """Quotes the texts that the loader would take for numbers."""


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+")
for yaml_class in (_Loader, Dumper):
    yaml_class.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))


def parse_yaml(text: str, where: str) -> Any:
    """Plain data in a YAML text.

    Raises:
        InputError: not YAML, a key given twice, too deep, too long an integer, or more than `MAX_VALUES` values once
            its aliases are written out; one line that begins with `where`.
    """
    try:
        _Census().take(text)
        return yaml.load(text, _Loader)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except yaml.MarkedYAMLError as error:
        if "nesting depth" in (error.problem or ""):  # the scanner of a newer LibYAML looks ahead, and has a bound, too
            raise InputError(f"{where}: {TOO_DEEP}") from None
        parts = [part for part in (error.context, error.problem) if part]
        raise InputError(f"{where}: not YAML: {', '.join(parts)}{_line(error, text)}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the latter two for dates and numbers that are none
        raise InputError(f"{where}: not YAML: {' '.join(str(error).split())}") from None


def read_yaml(path: str | Path) -> Any:
    """Plain data in a YAML file; raises InputError as `parse_yaml` does, or if it cannot be read."""
    return parse_yaml(read_text(path, MAX_YAML), str(path))


def _line(error: yaml.MarkedYAMLError, text: str) -> str:
    """The line of an error; what is missing at the end is missing in the last one."""
    mark = error.problem_mark
    return f" in line {min(mark.line, text.rstrip().count(chr(10))) + 1}" if mark else ""


class _Open:
    """A list or mapping that has begun: its anchor, its values so far, and the keys of a mapping."""

    def __init__(self, event: Any):
        self.anchor, self.size = event.anchor, 1
        self.keys: set[str] | None = set() if isinstance(event, yaml.MappingStartEvent) else None
        self.key_is_next = True


class _Census:
    """Counts the values of a document before any is built; its parser neither recurses nor follows aliases."""

    def __init__(self) -> None:
        self.open: list[_Open] = []
        self.sizes: dict[str, int] = {}  # anchor -> values behind it

    def take(self, text: str) -> None:
        """Raise InputError for what is too deep or too many, and for keys that are given twice."""
        for event in yaml.parse(text, _Loader):
            if isinstance(event, yaml.CollectionStartEvent):
                self._begin(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                ended = self.open.pop()
                self._add(ended.size, ended.anchor)
            elif isinstance(event, yaml.ScalarEvent):
                self._see_key(event)
                self._add(1, event.anchor)
            elif isinstance(event, yaml.AliasEvent):
                if any(event.anchor == outer.anchor for outer in self.open):
                    raise InputError(f"the alias *{event.anchor} contains itself")
                self._add(self.sizes.get(event.anchor, 1), None)

    def _begin(self, event: Any) -> None:
        self.open.append(_Open(event))
        if len(self.open) > MAX_DEPTH:
            raise InputError(TOO_DEEP)

    def _see_key(self, event: Any) -> None:
        inner = self.open[-1] if self.open else None
        if inner is None or inner.keys is None or not inner.key_is_next:
            return
        if event.value in inner.keys:
            line = event.start_mark.line + 1
            raise InputError(f"the key {shown(event.value)} is given twice, again in line {line}")
        inner.keys.add(event.value)

    def _add(self, size: int, anchor: str | None) -> None:
        if anchor is not None:
            self.sizes[anchor] = size
        if not self.open:
            return
        self.open[-1].size += size
        self.open[-1].key_is_next ^= True
        if self.open[-1].size > MAX_VALUES:
            raise InputError(f"has more than {MAX_VALUES} values, the most that are read, its aliases written out")
