"""JSON files that say what made them."""

import json
from pathlib import Path
from typing import Any

from refimpl.core import provenance
from refimpl.core.files import write_whole

LIBRARIES = ("numpy", "pandas", "scipy", "simpy")  # what numbers may depend on


def finite(value: Any) -> Any:
    """Plain data for JSON: numbers that are not finite become None."""
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return value.item() if hasattr(value, "item") else value


def with_environment(data: dict[str, Any]) -> dict[str, Any]:
    """Data with what made it, named first: commit, time, library versions and the command."""
    return {"environment": provenance.stamp(*LIBRARIES) | {"command": provenance.command_line()}, **data}


def write_json(data: dict[str, Any], path: Path) -> None:
    """Write a JSON file, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    write_whole(path, [json.dumps(finite(data), indent=1)])
