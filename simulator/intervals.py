"""Over replications: means with their intervals, and the range that holds most single ones."""

from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from simulator.service.metrics import most_of

MIDDLE = 0.9  # share of single replications between p05 and p95


def metric_interval(values: pd.Series, level: float) -> tuple[float, float, float, int]:
    """`mean_interval` of a metric, its ends within what the metric can be; `values` has its name."""
    mean, low, high, count = mean_interval(values.to_numpy(), level)
    return mean, float(np.maximum(low, 0)), float(np.minimum(high, most_of(str(values.name)))), count


def mean_interval(values: np.ndarray, level: float) -> tuple[float, float, float, int]:
    """Mean, lower and upper end of its Student t interval, and the number of finite values.

    Of few and skewed values it holds the mean less often than `level` says: 2 to 5 points less of 95.
    """
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return np.nan, np.nan, np.nan, 0
    mean = float(values.mean())
    if len(values) == 1:
        return mean, np.nan, np.nan, 1
    half = float(stdtrit(len(values) - 1, (1 + level) / 2) * values.std(ddof=1) / np.sqrt(len(values)))
    return mean, mean - half, mean + half, len(values)


def share_held(count: int, share: float) -> float:
    """What `range_of_runs` of so many runs holds of single ones, at most `share`: 0.9 takes 19 runs, 0.95 takes 39."""
    return min(share, (count - 1) / (count + 1))


def range_of_runs(values: Any, share: float) -> tuple[Any, Any]:
    """Ends of the range into which a further run falls with a chance of `share`, whatever the law of the runs.

    Of n ordered runs, the i-th is taken at a probability of i / (n + 1) (Weibull; Hyndman and Fan's type 6). Where they
    are too few, the range goes from the least to the greatest, and holds `share_held` of single runs.

    Args:
        values: a line per run, ``[n]`` or ``[n, m]``.
        share: of single runs.

    Returns:
        The lower and the upper end, each a number or ``[m]``; NaN where there is no run.
    """
    if len(values) == 0:
        return np.nan, np.nan
    low, high = np.quantile(values, [(1 - share) / 2, (1 + share) / 2], axis=0, method="weibull")
    return low, high


def summarize(frame: pd.DataFrame, level: float) -> pd.DataFrame:
    """Of every column, each of which is a metric's: mean, interval, p05 and p95 of single replications, and count.

    p05 and p95 are NaN where there are too few replications to hold 90 % of further ones.
    """
    columns = ["metric", "mean", "low", "high", "p05", "p95", "n"]
    return pd.DataFrame([_line(frame[name], level) for name in frame], columns=columns).set_index("metric")


def _line(values: pd.Series, level: float) -> tuple[Any, ...]:
    mean, low, high, count = metric_interval(values, level)
    known = share_held(count, MIDDLE) == MIDDLE
    ends = range_of_runs(values[np.isfinite(values)], MIDDLE) if known else (np.nan, np.nan)
    return str(values.name), mean, low, high, *ends, count
