"""Reference engine for batch speculative decoding: exact, heavily checked, several strategies for ragged batches.

The public names are loaded on first use, so `import refimpl.scheduling` loads no tensor library.
"""

import importlib
from typing import Any

_PUBLIC = {
    "DecodeConfig": "config",
    "InputError": "errors",
    "InvariantViolation": "errors",
    "Pair": "model",
    "Request": "config",
    "Result": "results",
    "SamplingConfig": "config",
    "generate": "generation",
    "load_pair": "pairs",
    "make_pair": "pairs",
    "stream": "generation",
    "verify": "equivalence",
}

__all__ = sorted(_PUBLIC)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return __all__
