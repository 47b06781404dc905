"""Figures of the settings of a sweep against what they bring.

A metric of the requests that finish is not known, or too small, at a point where many do not: such points are left out.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from refimpl.core.errors import InputError, require
from refimpl.viz.style import BLUE, GREY, add_legend, draw_heat_map, series_styles
from simulator.intervals import mean_interval, range_of_runs
from simulator.plots.labels import label_of, titled
from simulator.service.metrics import MANY_CENSORED
from simulator.settings.fields import LEVEL

OF_FINISHED = ("latency_", "service_", "per_token_")  # starts of the names of metrics of the requests that finish


def throughput_against(
    frame: pd.DataFrame, setting: str, axes: Axes | None = None, *, by: str | None = None, metric: str = "tokens_per_s"
) -> Axes:
    """Mean of a metric against a swept setting with 95 % intervals over replications, one line per value of `by`.

    Example::

        plots.throughput_against(sweep(spec), "engine.batch_size", by="engine.window_size")

    Raises:
        InputError: points that differ in a further setting, which no interval over replications may pool, or none at
            which enough requests finish.
    """
    lines, axes = _lines(frame, setting, metric, by, sort=True), _titled(axes, metric, setting)
    for style, value, group in lines:
        points = [(x, *mean_interval(part[metric].to_numpy(), 0.95)) for x, part in group.groupby(setting)]
        x, mean, low, high, _ = (np.array(column) for column in zip(*points, strict=True))
        label = f"{_without_unit(by)} {value}" if by else None
        axes.errorbar(x, mean, [mean - low, high - mean], marker="o", markersize=3, capsize=2, label=label, **style)
    axes.set(xlabel=label_of(setting), ylabel=label_of(metric), ylim=(0, None))
    if by:
        add_legend(axes, len(lines))
    return axes


def band_against(
    frame: pd.DataFrame,
    setting: str,
    metric: str = "tokens_per_s",
    axes: Axes | None = None,
    *,
    by: str | None = None,
    labels: Mapping[Any, str] | None = None,
    level: float = 0.9,
) -> Axes:
    """Draw the median of a metric against a swept setting, with the band of the middle `level` of single replications.

    The band holds single runs and does not shrink with more replications; with fewer than (1 + level) / (1 - level) of
    them, it goes from the least to the greatest. `throughput_against` draws how well the mean is known. `labels` name
    values of `by` in the legend; with them, any other stands there alone.

    Example::

        plots.band_against(sweep(spec), "engine.window_size", "grouping_rate", by="engine.batch_size")

    Raises:
        InputError: as for `throughput_against`.
    """
    LEVEL.check(level, "level")
    lines, axes = _lines(frame, setting, metric, by, sort=False), _titled(axes, metric, setting)
    for style, value, group in lines:
        points = group.groupby(setting)[metric]
        middle = points.median()
        low, high = np.transpose([range_of_runs(values.dropna(), level) for _, values in points])
        label = labels.get(value, str(value)) if labels else f"{_without_unit(by)} {value}" if by else None
        axes.fill_between(middle.index, low, high, color=style["color"], alpha=0.2, linewidth=0)
        axes.plot(middle.index, middle, marker="o", markersize=3, label=label, **style)
    axes.set(xlabel=label_of(setting), ylabel=label_of(metric))
    if by:
        add_legend(axes, len(lines))
    return axes


def heat_map(
    frame: pd.DataFrame,
    x: str,
    y: str,
    metric: str = "tokens_per_s",
    axes: Axes | None = None,
    *,
    numbers: str = "{:.3g}",
    **image: Any,
) -> Axes:
    """Write the mean of a metric over the replications into a cell for each pair of two swept settings.

    Args:
        frame: of a sweep, or any with the three columns.
        x, y: settings of the columns and the rows.
        metric: what the cells hold; a pair that is not in the frame stays empty.
        axes: where to draw.
        numbers: format of the numbers.
        **image: passed on to matplotlib's `imshow`, for example ``cmap="RdBu_r"``.

    Example::

        plots.heat_map(sweep(spec), "engine.window_size", "engine.batch_size", "grouping_rate")

    Raises:
        InputError: pairs that differ in a further setting.
    """
    if "replication" in frame:
        _require_single_points(frame, x, y)
    table = _known(frame, metric, x, y).pivot_table(index=y, columns=x, values=metric, aggfunc="mean")
    axes = titled(axes, label_of(metric), 1.5 + 0.8 * len(table.columns), 1.6 + 0.4 * len(table))
    draw_heat_map(axes, table.to_numpy(), list(table.columns), list(table.index), numbers=numbers, **image)
    axes.set(xlabel=label_of(x), ylabel=label_of(y))
    return axes


def _titled(axes: Axes | None, metric: str, setting: str) -> Axes:
    """Given axes, or new ones that say what is drawn against what."""
    return titled(axes, f"{_without_unit(metric)} against {_without_unit(setting)}")


def _without_unit(column: str) -> str:
    return label_of(column).partition(" (")[0]


def _known(frame: pd.DataFrame, metric: str, *settings: str) -> pd.DataFrame:
    """Without the points, told apart by `settings`, at which too many requests do not finish for what the metric is of.

    Raises:
        InputError: all points are such.
    """
    if not metric.startswith(OF_FINISHED) or not {"censored", "completed"} <= set(frame):
        return frame
    points = frame.groupby(list(dict.fromkeys(settings)), dropna=False)
    means = points[[metric, "censored", "completed"]].transform("mean")
    few = means["censored"] <= MANY_CENSORED * (means["censored"] + means["completed"])
    known = few & means[metric].notna()
    require(
        bool(known.any()),
        f"{metric} is known at no point: more than {MANY_CENSORED:.0%} of the requests did not finish",
    )
    return frame[known]


def _lines(
    frame: pd.DataFrame, setting: str, metric: str, by: str | None, *, sort: bool
) -> list[tuple[dict[str, Any], Any, pd.DataFrame]]:
    """Style, value of `by`, which may be None, and points of each line to draw; raises as `throughput_against`."""
    _require_single_points(frame, setting, by)
    known = _known(frame, metric, setting, by or setting)
    groups = [((None,), known)] if by is None else list(known.groupby([by], dropna=False, sort=sort))
    return [(style, value, part) for style, ((value,), part) in zip(series_styles(len(groups)), groups, strict=True)]


def _require_single_points(frame: pd.DataFrame, setting: str, by: str | None) -> None:
    """Raise InputError where one point of the plot would hold several values of a swept setting."""
    chosen = [setting, by] if by else [setting]
    swept = [name for name in frame.columns[: frame.columns.get_loc("replication")] if name not in ("key", *chosen)]
    values = frame.groupby(chosen, dropna=False)[swept].nunique(dropna=False)
    mixed = [name for name in swept if (values[name] > 1).any()]
    if mixed:
        name = mixed[0]
        choice = f"draw a line for each with by={name!r}, or keep" if by is None and len(mixed) == 1 else "keep"
        given = f"frame[frame[{name!r}] == {frame[name].dropna().tolist()[0]!r}]"
        raise InputError(f"{', '.join(mixed)}: several values at one {' and '.join(chosen)}; {choice} one: {given}")


def pareto(frame: pd.DataFrame, axes: Axes | None = None, *, x: str = "latency_p99_s", y: str = "tokens_per_s") -> Axes:
    """Scenarios of a sweep by P99 latency and throughput; those that no other beats in both are joined.

    Example::

        plots.pareto(sweep(spec))
    """
    axes = _titled(axes, y, x)
    means = _known(_known(frame, x, "key"), y, "key").groupby("key")[[x, y]].mean()
    best = pareto_front(means[x].to_numpy(), means[y].to_numpy())
    left_out = frame["key"].nunique() - len(means)
    label = f"scenarios ({left_out} with unfinished requests left out)" if left_out else "scenarios"
    axes.scatter(means[x], means[y], s=10, color=GREY, label=label)
    front = means[best].sort_values(x)
    axes.plot(front[x], front[y], color=BLUE, marker="o", markersize=4, label="not dominated")
    axes.set(xlabel=label_of(x), ylabel=label_of(y))
    axes.legend(frameon=False)
    return axes


def pareto_front(cost: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Whether no other point has at most the cost and at least the gain, and one of them strictly ``[n]``."""
    cheaper, better = cost[:, None] <= cost[None, :], gain[:, None] >= gain[None, :]
    strictly = (cost[:, None] < cost[None, :]) | (gain[:, None] > gain[None, :])
    return np.logical_not((cheaper & better & strictly).any(axis=0))
