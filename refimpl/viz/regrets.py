"""How far an output's tokens are from the target's own choice, as `refimpl.judging.tie_or_bug` judges them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refimpl.core.errors import require, shown
from refimpl.viz.style import BLUE, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_BINS = 40


@dataclass(frozen=True, slots=True)
class Regrets:
    """Regrets of a judged output.

    Attributes:
        values: per token, the largest logit minus the token's.
        threshold: largest regret that is put down to rounding.
        verdict: exact, tie or bug.
    """

    values: tuple[float, ...]
    threshold: float
    verdict: str


def regret_histogram(judged: Mapping[str, Regrets]) -> "Figure":
    """Draw one histogram for each name, all with the same axes: what rounding explains, and what it does not.

    Regrets of 0, of tokens that the target itself would choose, are counted in the title only.

    Example::

        judged = judge_method(pair, prompts, method="exspec")
        regret_histogram({"exspec": judged.regrets})

    Raises:
        InputError: no mapping of names to regrets, or an empty one.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    are_regrets = isinstance(judged, Mapping) and all(isinstance(each, Regrets) for each in judged.values())
    require(
        are_regrets and bool(judged), f"give a mapping from names to the regrets of judgements, not {shown(judged)}"
    )
    drawn = panels(len(judged), 8.5, 2.6)
    edges = _bin_edges(list(judged.values()))
    for axes, (name, regrets) in zip(drawn, judged.items(), strict=True):
        _draw(axes, name, regrets, edges)
    most = max(axes.get_ylim()[1] for axes in drawn)
    ticks = [n for n in [0, *(n * 10**i for i in range(6) for n in (1, 2, 5))] if n <= most]
    for axes in drawn:
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, most))
        axes.set_yticks(ticks, labels=map(str, ticks))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    drawn[-1].set_xlabel("regret in logits: the largest minus the token's")
    return drawn[0].get_figure(root=True)  # type: ignore[return-value]


def _draw(axes: "Axes", name: str, regrets: Regrets, edges: list[float]) -> None:
    within = [value for value in regrets.values if 0 < value <= regrets.threshold]
    beyond = [value for value in regrets.values if value > regrets.threshold]
    for values, color, what in ((within, BLUE, "within"), (beyond, ORANGE, "beyond")):
        axes.hist(values, bins=edges, color=color, label=f"{len(values)} {what} the threshold")
    axes.axvline(regrets.threshold, color="black", linestyle="--", label=f"threshold {regrets.threshold:.3g}")
    zeros, count = len(regrets.values) - len(within) - len(beyond), len(regrets.values)
    heading = f"{name}: {regrets.verdict}" if name else f"verdict: {regrets.verdict}"
    axes.set(xscale="log", yscale="symlog", ylabel="tokens", title=f"{heading}, {zeros} of {count} regrets are 0")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize="small")


def _bin_edges(judged: list[Regrets]) -> list[float]:
    """Bins, equally wide on a logarithmic axis, that hold every regret and every threshold."""
    shown = [value for regrets in judged for value in (*regrets.values, regrets.threshold) if value > 0] or [1.0]
    low, high = min(shown) / 2, max(shown) * 2
    return [low * (high / low) ** (i / NUM_BINS) for i in range(NUM_BINS + 1)]
