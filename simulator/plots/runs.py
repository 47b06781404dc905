"""Figures of the requests and rows of runs."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from refimpl.core.errors import require, shown
from refimpl.viz.style import add_legend, series_styles
from simulator.intervals import range_of_runs
from simulator.plots.labels import titled
from simulator.runner import Results
from simulator.settings.fields import LEVEL


def latency_cdf(results: Results | Mapping[str, Results], axes: Axes | None = None, *, level: float = 0.9) -> Axes:
    """Share of requests answered within a time, mean over replications and band of the middle `level` of single ones.

    Of all that arrived after the warm-up: where some were not answered before the end, the curve ends at the share of
    those that were. With fewer than (1 + level) / (1 - level) replications, the band goes from the least to the
    greatest.

    Example::

        plots.latency_cdf({"exspec": simulate(scenario), "inplace": simulate(scenario.but(method="inplace"))})

    Raises:
        InputError: no request arrived.
    """
    LEVEL.check(level, "level")
    results, axes = _by_name(results), titled(axes, "latency of requests")
    shares = np.linspace(0.005, 0.995, 199)
    for style, (name, result) in zip(series_styles(len(results)), results.items(), strict=True):
        requests = _after_warm_up(result)
        latency = (requests["finished_s"] - requests["arrival_s"]).groupby(requests["replication"])
        require(len(requests) > 0, f"{name}: no request arrived after the warm-up, in any replication")
        curves = np.array([_answered(values.to_numpy(), shares) for _, values in latency])
        low, high = range_of_runs(curves, level)
        axes.fill_betweenx(shares, low, high, color=style["color"], alpha=0.25, linewidth=0)
        axes.plot(curves.mean(axis=0), shares, label=name, **style)
    axes.set(xlabel="latency (s)", ylabel="share of requests", ylim=(0, 1))
    add_legend(axes, len(results))
    return axes


def _after_warm_up(result: Results) -> pd.DataFrame:
    """Requests of all replications that arrived when the warm-up was over."""
    requests, begin_s = result.frame("requests"), result.metrics.set_index("replication")["warmup_s"]
    return requests[requests["arrival_s"] >= requests["replication"].map(begin_s)]


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
    results, axes = _by_name(results), titled(axes, "requests waiting or running")
    for style, (name, result) in zip(series_styles(len(results)), results.items(), strict=True):
        requests = result.frame("requests", replication)
        arrived, finished = np.sort(requests["arrival_s"]), np.sort(requests["finished_s"].dropna())
        times = np.unique([*arrived, *finished])
        inside = np.searchsorted(arrived, times, "right") - np.searchsorted(finished, times, "right")
        axes.step(times, inside, where="post", label=name, **style)
    axes.set(xlabel="time (s)", ylabel="unfinished requests", ylim=(0, None))
    add_legend(axes, len(results))
    return axes


def raggedness_map(results: Results, axes: Axes | None = None, *, replication: int = 0, replica: int = 0) -> Axes:
    """Real tokens in each slot of the pool of a replica, minus the round's mean: how far the rows drift apart.

    Example::

        plots.raggedness_map(simulate(scenario, keep_rows=True))

    Raises:
        InputError: the rows were not kept, no such replication, or a replica without rows.
    """
    axes = titled(axes, "how far the rows of a round drift apart")
    rows = results.frame("rows", replication)
    last = results.scenario.service.replicas - 1
    rows = rows[rows["replica"] == replica]
    require(len(rows) > 0, f"replica {shown(replica)} ran no rows: replicas are 0 … {last}")
    table = rows.pivot_table(index="slot", columns="round", values="seq_len")
    slots, numbers = range(table.index.max() + 1), range(table.columns.min(), table.columns.max() + 1)
    spread = (table - table.mean()).reindex(index=slots, columns=numbers)  # empty where no row ran
    limit = max(float(np.nanmax(np.abs(spread.to_numpy()))), 1.0)
    image = axes.imshow(
        spread, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest",
        extent=(numbers[0] - 0.5, numbers[-1] + 0.5, len(slots) - 0.5, -0.5),
    )  # fmt: skip
    axes.set(xlabel="round", ylabel=f"slot of replica {replica}" if last else "slot")
    axes.figure.colorbar(image, ax=axes, label="tokens from the round's mean")
    return axes


def _by_name(results: Results | Mapping[str, Results]) -> Mapping[str, Results]:
    """Results by their names in the legend; those of one scenario have its own."""
    return {results.scenario.name: results} if isinstance(results, Results) else results
