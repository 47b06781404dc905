"""Digests of plain data: equal digests mean equal data, and nothing depends on the last bits of a float."""

import hashlib
import json
from typing import Any

DIGITS = 10  # significant digits of a float: sums differ in the last bits between processors


def rounded(value: Any) -> Any:
    """Plain data with every float cut to `DIGITS` significant digits, tuples as lists."""
    if isinstance(value, dict):
        return {str(key): rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return value


def digest(data: Any) -> str:
    """Sixteen hex digits of the SHA-256 of canonical JSON."""
    text = json.dumps(rounded(data), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
