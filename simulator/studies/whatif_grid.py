"""The answers to many what-if questions, computed ahead: for a page without a server."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product
from math import isfinite, prod
from pathlib import Path
from typing import Any

from refimpl.core.errors import InputError, require
from simulator.runner import Progress, run_all
from simulator.settings.fields import PAIRED
from simulator.settings.hardware import hardware_file, load_architecture, load_device
from simulator.settings.plain_yaml import parse_yaml
from simulator.settings.scenario import Scenario
from simulator.studies.whatif import LABELS, METHODS, METRICS, Outlook, WhatIf, check_methods, outlook

AXES: dict[str, tuple[Any, ...]] = {  # field of WhatIf -> values
    "batch_size": (1, 2, 4, 8, 16),
    "num_speculative_tokens": (1, 3, 5, 8),
    "acceptance": (0.3, 0.5, 0.7, 0.8, 0.9),
    "deviation": (0.0, 0.15),
}
DIGITS = 4
MOST_QUESTIONS = 2000  # of a page, which takes about half a kilobyte for each

Answer = dict[str, Any]


@dataclass(frozen=True)
class WhatIfGrid:
    """Answers by place in the grid.

    Attributes:
        base: what is asked about.
        axes: field of `WhatIf` → its values.
        answers: one for each point, the last axis fastest: ``answer`` in words, ``methods`` with their metrics, the
            best first; without methods where there is none, and the answer tells why.
    """

    base: Scenario
    axes: dict[str, tuple[Any, ...]]
    answers: list[Answer]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        about = {"title": self.base.name, "axes": self.axes, "metrics": list(METRICS), "labels": LABELS}
        return about | {"answers": self.answers}

    @property
    def num_answered(self) -> int:
        """Questions that have an answer with methods."""
        return sum(bool(answer["methods"]) for answer in self.answers)


def answer_grid(
    base: Scenario,
    methods: Sequence[str] = METHODS,
    replications: int = 5,
    axes: dict[str, tuple[Any, ...]] = AXES,
    workers: int = 1,
    progress: Progress | bool | None = None,
) -> WhatIfGrid:
    """Ask every question of a grid.

    Args:
        base: costs, lengths and whatever no axis moves, see `WhatIf.scenario`.
        methods: to compare, at least two.
        replications: of each, at least two.
        axes: field of `WhatIf` → values; at most `MOST_QUESTIONS` combinations.
        workers: processes; answers do not depend on them.
        progress: True draws a bar; a function is called with (done, all) after every question.

    Raises:
        InputError: impossible arguments, or no question has an answer: why the first has none.
    """
    PAIRED.check(replications, "replications")
    check_methods(methods)
    _check_axes(axes)
    count = prod(map(len, axes.values()))
    require(count <= MOST_QUESTIONS, f"{count} questions are more than {MOST_QUESTIONS}: give fewer values")
    jobs = [(question, base, tuple(methods), replications) for question in _questions(axes)]
    answers = run_all(answer_of, jobs, workers, "questions", progress)
    grid = WhatIfGrid(base, axes, answers)
    require(grid.num_answered > 0, answers[0]["answer"])
    return grid


def _check_axes(axes: dict[str, tuple[Any, ...]]) -> None:
    """Raise InputError for a value that stands twice, and for a device or a model that is not there.

    What else a question cannot have is told by its answer.
    """
    for name, values in axes.items():
        require(len(set(map(repr, values))) == len(values), f"{name} has a value twice")
    devices, models = _named(axes)
    for device in devices:
        load_device(device)
    for model in models:
        load_architecture(model)


def _named(axes: dict[str, tuple[Any, ...]]) -> tuple[list[str], list[str]]:
    """Devices and models that a grid names."""
    texts = {name: [value for value in axes.get(name, ()) if isinstance(value, str)] for name in ("device", "models")}
    return texts["device"], [model for pair in texts["models"] for model in pair.split("+") if model]


def files_of(axes: dict[str, tuple[Any, ...]]) -> list[Path]:
    """Files with the facts of the devices and models that a grid names; raises InputError if there is none of one."""
    folders = zip(("devices", "architectures"), _named(axes), strict=True)
    return [hardware_file(folder, name) for folder, names in folders for name in names]


def _questions(axes: dict[str, tuple[Any, ...]]) -> list[WhatIf]:
    """The points of a grid, the last axis fastest."""
    return [WhatIf(**dict(zip(axes, values, strict=True))) for values in product(*axes.values())]


def read_axes(
    changes: Sequence[str], axes: dict[str, tuple[Any, ...]] = AXES, of: type = WhatIf
) -> dict[str, tuple[Any, ...]]:
    """Axes with changes, each ``NAME=VALUE,VALUE …``: other values of an axis, or one more field of a class.

    Raises:
        InputError: no such field, or no values.
    """
    known, found = list(dict.fromkeys([*axes, *(item.name for item in fields(of))])), dict(axes)
    for change in changes:
        name, _, text = change.partition("=")
        require(name in known, f"--axis {change}: must be NAME=VALUE,VALUE with a name of: {', '.join(known)}")
        values = parse_yaml(f"[{text}]", f"--axis {change}")
        require(bool(values), f"--axis {change}: no values are given")
        found[name] = tuple(values)
    return found


def answer_of(question: WhatIf, base: Scenario, methods: Sequence[str], replications: int) -> Answer:
    """One answer: numbers to four digits, or the reason why there are none."""
    try:
        found = outlook(question, base, methods, replications)
    except InputError as error:
        return {"answer": str(error), "methods": {}}
    return {"answer": str(found), "methods": {method: _numbers(found, method) for method in found.ranking}}


def _numbers(found: Outlook, method: str) -> list[list[float | None]]:
    """Mean, low and high of each metric, at 95 %; None where no request says."""
    summary = found.results[method].summary()
    return [[_rounded(summary.loc[name, column]) for column in ("mean", "low", "high")] for name in METRICS]


def _rounded(value: Any) -> float | None:
    return float(f"{value:.{DIGITS}g}") if isfinite(value) else None
