"""Which methods are compared with the oracle, at which batch sizes."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from itertools import product
from typing import Any

from refimpl.core.config import (
    NAMED_METHODS,
    SCHEDULERS,
    DecodeConfig,
    make_config,
    resolve_method,
)
from refimpl.core.errors import InputError, shown
from refimpl.core.execution import OVERLAPPABLE, RECORDABLE, UNMOVED_LAYOUTS
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

    ``"all"`` stands for the methods that can have the settings: all that are named, or those of the layouts that can
    run shape-stable, recorded or with joint prefill; with overlapped execution, those of them that can overlap.

    Raises:
        InputError: an unknown method, nothing to run, settings that a method cannot have, or tokens that cannot be
            compared.
    """
    if not isinstance(batch_sizes, Iterable) or isinstance(batch_sizes, str):
        raise InputError(f"batch_sizes must be a list of integers, not {batch_sizes!r}")
    batch_sizes = list(batch_sizes)
    for size in batch_sizes:
        require_int("batch_size", size, 1)
    names = expand_methods(_all_with(settings) if methods in ("all", ["all"], ("all",)) else methods)
    if not names:
        raise InputError("no method to verify: name one besides autoregressive, which all are compared with")
    if not batch_sizes:
        raise InputError("no batch size to verify at")
    sizes = [(name, resolve_method(name).batch_size or batch_size) for name in names for batch_size in batch_sizes]
    runs = list(dict.fromkeys(sizes))
    of_config = {name: value for name, value in settings.items() if name != "max_prompt_tokens"}
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
    names = _all_in_order(settings)
    if settings.get("execution") != "overlapped":
        return names
    methods = map(resolve_method, names)
    return [method.name for method in methods if (method.layout, method.scheduler) in OVERLAPPABLE]


def _all_in_order(settings: dict[str, Any]) -> list[str]:
    """All methods that can have the settings but `execution`."""
    if settings.get("cuda_graphs"):
        return ["+".join(parts) for parts in RECORDABLE]
    if settings.get("shape_stable") or settings.get("joint_prefill"):
        return ["+".join(parts) for parts in product(UNMOVED_LAYOUTS, SCHEDULERS)]
    return list(NAMED_METHODS)


def widened(settings: dict[str, Any], batch_size: int) -> dict[str, Any]:
    """The settings with a window of at least one batch."""
    window = settings.get("window_size")
    return settings | {"window_size": max(window, batch_size)} if window and is_integer(window) else settings
