"""A panel for notebooks: move a slider or choose a device, see what each method does then."""

import html
from collections.abc import Sequence
from typing import Any

import pandas as pd

from refimpl.core.errors import require
from simulator.settings.hardware import shipped
from simulator.settings.scenario import Scenario
from simulator.studies.whatif import LABELS, METHODS, METRICS, PAIRS, WhatIf
from simulator.studies.whatif_grid import NUMBERS, Answer, WhatIfGrid, answer_of

SLIDERS: dict[str, dict[str, Any]] = {  # field of WhatIf -> range
    "batch_size": {"min": 1, "max": 32},
    "window_size": {"min": 1, "max": 128},
    "num_speculative_tokens": {"min": 1, "max": 10},
    "acceptance": {"min": 0.05, "max": 0.95, "step": 0.05},
    "deviation": {"min": 0.0, "max": 0.4, "step": 0.05},
    "rate_per_s": {"min": 0.0, "max": 20.0, "step": 0.25},
}
WHOLE_LABEL = {"description_width": "8em"}
AS_GIVEN = ("as in the scenario", None)  # the first choice, as a label and a value


def answer_html(answer: Answer) -> str:
    """The recommendation above the table of all methods with their intervals, or why there is none, as HTML."""
    said = f"<p>{html.escape(answer['answer'])}</p>"
    if not answer["methods"]:
        return said
    lines = {method: list(map(_shown, METRICS, found)) for method, found in answer["methods"].items()}
    frame = pd.DataFrame.from_dict(lines, orient="index", columns=[LABELS[metric] for metric in METRICS])
    return said + frame.to_html(border=0, justify="left") + "<p>Each range is a 95 % interval of the mean.</p>"


def _shown(metric: str, numbers: Sequence[float | None]) -> str:
    """Mean, low and high of a metric as the cell of a table."""
    mean, low, high = numbers
    if mean is None or low is None:
        return "–"
    return f"{100 * mean:.0f} %" if metric == "grouping_rate" else f"{mean:.4g} ({low:.4g} … {high:.4g})"


def ahead_html(question: WhatIf, grid: WhatIfGrid | None) -> str:
    """What to read until a question is simulated: the answer at the nearest point of a grid, and where that is."""
    found = grid.nearest(question) if grid else None
    if not found:
        return "<p>Simulating …</p>"
    point, answer = found
    moved = [name for name in NUMBERS if getattr(point, name) != getattr(question, name)]
    where = ", ".join(f"{LABELS[name]} {getattr(point, name)}" for name in moved) or "the same question"
    return f"<p>Simulating …; computed ahead, for {where}:</p>{answer_html(answer)}"


def panel(
    base: Scenario | None = None,
    methods: Sequence[str] = METHODS,
    replications: int = 5,
    grid: WhatIfGrid | None = None,
) -> Any:
    """Sliders and choices with the answer below them. Needs ipywidgets: ``pip install 'raggedspec[notebooks]'``.

    Args:
        base: lengths and whatever is not moved, and the costs until a device and models are chosen. Its study is
            replaced: 64 requests, at the rate of the slider, or all at once where that is 0.
        methods: to compare.
        replications: of each; more of them narrow the interval and take longer.
        grid: answers that `answer_grid` has computed for the same scenario and methods, with `rate_per_s`
            among the axes. The nearest is shown at once, until the question itself is simulated.

    Example::

        measured = Scenario(cost={"kind": "table", "calibration": "cpu/tiny"})
        panel(measured, grid=answer_grid(measured, axes={"batch_size": (1, 4, 8), "rate_per_s": (0.0, 5.0)}))

    Raises:
        InputError: the grid is of another scenario.
    """
    import ipywidgets as widgets

    base, answer = base or Scenario(), widgets.HTML()
    require(grid is None or grid.base == base, "the grid is of another scenario than the panel")
    moved = _sliders(WhatIf(rate_per_s=0.0)) | _choices()

    def show(_: Any = None) -> None:
        question = WhatIf(**{name: widget.value for name, widget in moved.items()})
        answer.value = ahead_html(question, grid)
        answer.value = answer_html(answer_of(question, base, methods, replications))

    for widget in moved.values():
        widget.observe(show, names="value")
    show()
    return widgets.VBox([*moved.values(), answer])


def _sliders(start: WhatIf) -> dict[str, Any]:
    """Field of WhatIf → its slider."""
    import ipywidgets as widgets

    sliders = {}
    for name, limits in SLIDERS.items():
        value = getattr(start, name)
        kind = widgets.IntSlider if isinstance(value, int) else widgets.FloatSlider
        sliders[name] = kind(
            value=value, description=LABELS[name], style=WHOLE_LABEL, continuous_update=False, **limits
        )
    return sliders


def _choices() -> dict[str, Any]:
    """Field of WhatIf → its list of shipped facts to choose from."""
    import ipywidgets as widgets

    offered = {"device": shipped("devices"), "models": PAIRS}
    options = {name: [AS_GIVEN, *((value, value) for value in values)] for name, values in offered.items()}
    return {
        name: widgets.Dropdown(options=options[name], description=LABELS[name], style=WHOLE_LABEL) for name in offered
    }
