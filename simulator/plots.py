"""Figures from the tidy tables. Each function draws on given axes and returns them; nothing is computed twice."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase

from refimpl.core.errors import InputError, require
from refimpl.core.files import check_writable, whole_file
from refimpl.viz.style import BLUE, GREY, ORANGE, add_legend, draw_heat_map, new_axes, series_styles
from refimpl.viz.style import captioned as captioned
from refimpl.viz.style import panels as panels
from simulator.engine_runs.validation import Validation
from simulator.runner import Results, mean_interval
from simulator.settings.fields import LEVEL
from simulator.studies.attribution import Attribution


def latency_cdf(results: Results | Mapping[str, Results], axes: Axes | None = None, *, level: float = 0.9) -> Axes:
    """Share of requests answered within a time, mean over replications and band of the middle `level` of them.

    Of all that arrived: where some were not answered before the end, the curve ends at the share of those that were.

    Example::

        plots.latency_cdf({"exspec": simulate(scenario), "inplace": simulate(scenario.but(method="inplace"))})
    """
    LEVEL.check(level, "level")
    results, axes = _by_name(results), axes or new_axes()
    shares = np.linspace(0.005, 0.995, 199)
    for style, (name, result) in zip(series_styles(len(results)), results.items(), strict=True):
        requests = result.frame("requests")
        latency = (requests["finished_s"] - requests["arrival_s"]).groupby(requests["replication"])
        curves = np.array([_answered(values.to_numpy(), shares) for _, values in latency])
        low, high = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
        axes.fill_betweenx(shares, low, high, color=style["color"], alpha=0.25, linewidth=0)
        axes.plot(curves.mean(axis=0), shares, label=name, **style)
    axes.set(xlabel="latency (s)", ylabel="share of requests", ylim=(0, 1))
    add_legend(axes, len(results))
    return axes


def _answered(latency: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Time within which each share of the requests was answered; NaN beyond those that were."""
    known = latency[np.isfinite(latency)]
    if len(known) == 0:
        return np.full(len(shares), np.nan)
    reached = shares * len(latency) / len(known)
    return np.where(reached <= 1, np.quantile(known, np.minimum(reached, 1)), np.nan)


def backlog(results: Results | Mapping[str, Results], axes: Axes | None = None, *, replication: int = 0) -> Axes:
    """Requests that have arrived and not finished, over time, in one replication of each.

    Example::

        plots.backlog({"steady": simulate(scenario), "bursty": simulate(scenario.but({"study.arrivals": bursts}))})
    """
    results, axes = _by_name(results), axes or new_axes()
    for style, (name, result) in zip(series_styles(len(results)), results.items(), strict=True):
        requests = result.frame("requests", replication)
        arrived, finished = np.sort(requests["arrival_s"]), np.sort(requests["finished_s"].dropna())
        times = np.unique([*arrived, *finished])
        inside = np.searchsorted(arrived, times, "right") - np.searchsorted(finished, times, "right")
        axes.step(times, inside, where="post", label=name, **style)
    axes.set(xlabel="time (s)", ylabel="unfinished requests", ylim=(0, None))
    add_legend(axes, len(results))
    return axes


