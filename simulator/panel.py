"""A panel for notebooks: move a slider or choose a device, see what each method does then."""

import html
from collections.abc import Sequence
from typing import Any

from refimpl.core.errors import InputError
from simulator.settings.hardware import shipped
from simulator.settings.scenario import Scenario
from simulator.studies.whatif import LABELS, METHODS, PAIRS, WhatIf, outlook

SLIDERS: dict[str, dict[str, Any]] = {  # field of WhatIf -> range
    "batch_size": {"min": 1, "max": 32},
    "window_size": {"min": 1, "max": 128},
    "num_speculative_tokens": {"min": 1, "max": 10},
    "acceptance": {"min": 0.05, "max": 0.95, "step": 0.05},
    "deviation": {"min": 0.0, "max": 0.4, "step": 0.05},
    "rate_per_s": {"min": 0.0, "max": 20.0, "step": 0.25},
}
AS_GIVEN = ("as in the scenario", None)  # the first choice, as a label and a value


def answer_html(question: WhatIf, base: Scenario, methods: Sequence[str], replications: int) -> str:
    """The recommendation above the table of all methods, or why there is none, as HTML."""
    try:
        return outlook(question, base, methods, replications)._repr_html_()
    except InputError as error:
        return f"<p>{html.escape(str(error))}</p>"


def panel(base: Scenario | None = None, methods: Sequence[str] = METHODS, replications: int = 5) -> Any:
    """Sliders and choices with the answer below them. Needs ipywidgets: ``pip install 'raggedspec[notebooks]'``.

    Args:
        base: lengths and whatever is not moved, and the costs until a device and models are chosen. Its study is
            replaced: 64 requests, at the rate of the slider, or all at once where that is 0.
        methods: to compare.
        replications: of each; more of them narrow the interval and take longer.

    Example::

        panel(Scenario(cost={"kind": "table", "calibration": "cpu/tiny"}))
    """
    import ipywidgets as widgets

    base, answer = base or Scenario(), widgets.HTML()
    moved = _sliders(WhatIf(rate_per_s=0.0)) | _choices()

    def show(_: Any = None) -> None:
        question = WhatIf(**{name: widget.value for name, widget in moved.items()})
        answer.value = answer_html(question, base, methods, replications)

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
        sliders[name] = kind(value=value, description=LABELS[name], continuous_update=False, **limits)
    return sliders


def _choices() -> dict[str, Any]:
    """Field of WhatIf → its list of shipped facts to choose from."""
    import ipywidgets as widgets

    offered = {"device": shipped("devices"), "models": PAIRS}
    return {
        name: widgets.Dropdown(options=[AS_GIVEN, *((value, value) for value in values)], description=LABELS[name])
        for name, values in offered.items()
    }
