"""Values of options from their text."""

import json
from typing import Any

from refimpl.core.errors import InputError


def parse_sizes(text: str, option: str = "--batch-sizes", least: int = 1) -> list[int]:
    """Read the comma-separated integers of an option, none below `least`.

    Raises:
        InputError: the text is something else.
    """
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option} must be comma-separated integers, not {text!r}") from error
    if min(sizes) < least:
        raise InputError(f"{option} must be at least {least}, not {text!r}")
    return sizes


def parse_settings(texts: list[str]) -> dict[str, Any]:
    """Read settings like ``block_size=8`` or ``stop_token_ids=[1,2]``; values are JSON, else text.

    Raises:
        InputError: a text without ``=``.
    """
    given = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set must look like NAME=VALUE, not {text!r}")
        given[name.strip()] = _value(value.strip())
    return given


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return float(text) if text.lstrip("+-").lower() == "inf" else text
