"""The commands that simulate scenarios: run, compare, sweep, attribute, capacity, bench."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from refimpl.core.errors import require
from refimpl.core.shown import counted
from simulator.commands.options import (
    FILE,
    FOLDER,
    FirstPath,
    Json,
    Replications,
    ScenarioPath,
    SecondPath,
    Sets,
    SweepPath,
    Workers,
    read_scenario,
)
from simulator.commands.output import notes, notes_on_settings, print_json, show, show_extrapolated, tables
from simulator.settings.folders import EXAMPLES
from simulator.settings.json_files import write_json
from simulator.settings.scenario import Scenario, load_scenario

if TYPE_CHECKING:
    from simulator.runner import Results
    from simulator.studies.designs import SweepSpec

app = typer.Typer()
SHOWN = (
    "tokens_per_s", "requests_per_s", "makespan_s", "completed", "censored", "cut_outputs", "latency_mean_s",
    "latency_p99_s", "queueing_mean_s", "first_token_p50_s", "first_token_p99_s", "per_token_mean_s",
    "inter_token_p99_s", "slo_attainment", "goodput_per_s", "busy_share", "rounds", "tokens_per_round", "occupancy",
    "grouping_rate", "draft_share", "verify_share", "realign_share", "draft_acceptance_rate",
    "mean_acceptance_length", "kv_peak_bytes", "kv_allocated_bytes", "longest_wait_rounds", "preemptions",
    "cache_hit_rate", "drawn_tokens_per_round", "verified_tokens_per_round", "verified_rectangle_per_round",
)  # fmt: skip
MOST_PRINTED = 40  # scenarios of a sweep
WITH_LIMITS = ("slo_attainment", "goodput_per_s")  # shown where the scenario has limits
WITH_GROUPS = ("grouping_rate",)  # shown where the scheduler groups rows
WITH_DRAFTS = ("draft_acceptance_rate", "mean_acceptance_length")  # shown where there are drafts
WITH_PROPOSALS = SHOWN[-3:]  # shown where a draft budget or a lookup decides what is drafted
IF_ANY = (  # shown where they are not 0
    "censored", "cut_outputs", "draft_share", "realign_share", "longest_wait_rounds", "preemptions", "cache_hit_rate",
)  # fmt: skip
PRECISION_HELP = (
    "Begin with -n replications, at least 10, and add more, up to 1000, until half of the 95 % interval is at most "
    "this share of --metric."
)
SUMMARY_LEGEND = (
    "mean: over replications; low … high: its 95 % interval; p05 … p95: holds 90 % of single replications, known "
    "from 19 of them on"
)
POINTS_LEGEND = "means over replications; low … high: their 95 % intervals; other metrics: --metric"
COMPARISON_LEGEND = (
    "means over replications; low … high: 95 % interval of the paired differences b - a; ratio: b / a; verdict: of the "
    "model, whose costs may be off"
)
ATTRIBUTION_LEGEND = (
    "contribution: what taking the factor from b adds to {}, a mean over all orders; low … high: its 95 % interval; "
    "verdict: of the model, whose costs may be off"
)
CAPACITY_LEGEND = (
    "means over replications; low … high: 95 % interval of slo_attainment; behind: share of the later half of the "
    "requests by which finishes fall behind"
)


@app.command(epilog="Example: [bold]raggedspec sim init[/bold]")
def init(
    kind: Annotated[Literal["scenario", "sweep"], typer.Argument(help="What to print.")] = "scenario",
) -> None:
    """Print a commented YAML file to start from: raggedspec sim init > scenario.yaml."""
    print((EXAMPLES / f"{kind}.yaml").read_text(encoding="utf-8"), end="")


@app.command(
    epilog="Examples: [bold]raggedspec sim run example -s method=exspec --json[/bold]\n\n"
    "[bold]raggedspec sim run -s cost.kind=table -s cost.calibration=cpu/tiny[/bold]"
)
def run(
    scenario: ScenarioPath = None,
    sets: Sets = None,
    replications: Replications = 20,
    workers: Workers = 1,
    precision: Annotated[float | None, typer.Option(help=PRECISION_HELP)] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric that --precision refers to.", show_default="tokens_per_s")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(**FOLDER, help="Write metrics, requests and rounds as CSV files to this folder.")
    ] = None,
    metrics: Annotated[bool, typer.Option("--all", help="Show every metric.")] = False,
    as_json: Json = False,
) -> None:
    """Simulate one scenario and print each metric with its 95 % interval, and the range of single replications."""
    from simulator.runner import check_tables, simulate

    require(metric is None or precision is not None, f"--metric {metric} is what --precision refers to: give one, too")
    given, judged = read_scenario(scenario, sets), metric or "tokens_per_s"
    if out:
        check_tables(out, given, scenario)
    results = simulate(
        given, replications, precision=precision, metric=judged, workers=workers, keep_frames=out is not None,
        progress=True,
    )  # fmt: skip
    if out:
        results.write(out)
    summary, count = results.summary(), len(results.replications)
    reached = results.relative_error(judged)
    with tables(as_json):
        print(f"{given.name}: {counted(count, 'replication')}, costs: {_origin(results)}")
        show(summary if metrics else summary.loc[_shown([given], summary["mean"])])
        print(SUMMARY_LEGEND)
        show_extrapolated(results.extrapolated)
        for note in notes(given, summary["mean"]):
            print(note)
        if precision is not None and not reached <= precision:
            found = f"is known to {reached:.2g}" if reached == reached else "is known in fewer than two"  # NaN
            print(f"precision {precision:g} is not reached: after {count} replications {judged} {found}")
    if as_json:
        head = {"scenario": given.name, "content_hash": given.content_hash, "origin": results.origin}
        known = {} if precision is None else {"precision_reached": reached <= precision}
        rest = {"extrapolated": results.extrapolated, "metrics": summary.to_dict(orient="index")}
        print_json(head | known | rest)


def _origin(results: "Results") -> str:
    """Where costs came from; of a linear law, whether it was given."""
    if results.scenario.cost.kind != "linear":
        return results.origin
    given = results.scenario.cost != Scenario().cost
    return results.origin + (" (as given)" if given else " (illustrative defaults, not measured)")


def _shown(scenarios: Sequence[Scenario], *means: Mapping[str, float]) -> list[str]:
    """Metrics that may differ from 0 or 1 in scenarios like these; `means` are their metrics."""
    limits = any(s.service.slo_first_token_s or s.service.slo_per_token_s for s in scenarios)
    groups = any(s.engine.scheduler == "grouped" for s in scenarios)
    drafts = any(s.engine.num_speculative_tokens for s in scenarios)
    proposals = any(s.engine.varies_drafts for s in scenarios)
    parts = (WITH_LIMITS, limits), (WITH_GROUPS, groups), (WITH_DRAFTS, drafts), (WITH_PROPOSALS, proposals)
    left_out = {name for names, wanted in parts if not wanted for name in names}
    left_out |= {name for name in IF_ANY if not any(each[name] > 0 for each in means)}
    return [name for name in SHOWN if name not in left_out]


@app.command(epilog="Example: [bold]raggedspec sim compare example -s method=exspec[/bold]")
def compare(
    first: FirstPath,
    second: SecondPath = None,
    sets: Sets = None,
    replications: Replications = 10,
    workers: Workers = 1,
    metrics: Annotated[bool, typer.Option("--all", help="Show every metric.")] = False,
    as_json: Json = False,
) -> None:
    """Compare two scenarios on the same random numbers: paired differences b - a and a verdict."""
    from simulator.studies.comparison import compare as run_compare

    require(second is not None or bool(sets), "compare: give a second scenario, or changes with --set")
    found = run_compare(
        load_scenario(first), read_scenario(second or first, sets), replications, workers=workers, progress=True
    )
    with tables(as_json):
        scenarios, means = (found.a.scenario, found.b.scenario), (found.table["a"], found.table["b"])
        show(found.table if metrics else found.table.loc[_shown(scenarios, *means)])
        print(COMPARISON_LEGEND)
        show_extrapolated(found.extrapolated)
        for name, each, known in zip("ab", scenarios, means, strict=True):
            for note in notes(each, known):
                print(f"{name}: {note}")
    if as_json:
        print_json({"extrapolated": found.extrapolated, "metrics": found.table.to_dict(orient="index")})


@app.command(epilog="Example: [bold]raggedspec sim sweep example --out results/sweep[/bold]")
def sweep(
    spec: SweepPath,
    out: Annotated[
        Path, typer.Option(**FOLDER, help="Folder of the results; scenarios that are there are not run again.")
    ],
    workers: Workers = 1,
    dask: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, or local.")] = None,
    metric: Annotated[
        str, typer.Option(help="Metric of the table that is printed, and of the Sobol indices.")
    ] = "tokens_per_s",
    as_json: Json = False,
) -> None:
    """Run many scenarios; results as Parquet, with settings, seed, inputs and commit. A stopped sweep can be resumed.

    OUT/scenarios keeps the finished scenarios of all sweeps. OUT/results.parquet joins those of the last one.
    """
    from simulator.runner import extrapolated_of
    from simulator.service.metrics import check_metric
    from simulator.studies import sweeps
    from simulator.studies.designs import load_sweep, sobol_indices

    loaded = load_sweep(spec)
    check_metric(metric)
    skipped = list(loaded.skipped)
    frame = sweeps.sweep(loaded, out, workers=workers, dask=dask, progress=True, skip=skipped.append)
    counts = {"points": len(loaded.tasks) + len(loaded.skipped), "scenarios": int(frame["key"].nunique())}
    counts["replications"] = len(frame)
    indices = sobol_indices(loaded, frame, metric) if loaded.sobol else None
    means = None if loaded.sobol or counts["scenarios"] > MOST_PRINTED else sweeps.table_of_points(frame, metric)
    with tables(as_json):
        for reason in skipped:
            print(f"left out {reason}")
        told = ", ".join(counted(number, noun.removesuffix("s")) for noun, number in counts.items())
        print(f"{told} in {out / 'results.parquet'}")
        if indices is not None:
            show(indices)
        if means is not None:
            show(means)
            print(POINTS_LEGEND)
        show_extrapolated(extrapolated_of(frame))
        for note in notes_on_settings(*_that_ran(loaded, frame)):
            print(note)
    if as_json:
        print_json(
            {**counts, "skipped": skipped, "extrapolated": extrapolated_of(frame)}
            | ({} if indices is None else {"sobol": indices.to_dict(orient="index")})
            | ({} if means is None else {"means": means.reset_index().to_dict(orient="records")})
        )


def _that_ran(loaded: "SweepSpec", frame: Any) -> list[Scenario]:
    ran = set(frame["key"])
    return [task.scenario for task in loaded.tasks if task.key in ran]


@app.command(
    epilog="Example: [bold]raggedspec sim attribute example -s method=exspec --metric latency_mean_s "
    "--plot gain.png[/bold]"
)
def attribute(
    first: FirstPath,
    second: SecondPath = None,
    sets: Sets = None,
    replications: Replications = 10,
    metric: Annotated[str, typer.Option(help="Metric to explain.")] = "tokens_per_s",
    workers: Workers = 1,
    plot: Annotated[Path | None, typer.Option(**FILE, help="Draw a waterfall chart: PNG, SVG or PDF.")] = None,
    as_json: Json = False,
) -> None:
    """Explain the difference b - a: how much each setting that differs contributes (Shapley values)."""
    from simulator.studies.attribution import HEADINGS
    from simulator.studies.attribution import attribute as run_attribute

    require(second is not None or bool(sets), "attribute: give a second scenario, or changes with --set")
    a, b = load_scenario(first), read_scenario(second or first, sets)
    if plot:
        from refimpl.core.files import check_writable
        from simulator.plots import check_figure, save, waterfall
        from simulator.settings.inputs import input_files

        check_figure(plot)
        check_writable(plot, first, second, *input_files(a).values(), *input_files(b).values())
    found = run_attribute(a, b, replications, metric=metric, workers=workers, progress=True)
    with tables(as_json):
        print(f"{metric}: a {found.a:.4g}, b {found.b:.4g}")
        show(found.table.rename(columns=HEADINGS))
        print(ATTRIBUTION_LEGEND.format(metric))
        show_extrapolated(found.extrapolated)
        for note in notes_on_settings(a, b):
            print(note)
    if plot:
        save(waterfall(found), str(plot))
    if as_json:
        head = {"metric": metric, "a": found.a, "b": found.b, "extrapolated": found.extrapolated}
        print_json(head | {"factors": found.table.to_dict(orient="index")})


@app.command(epilog="Example: [bold]raggedspec sim capacity example -s study.num_requests=300 --attainment 0.95[/bold]")
def capacity(
    scenario: ScenarioPath = None,
    sets: Sets = None,
    attainment: Annotated[
        float, typer.Option(help="Share of the requests that must finish within their limits.")
    ] = 0.99,
    tolerance: Annotated[float, typer.Option(help="Stop when the rate is known to this share of it.")] = 0.02,
    replications: Replications = 10,
    workers: Workers = 1,
    as_json: Json = False,
) -> None:
    """Find the largest rate of arrivals at which enough requests finish within the limits of `service`."""
    from simulator.studies.capacity import find_capacity

    given = read_scenario(scenario, sets)
    found = find_capacity(
        given, attainment, tolerance=tolerance, replications=replications, workers=workers, progress=True
    )
    with tables(as_json):
        show(found.table)
        print(CAPACITY_LEGEND)
        print(
            f"{given.name}: {100 * attainment:g} % of the requests finish within the limits at {found.rate_per_s:.3g} "
            f"requests/s{' while on' * (given.study.arrivals.kind == 'on_off')}, fewer at {found.broken_at_per_s:.3g}"
        )
        if found.queue_grew:
            print(
                f"at {found.rate_per_s:.3g} requests/s the queue was still growing when the last request came: the "
                "server does not keep up with that rate; ask for more requests (study.num_requests)"
            )
        show_extrapolated(found.extrapolated)
        for note in notes_on_settings(given):
            print(note)
    if as_json:
        print_json(
            {"rate_per_s": found.rate_per_s, "broken_at_per_s": found.broken_at_per_s, "queue_grew": found.queue_grew}
            | {"extrapolated": found.extrapolated, "rates": found.table.reset_index().to_dict(orient="records")}
        )


@app.command(epilog="Example: [bold]raggedspec sim bench --repeats 3[/bold]")
def bench(
    batch_size: Annotated[int, typer.Option(min=1, max=4096, help="Rows decoded together.")] = 4,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Runs for each window size; medians are printed.")] = 5,
    out: Annotated[Path | None, typer.Option(**FILE, help="Write what was measured to this JSON file.")] = None,
    as_json: Json = False,
) -> None:
    """Measure rounds per second of the simulator itself, on one core, beside what SimPy alone takes."""
    from refimpl.core.files import check_writable
    from simulator.bench import WINDOWS, measure_speed, measure_timeouts, speed_report

    if out:
        check_writable(out)
    windows = [window for window in WINDOWS if window >= batch_size]
    speeds = [measure_speed(window, batch_size, repeats) for window in windows]
    timeouts = measure_timeouts(repeats)
    data = speed_report(speeds, timeouts)
    with tables(as_json):
        for speed in speeds:
            print(
                f"window {speed.window_size}, batch {batch_size}: {speed.rounds_per_cpu_s:,.0f} rounds per CPU second, "
                f"{speed.rounds_per_wall_s:,.0f} per wall-clock second; a round takes as long as "
                f"{timeouts / speed.rounds_per_cpu_s:.0f} bare timeouts"
            )
        print(f"a bare SimPy process: {timeouts:,.0f} timeouts per CPU second")
    if out:
        write_json(data, out)
    if as_json:
        print_json(data)
