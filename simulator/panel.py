"""A panel of sliders for notebooks: move a setting, see what each method does with it."""

import html
from collections.abc import Sequence
from typing import Any

from refimpl.core.errors import InputError
from simulator.settings.scenario import Scenario
from simulator.studies.whatif import LABELS, METHODS, WhatIf, outlook

SLIDERS: dict[str, dict[str, Any]] = {  # field of WhatIf -> range
    "batch_size": {"min": 1, "max": 32},
    "window_size": {"min": 1, "max": 128},
    "num_speculative_tokens": {"min": 1, "max": 10},
    "acceptance": {"min": 0.05, "max": 0.95, "step": 0.05},
    "deviation": {"min": 0.0, "max": 0.4, "step": 0.05},
    "rate_per_s": {"min": 0.0, "max": 20.0, "step": 0.25},
}


def answer_html(question: WhatIf, base: Scenario, methods: Sequence[str], replications: int) -> str:
    """The recommendation above the table of all methods, or why there is none, as HTML."""
    try:
        return outlook(question, base, methods, replications)._repr_html_()
    except InputError as error:
        return f"<p>{html.escape(str(error))}</p>"


def panel(base: Scenario | None = None, methods: Sequence[str] = METHODS, replications: int = 5) -> Any:
    """Sliders with the answer below them. Needs ipywidgets: ``pip install 'raggedspec[notebooks]'``.

    Args:
        base: costs, lengths and whatever no slider moves. Its study is replaced: 64 requests, at the rate of the
            slider, or all at once where that is 0.
        methods: to compare.
        replications: of each; more of them narrow the interval and take longer.

    Example::

        panel(Scenario(cost={"kind": "table", "calibration": "cpu/tiny"}))
    """
    import ipywidgets as widgets

    base, start, answer = base or Scenario(), WhatIf(rate_per_s=0.0), widgets.HTML()
    sliders: dict[str, Any] = {}
    for name, limits in SLIDERS.items():
        value = getattr(start, name)
        kind = widgets.IntSlider if isinstance(value, int) else widgets.FloatSlider
        sliders[name] = kind(value=value, description=LABELS[name], continuous_update=False, **limits)

    def show(_: Any = None) -> None:
        question = WhatIf(**{name: slider.value for name, slider in sliders.items()})
        answer.value = answer_html(question, base, methods, replications)

    for slider in sliders.values():
        slider.observe(show, names="value")
    show()
    return widgets.VBox([*sliders.values(), answer])
