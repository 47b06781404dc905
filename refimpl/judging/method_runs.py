"""Which methods are compared with the oracle, at which batch sizes."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Any

from refimpl.core.config import METHODS, NAMED_METHODS, DecodeConfig, make_config, resolve_method
from refimpl.core.errors import InputError, shown
from refimpl.core.values import is_integer, require_int, split_names


def expand_methods(methods: str | Seq[str]) -> list[str]:
    """Names from a list or a comma-separated text; ``"all"`` means every named method except the oracle."""
    listed_names = list(methods) if isinstance(methods, Iterable) else [methods]
    if not all(isinstance(name, str) for name in listed_names):
        raise InputError(f"methods must be names, not {shown(methods)}")
    names = split_names(methods) if isinstance(methods, str) else listed_names
    expanded = [n for name in map(str.strip, names) for n in (NAMED_METHODS if name == "all" else [name])]
    for name in expanded:
        resolve_method(name)
    return [name for name in dict.fromkeys(expanded) if name != "autoregressive"]


def runs_to_verify(methods: str | Seq[str], batch_sizes: Seq[int], settings: dict[str, Any]) -> list[tuple[str, int]]:
    """Each (method, batch size) once; a method with a batch size of its own runs at that one only.

    ``"all"`` stands for all methods that are named or, of settings that some of them cannot have, for every layout with
    every scheduler that can.

    Raises:
        InputError: an unknown method, nothing to run, settings that a method cannot have, or tokens that cannot be
            compared.
    """
    if not isinstance(batch_sizes, Iterable) or isinstance(batch_sizes, str):
        raise InputError(f"batch_sizes must be a list of integers, not {batch_sizes!r}")
    batch_sizes = list(batch_sizes)
    for size in batch_sizes:
        require_int("batch_size", size, 1)
    of_config = {name: value for name, value in settings.items() if name != "max_prompt_tokens"}
    names = expand_methods(_all_with(of_config) if methods in ("all", ["all"], ("all",)) else methods)
    if not names:
        raise InputError("no method to verify: name one besides autoregressive, which all are compared with")
    if not batch_sizes:
        raise InputError("no batch size to verify at")
    sizes = [(name, resolve_method(name).batch_size or batch_size) for name in names for batch_size in batch_sizes]
    runs = list(dict.fromkeys(sizes))
    for name, size in runs:
        _require_comparable(make_config(method=name, batch_size=size, **widened(of_config, size)))
    return runs


def _require_comparable(config: DecodeConfig) -> None:
    if config.acceptance in ("rejection", "block") and not config.sampling.greedy:
        raise InputError(
            f"acceptance {config.acceptance!r} preserves the distribution, not the tokens, and cannot be compared: "
            "choose coupled"
        )
    if config.resolved_acceptance == "forced":
        raise InputError("acceptance 'forced' is for timing: its tokens are not the target's and cannot be compared")


def _all_with(settings: dict[str, Any]) -> list[str]:
    """Every named method; of settings that not all of them can have, every layout with every scheduler that can."""
    fixed = {name: value for name, value in settings.items() if name != "window_size"}  # which is widened
    able = [name for name in METHODS if _can_have(name, fixed)]
    named = [name for name in NAMED_METHODS if name in able]
    return named if len(named) == len(NAMED_METHODS) or not able else [name for name in able if "+" in name]


def _can_have(method: str, settings: dict[str, Any]) -> bool:
    try:
        make_config(method=method, **settings)
    except InputError:
        return False
    return True


def widened(settings: dict[str, Any], batch_size: int) -> dict[str, Any]:
    """The settings with a window of at least one batch."""
    window = settings.get("window_size")
    return settings | {"window_size": max(window, batch_size)} if window and is_integer(window) else settings