def throughput_against(
    frame: pd.DataFrame, setting: str, axes: Axes | None = None, *, by: str | None = None, metric: str = "tokens_per_s"
) -> Axes:
    """Mean of a metric against a swept setting with 95 % intervals over replications, one line per value of `by`.

    Example::

        plots.throughput_against(sweep(spec), "engine.batch_size", by="engine.window_size")

    Raises:
        InputError: a column that is not there, a setting without a value, or points that differ in a further setting,
            which no interval over replications may pool.
    """
    _require_columns(frame, setting, metric, by)
    axes = axes or new_axes()
    groups = _series(frame, by, sort=True)
    for style, (value, group) in zip(series_styles(len(groups)), groups, strict=True):
        points = [(x, *mean_interval(part[metric].to_numpy(), 0.95)) for x, part in group.groupby(setting)]
        x, mean, low, high, _ = (np.array(column) for column in zip(*points, strict=True))
        label = f"{by.rpartition('.')[2]} {value}" if by else None
        axes.errorbar(x, mean, [mean - low, high - mean], marker="o", markersize=3, capsize=2, label=label, **style)
    axes.set(xlabel=setting, ylabel=metric, ylim=(0, None))
    if by:
        add_legend(axes, len(groups))
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
    """Draw the median of a metric against a swept setting, with the band of the middle `level` of the replications.

    The band holds single runs and does not shrink with more replications; `throughput_against` draws how well the mean
    is known. `labels` name values of `by` in the legend; with them, any other stands there alone.

    Example::

        plots.band_against(sweep(spec), "engine.window_size", "grouping_rate", by="engine.batch_size")

    Raises:
        InputError: as for `throughput_against`.
    """
    LEVEL.check(level, "level")
    _require_columns(frame, setting, metric, by)
    axes = axes or new_axes()
    groups = _series(frame, by, sort=False)
    for style, (value, group) in zip(series_styles(len(groups)), groups, strict=True):
        points = group.groupby(setting)[metric].quantile([(1 - level) / 2, 0.5, (1 + level) / 2]).unstack()
        low, middle, high = points.to_numpy().T
        label = labels.get(value, str(value)) if labels else f"{by.rpartition('.')[2]} {value}" if by else None
        axes.fill_between(points.index, low, high, color=style["color"], alpha=0.2, linewidth=0)
        axes.plot(points.index, middle, marker="o", markersize=3, label=label, **style)
    axes.set(xlabel=setting, ylabel=metric)
    if by:
        add_legend(axes, len(groups))
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
        InputError: a column that is not there, or pairs that differ in a further setting.
    """
    _require_in(frame, x, y, metric)
    if "replication" in frame:
        _require_single_points(frame, x, y)
    table = frame.pivot_table(index=y, columns=x, values=metric, aggfunc="mean")
    axes = axes or new_axes(1.5 + 0.8 * len(table.columns), 1.4 + 0.4 * len(table))
    draw_heat_map(axes, table.to_numpy(), list(table.columns), list(table.index), numbers=numbers, **image)
    axes.set(xlabel=x, ylabel=y)
    return axes


def _by_name(results: Results | Mapping[str, Results]) -> Mapping[str, Results]:
    """Results by their names in the legend; those of one scenario have its own.

    Raises:
        InputError: something else, or nothing.
    """
    named = {results.scenario.name: results} if isinstance(results, Results) else results
    are_results = isinstance(named, Mapping) and all(isinstance(each, Results) for each in named.values())
    require(are_results and bool(named), "give the results of simulate, or a mapping from names to results")
    return named


def _require_in(frame: pd.DataFrame, *columns: str) -> None:
    """Raise InputError unless a sweep's frame has the columns."""
    require(isinstance(frame, pd.DataFrame), f"give the frame of a sweep, not {type(frame).__name__}")
    for column in columns:
        require(column in frame, f"{column} is no column of the sweep")


def _require_columns(frame: pd.DataFrame, setting: str, metric: str, by: str | None) -> None:
    """Raise InputError for a column that is not there, a setting without a value, or pooled settings."""
    _require_in(frame, setting, metric, by or setting, "replication")
    require(bool(frame[setting].notna().all()), f"{setting} has points without a value: leave them out of the frame")
    _require_single_points(frame, setting, by)


def _series(frame: pd.DataFrame, by: str | None, *, sort: bool) -> list[tuple[Any, pd.DataFrame]]:
    """The part of each value of a column, also of no value; all without a column."""
    if by is None:
        return [("", frame)]
    parts = frame.groupby([by], dropna=False, sort=sort)
    return [(value, part) for (value,), part in parts]  # their number is not asked: pandas 2 fails where one is None


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


def raggedness_map(results: Results, axes: Axes | None = None, *, replication: int = 0) -> Axes:
    """Real tokens in each slot of the pool, minus the round's mean: how far the rows drift apart.

    Example::

        plots.raggedness_map(simulate(scenario, keep_rows=True))
    """
    axes = axes or new_axes()
    rows = results.frame("rows", replication)
    rows = rows[rows["replica"] == 0]
    require(len(rows) > 0, "the rows were not logged: simulate with keep_rows=True")
    table = rows.pivot_table(index="slot", columns="round", values="seq_len")
    spread = table - table.mean()
    limit = max(float(np.nanmax(np.abs(spread.to_numpy()))), 1.0)
    image = axes.imshow(
        spread, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest",
        extent=(table.columns.min() - 0.5, table.columns.max() + 0.5, len(table) - 0.5, -0.5),
    )  # fmt: skip
    axes.set(xlabel="round", ylabel="slot")
    axes.figure.colorbar(image, ax=axes, label="tokens from the round's mean")
    return axes


