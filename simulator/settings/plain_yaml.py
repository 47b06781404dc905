"""YAML files: plain data, or one line that names file and line. No objects, no code."""

import re
from pathlib import Path
from typing import Any

import yaml

from refimpl.core.errors import InputError, shown
from refimpl.core.reading import TOO_DEEP, read_text

MAX_YAML = 2**20  # bytes


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number, as YAML 1.2 does (PyYAML knows the older 1.0e-3 only), and refuses repeated keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                line = key.start_mark.line + 1
                raise InputError(f"the key {shown(key.value)} is given twice, again in line {line}")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class Dumper(yaml.SafeDumper):
    """Quotes the texts that the loader would take for numbers."""


EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+")
for yaml_class in (_Loader, Dumper):
    yaml_class.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))


def parse_yaml(text: str, where: str) -> Any:
    """Plain data in a YAML text; InputError, one line that begins with `where`, if it is none or repeats a key."""
    try:
        return yaml.load(text, _Loader)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: {TOO_DEEP}") from None
    except yaml.MarkedYAMLError as error:
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
