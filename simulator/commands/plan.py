"""The command that finds how much one server can do, or the cheapest fleet for a service."""

import sys
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from refimpl.core.errors import InputError, require
from refimpl.core.files import check_writable, write_whole
from simulator.commands.options import FILE, Json, Replications, ScenarioPath, Sets, Workers, read_scenario
from simulator.commands.output import output, show, show_extrapolated
from simulator.settings.folders import or_example
from simulator.settings.scenario import Engine, Scenario

if TYPE_CHECKING:
    from simulator.studies.plan import Plan

app = typer.Typer()
TEMPLATE = Path(__file__).parents[1] / "plan.html"
WIDTH = 150  # of a table that goes into a file
HEADINGS = {"batch_size": "rows", "num_speculative_tokens": "drafts"}  # in place of a setting's name
FOUND = ("per hour", "per 10⁶ tokens", "tokens/J", "in time")
Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        help="Device to choose from, NAME=PRICE: name or YAML file, and what one costs for an hour, in any currency; "
        "may be repeated. Without any, the largest rate is sought that the scenario as it stands serves.",
    ),
]
Axes = Annotated[
    list[str] | None,
    typer.Option(
        "--axis",
        "-a",
        help="Other values to choose from, NAME=VALUE,VALUE: method, batch_size, num_speculative_tokens, or one more "
        "setting of the engine (with --device).",
    ),
]
Tries = Annotated[
    int,
    typer.Option(
        help="Choices to simulate, the most promising ones, unless more are the best with some value of a setting "
        "(with --device)."
    ),
]
Html = Annotated[Path | None, typer.Option(**FILE, help="Also write the plan to this page (with --device).")]
EXAMPLE = "raggedspec sim plan example --device h100=2.50 --device l40s=0.90 --attainment 0.95 -n 5"
RATES_LEGEND = (
    "means over replications; low … high: 95 % interval of slo_attainment; behind: share of the later half of the "
    "requests by which finishes fall behind"
)
PLAN_LEGEND = (
    "per hour: of all replicas, at the prices given; in brackets: 95 % interval; in time: share of the requests within "
    "the limits, of the class with least of them"
)


@app.command(epilog=f"Example: [bold]{EXAMPLE}[/bold]")
def plan(
    scenario: ScenarioPath = None,
    sets: Sets = None,
    devices: Devices = None,
    axes: Axes = None,
    attainment: Annotated[
        float, typer.Option(help="Share of the requests, of each class, that must finish within their limits.")
    ] = 0.99,
    tolerance: Annotated[
        float, typer.Option(help="Stop when the rate is known to this share of it (without --device).")
    ] = 0.02,
    tries: Tries = 8,
    replications: Replications = 10,
    workers: Workers = 1,
    html: Html = None,
    as_json: Json = False,
) -> None:
    """Find the cheapest fleet that serves the requests within their limits; or the largest rate that a scenario serves.

    With --device: which device, how many, and which method, rows and drafts on each, for the arrivals of the scenario.
    """
    given = read_scenario(scenario and or_example(scenario, "plan.yaml"), sets)
    if not devices:
        require(not axes and not html, "--axis and --html belong to fleets: give --device, too")
        _find_rate(given, attainment, tolerance, replications, workers, as_json=as_json)
        return
    from simulator.studies.plan import AXES, find_plan
    from simulator.studies.whatif_grid import read_axes

    if html:
        check_writable(html, scenario)
    found = find_plan(
        given,
        dict(map(_priced, devices)),
        attainment,
        axes=read_axes(axes or (), AXES, Engine),
        tries=tries,
        replications=replications,
        workers=workers,
        progress=True,
    )
    if html:
        _write_page(found, given, attainment, html)
    with output(as_json) as data:
        _show_plan(found)
        data |= {"fleets": [fleet.as_mapping() for fleet in found.fleets], "reasons": list(found.reasons())}
        data |= {"extrapolated": found.extrapolated}


def _priced(text: str) -> tuple[str, float | None]:
    """A device, and its price if one is given."""
    name, equals, price = text.rpartition("=")
    try:
        return (name, float(price)) if equals else (text, None)
    except ValueError:
        raise InputError(f"--device {text}: must be NAME=PRICE with a number for the price") from None


def _table(found: "Plan") -> tuple[list[str], list[list[str]]]:
    """Headings, and the cells of each fleet."""
    settings, lines = found.fleets[0].choice.settings, []
    for line in (fleet.as_mapping() for fleet in found.fleets):
        numbers = [f"{line['price_per_hour']:.2f}", _interval(line["cost_per_million_tokens"])]
        numbers += [f"{line['tokens_per_joule']:.3g}" if isfinite(line["tokens_per_joule"]) else "–"]
        numbers += [f"{100 * line['kept']:.1f} %"]
        lines.append([str(line[name]) for name in ("replicas", *settings)] + numbers)
    return ["replicas", *(HEADINGS.get(name, name) for name in settings), *FOUND], lines


def _write_page(found: "Plan", given: Scenario, attainment: float, path: Path) -> None:
    from jinja2 import Environment

    (headings, lines), first = _table(found), found.fleets[0]
    facts = {"headings": headings, "lines": lines, "legend": PLAN_LEGEND, "title": given.name or "a service"}
    facts |= {
        "verdict": f"{first.replicas} × {first.choice.settings['device']} for {first.price_per_hour:.2f} per hour"
    }
    facts |= {"rate": given.study.arrivals["rate_per_s"], "attainment": f"{100 * attainment:g} %"}
    facts |= {"reasons": list(found.reasons()), "scenario": given.to_yaml()}
    page = Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
    write_whole(path, [page.render(facts)])


def _show_plan(found: "Plan") -> None:
    headings, lines = _table(found)
    table = Table(*headings)
    for line in lines:
        table.add_row(*line)
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)
    print(PLAN_LEGEND)
    for reason in found.reasons():
        print(reason)
    show_extrapolated(found.extrapolated)


def _interval(cost: dict[str, Any]) -> str:
    ends = f" ({cost['low']:.3g} … {cost['high']:.3g})" if isfinite(cost["low"]) else ""
    return f"{cost['mean']:.3g}{ends}"


def _find_rate(
    given: Scenario, attainment: float, tolerance: float, replications: int, workers: int, *, as_json: bool
) -> None:
    """Print the largest rate that a scenario serves."""
    from simulator.studies.capacity import find_capacity

    limit = find_capacity(
        given, attainment, tolerance=tolerance, replications=replications, workers=workers, progress=True
    )
    with output(as_json) as found:
        show(limit.table.dropna(axis=1, how="all"))
        print(RATES_LEGEND)
        print(
            f"{given.name}: {100 * attainment:g} % of the requests{' of each class' * bool(given.workload.classes)} "
            f"finish within the limits at {limit.rate_per_s:.3g} "
            f"requests/s{' while on' * (given.study.arrivals.kind == 'on_off')}, fewer at {limit.broken_at_per_s:.3g}"
        )
        if limit.queue_grew:
            print(
                f"at {limit.rate_per_s:.3g} requests/s the queue was still growing when the last request came: the "
                "server does not keep up with that rate; ask for more requests (study.num_requests)"
            )
        show_extrapolated(limit.extrapolated)
        found |= {"rate_per_s": limit.rate_per_s, "broken_at_per_s": limit.broken_at_per_s}
        found |= {"queue_grew": limit.queue_grew, "extrapolated": limit.extrapolated}
        found["rates"] = limit.table.reset_index().to_dict(orient="records")