def waterfall(attribution: Attribution, axes: Axes | None = None) -> Axes:
    """From a to b: each factor's share as a step, with its 95 % interval.

    Example::

        plots.waterfall(attribute(scenario.but(method="eqspec"), scenario.but(method="inplace")))
    """
    axes = axes or new_axes()
    table = attribution.table.drop(index="total")
    names = ["a", *table.index, "b"]
    base = attribution.a
    axes.bar(0, base, color=GREY)
    for at, (_, line) in enumerate(table.iterrows(), start=1):
        color = BLUE if line["share"] >= 0 else ORANGE
        axes.bar(at, line["share"], bottom=base, color=color)
        base += line["share"]
        error = [[line["share"] - line["low"]], [line["high"] - line["share"]]]
        axes.errorbar(at, base, error, color="black", capsize=3, linewidth=1)
    axes.bar(len(names) - 1, attribution.b, color=GREY)
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right")
    axes.set_ylabel(attribution.metric)
    return axes


def pareto(frame: pd.DataFrame, axes: Axes | None = None, *, x: str = "latency_p99_s", y: str = "tokens_per_s") -> Axes:
    """Scenarios of a sweep by P99 latency and throughput; those that no other beats in both are joined.

    Example::

        plots.pareto(sweep(spec))

    Raises:
        InputError: no frame of a sweep, or a column that is not there.
    """
    _require_in(frame, "key", x, y)
    axes = axes or new_axes()
    means = frame.groupby("key")[[x, y]].mean()
    best = pareto_front(means[x].to_numpy(), means[y].to_numpy())
    axes.scatter(means[x], means[y], s=10, color=GREY, label="scenarios")
    front = means[best].sort_values(x)
    axes.plot(front[x], front[y], color=BLUE, marker="o", markersize=4, label="not dominated")
    axes.set(xlabel=x, ylabel=y)
    axes.legend(frameon=False)
    return axes


def pareto_front(cost: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Whether no other point has at most the cost and at least the gain, and one of them strictly ``[n]``."""
    cheaper, better = cost[:, None] <= cost[None, :], gain[:, None] >= gain[None, :]
    strictly = (cost[:, None] < cost[None, :]) | (gain[:, None] > gain[None, :])
    return np.logical_not((cheaper & better & strictly).any(axis=0))


def held_out_runs(validation: Validation, axes: Axes | None = None, *, acceptance: bool = True) -> Axes:
    """Measured over simulated seconds of every held-out run, with the simulated 90 % band around 1.

    Example::

        plots.held_out_runs(read_validation("cpu/tiny"))

    Args:
        validation: from `validate` or `read_validation`.
        axes: where to draw.
        acceptance: whether acceptance is fitted to other prompts, or replayed, so that only costs are predicted.
    """
    axes = axes or new_axes(6.0, 3.6)
    table = validation.table.sort_values(["study", "measured_s"])
    prefix, simulated = ("band", table["simulated_s"]) if acceptance else ("cost_band", None)
    if simulated is None:
        simulated = table["measured_s"] * (1 + table["cost_error"])
    low, high = (table[f"{prefix}_{end}_s"] / simulated for end in ("low", "high"))
    inside = table[f"in_{prefix}"].to_numpy(dtype=bool)
    at, ratio = np.arange(len(table)), (table["measured_s"] / simulated).to_numpy()
    axes.vlines(at, low, high, color=GREY, linewidth=3, alpha=0.5, label="simulated, 90 % of replications")
    axes.scatter(at[inside], ratio[inside], s=12, color=BLUE, zorder=3, label="measured, inside")
    axes.scatter(at[~inside], ratio[~inside], s=12, color=ORANGE, zorder=3, label="measured, outside")
    axes.axhline(1, color="black", linewidth=0.8)
    middles = pd.Series(at).groupby(table["study"].to_numpy()).mean()
    axes.set_xticks(middles, middles.index, rotation=60, ha="right", fontsize=7)
    axes.set_ylabel("measured over\nsimulated seconds")
    axes.legend(frameon=False, fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    return axes


def check_figure(path: str | Path) -> None:
    """Raise InputError, before any work is done, unless a figure can be written to `path`."""
    known = FigureCanvasBase.get_supported_filetypes()
    suffix = Path(path).suffix.removeprefix(".")
    require(suffix in known, f"{path}: a figure ends in one of {', '.join(sorted(known))}, not {suffix!r}")
    check_writable(Path(path))


def save(axes: Axes, path: str | Path, dpi: int = 150) -> None:
    """Write the figure that the axes belong to.

    Raises:
        InputError: unknown kind of file, or it cannot be written.
    """
    check_figure(path)
    with whole_file(path, "wb") as file:
        axes.get_figure(root=True).savefig(file, dpi=dpi, format=Path(path).suffix[1:])  # type: ignore[union-attr]
