"""What the commands print: tables, notes, and one line of JSON that has stdout for itself."""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any

from simulator.settings.json_files import finite
from simulator.settings.scenario import Scenario


@contextmanager
def output(as_json: bool) -> Iterator[dict[str, Any]]:
    """Yield what is found, to be filled in: at the end one line of JSON, for which stdout is kept free of tables.

    Numbers that are not finite become null.
    """
    found: dict[str, Any] = {}
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield found
    if as_json:
        print(json.dumps(finite(found), ensure_ascii=False))


def show(frame: Any, digits: int = 4) -> None:
    """Print a table with so many significant digits, those of its index included.

    On a terminal that is too narrow, columns that do not fit beside the others follow below them.
    """

    def written(value: Any) -> Any:
        return f"{value:.{digits}g}" if isinstance(value, float) else value

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(frame.rename(index=written).to_string(float_format=written, na_rep="–", line_width=width))


def show_extrapolated(found: Iterable[str]) -> None:
    """Print one line per component and axis that left the calibrated range: an example, and how many there are."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for what in found:
        groups.setdefault(tuple(what.split()[:2]), []).append(what)
    for group in groups.values():
        more = f" (and {len(group) - 1} more like it)" if len(group) > 1 else ""
        print(f"extrapolated: {group[0]}{more}")


def notes(scenario: Scenario, means: Mapping[str, float]) -> Iterator[str]:
    """What a reader of the metrics should know."""
    from simulator.service.metrics import MANY_CENSORED, censored_share
    from simulator.service.workload import most_requests

    if (censored := censored_share(means)) > MANY_CENSORED:
        yield (
            f"{100 * censored:.3g} % of the requests had not finished at the end: latencies are those of the others, "
            "and too short"
        )
    window, requests = scenario.engine.window_size, most_requests(scenario.study)
    if window is not None and requests is not None and window > requests:
        yield f"engine.window_size {window} is more than the {requests} requests: it is never full"
    room = _room_bytes(scenario)
    if room is not None and scenario.engine.layout != "paged" and means["kv_allocated_bytes"] > room:
        yield (
            f"the engine would allocate {means['kv_allocated_bytes']:.3g} bytes of K/V, more than the {room:.3g} that "
            "there is room for, and refuse the run; simulated is a server with paged K/V"
        )
    of_trace = scenario.study.kind == "open" and scenario.study.arrivals.kind == "trace"
    if of_trace and scenario.engine.max_new_tokens is None and (scenario.engine.num_blocks or room):
        yield (
            "without engine.max_new_tokens the budget of a request is the output that the trace has: who gets room "
            "depends on what no server knows"
        )


def _room_bytes(scenario: Scenario) -> float | None:
    from simulator.service.admission import room_bytes
    from simulator.service.scenario_cost import make_cost
    from simulator.service.streams import Streams

    return room_bytes(scenario, make_cost(scenario, Streams(scenario.seed, 0)))
