"""Requests that arrive one by one, in real time: how long they wait for their first token, and for each one after."""

import math
import random
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refimpl.bench.reference import Reference
from refimpl.core.config import make_config
from refimpl.core.errors import require
from refimpl.core.request import Request
from refimpl.core.values import require_int
from refimpl.generation import stream
from refimpl.models.adapter import Pair
from refimpl.requests import encode
from refimpl.results import Result

QUANTILES = (0.5, 0.9, 0.99)
PASSES = 10  # of the reference before a run, and again after it
MIN_RATE = 1e-4  # one request in three hours
MAX_REQUESTS = 10**6  # each takes about a kilobyte before it comes


@dataclass(frozen=True, slots=True)
class Waits:
    """Quantiles over all of a run: 50, 90 and 99 %, in seconds; None where there is nothing to wait for."""

    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None

    @classmethod
    def of(cls, seconds: Seq[float]) -> "Waits":
        """Quantiles of these."""
        return cls(*map(float, np.quantile(seconds, QUANTILES))) if seconds else cls()


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One method under one stream of requests.

    Attributes:
        method: name, as for `generate`.
        requests, tokens: that came, and that they got.
        seconds: from the start of the run to the last token.
        tokens_per_s: tokens over seconds.
        first_token: from a request's arrival to the end of the round that yields its first token.
        inter_token: between the ends of two rounds, one after the other, that yield tokens of the same request.
        latency: from a request's arrival to its last token.
        busy_share: share of the seconds in which a round ran.
        preemptions: requests sent back because the blocks ran out.
    """

    method: str
    requests: int
    tokens: int
    seconds: float
    tokens_per_s: float
    first_token: Waits
    inter_token: Waits
    latency: Waits
    busy_share: float
    preemptions: int


def poisson_requests(prompts: Seq[list[int]], rate_per_s: float, count: int, seed: int) -> list[Request]:
    """So many requests with exponential gaps between them, the prompts in turn; the first comes at once.

    Raises:
        InputError: a rate below `MIN_RATE` or without an end, or a count beyond `MAX_REQUESTS`.
    """
    require(rate_per_s != math.inf, f"rate must be finite, not {rate_per_s}")
    require(rate_per_s >= MIN_RATE, f"rate must be at least {MIN_RATE} requests per second, not {rate_per_s}")
    require_int("the number of requests", count, 1, MAX_REQUESTS)
    rng, now_s, requests = random.Random(seed), 0.0, []
    for i in range(count):
        requests.append(Request(prompts[i % len(prompts)], arrival_s=now_s))
        now_s += rng.expovariate(rate_per_s)
    return requests


def require_rounds(methods: Seq[str], settings: dict[str, Any]) -> None:
    """Raise InputError, before any of them runs, for methods that cannot serve with these settings."""
    for method in methods:
        config = make_config(method=method, **settings)
        require(
            config.resolved_method.layout is not None, f"{method} has no rounds, so it serves nobody while it decodes"
        )


def serve(
    pair: Pair,
    requests: Seq[Request],
    method: str,
    *,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> tuple[ServingRow, Result]:
    """Decode requests as they arrive, after a short run that warms up; `settings` are those of `generate`.

    The result's header also has ``reference_s``: mean seconds of a reference pass just before and after the run.
    """
    for _ in stream(pair, [requests[0].prompt], method=method, **settings):
        pass
    reference = Reference(pair, encode(pair, requests[0].prompt, 0))
    reference.time_several(PASSES)
    run = stream(pair, requests, method=method, **settings)
    times: defaultdict[int, list[float]] = defaultdict(list)
    for event in run:
        times[event.index].append(event.time_s)
        if progress and event.stop_reason:
            progress(run.num_finished, len(requests))
    reference.time_several(PASSES)
    result = run.result()
    result = replace(result, header=result.header | {"reference_s": reference.mean_s})
    ends = [times[i] for i in range(len(requests))]
    arrivals = [request.arrival_s for request in requests]
    seconds = max(end[-1] for end in ends)
    return ServingRow(
        method=method,
        requests=len(requests),
        tokens=result.stats.num_generated,
        seconds=seconds,
        tokens_per_s=result.stats.num_generated / seconds,
        first_token=Waits.of([end[0] - at for end, at in zip(ends, arrivals, strict=True)]),
        inter_token=Waits.of([gap for end in ends for gap in np.diff(end)]),
        latency=Waits.of([end[-1] - at for end, at in zip(ends, arrivals, strict=True)]),
        busy_share=result.stats.wall_s / seconds,
        preemptions=result.stats.num_preemptions,
    ), result
