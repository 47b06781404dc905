"""Figures of what studies have found: an attribution, a validation."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from refimpl.viz.style import BLUE, GREY, ORANGE
from simulator.engine_runs.validation import Validation
from simulator.plots.labels import label_of, titled
from simulator.studies.attribution import Attribution

SEEN = 0.1  # of the highest level: smaller differences are shown on an axis that does not begin at 0


def waterfall(attribution: Attribution, axes: Axes | None = None) -> Axes:
    """From a to b: each factor's share as a step, with its 95 % interval; see `SEEN` for where the axis begins.

    Example::

        plots.waterfall(attribute(scenario.but(method="eqspec"), scenario.but(method="inplace")))
    """
    axes = titled(axes, f"what changes {label_of(attribution.metric)}, from a to b")
    steps = attribution.table.drop(index="total")
    levels = [attribution.a, *(attribution.a + steps["share"].cumsum())]
    for at, (base, (_, step)) in enumerate(zip(levels, steps.iterrows(), strict=False), start=1):
        axes.bar(at, step["share"], bottom=base, color=BLUE if step["share"] >= 0 else ORANGE)
        error = [[step["share"] - step["low"]], [step["high"] - step["share"]]]
        axes.errorbar(at, base + step["share"], error, color="black", capsize=3, linewidth=1)
    _draw_ends(axes, attribution, [*levels, attribution.b], len(levels))
    axes.set_xticks(range(len(levels) + 1), ["a", *steps.index, "b"], rotation=25, ha="right")
    axes.set_ylabel(label_of(attribution.metric))
    return axes


def _draw_ends(axes: Axes, attribution: Attribution, levels: list[float], last: int) -> None:
    """a and b as bars from 0; as lines, with the axis cut, where steps would be too small to be seen beside them."""
    low, high = min(levels), max(levels)
    ends = {0: attribution.a, last: attribution.b}
    if high - low > SEEN * high:
        axes.bar([*ends], [*ends.values()], color=GREY)
        return
    axes.hlines([*ends.values()], [at - 0.4 for at in ends], [at + 0.4 for at in ends], color=GREY, linewidth=4)
    for at, level in ends.items():
        axes.annotate(f"{level:.4g}", (at, level), (0, 5), textcoords="offset points", ha="center")
    axes.use_sticky_edges = False  # else the lowest line would be the axis
    axes.margins(y=0.15)


def held_out_runs(validation: Validation, axes: Axes | None = None, *, acceptance: bool = True) -> Axes:
    """Measured over simulated seconds of every held-out run, with the band that most replications lie in around 1.

    Example::

        plots.held_out_runs(read_validation("cpu/tiny"))

    Args:
        validation: from `validate` or `read_validation`.
        axes: where to draw.
        acceptance: whether acceptance is fitted to other prompts, or replayed, so that only costs are predicted.
    """
    axes = titled(axes, "held-out runs: measured beside simulated", 6.0, 3.8)
    table = validation.table.sort_values(["study", "measured_s"])
    prefix = "band" if acceptance else "cost_band"
    simulated = table["simulated_s"] if acceptance else table["measured_s"] * (1 + table["cost_error"])
    low, high = (table[f"{prefix}_{end}_s"] / simulated for end in ("low", "high"))
    inside = table[f"in_{prefix}"].to_numpy(dtype=bool)
    held = f"{100 * validation.share_held:.3g}"
    at, ratio = np.arange(len(table)), (table["measured_s"] / simulated).to_numpy()
    axes.vlines(at, low, high, color=GREY, linewidth=3, alpha=0.5, label=f"simulated, {held} % of replications")
    axes.scatter(at[inside], ratio[inside], s=12, color=BLUE, zorder=3, label="measured, inside")
    axes.scatter(at[~inside], ratio[~inside], s=12, color=ORANGE, zorder=3, label="measured, outside")
    axes.axhline(1, color="black", linewidth=0.8)
    middles = pd.Series(at).groupby(table["study"].to_numpy()).mean()
    axes.set_xticks(middles, middles.index, rotation=60, ha="right", fontsize=7)
    axes.set_ylabel("measured over\nsimulated seconds")
    axes.legend(frameon=False, fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    return axes
