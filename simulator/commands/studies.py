"""The commands that simulate scenarios: run, compare, sweep."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
from simulator.commands.output import notes, output, show, show_extrapolated
from simulator.settings.folders import EXAMPLES
from simulator.settings.scenario import Scenario, load_scenario

if TYPE_CHECKING:
    from simulator.runner import Results

app = typer.Typer()
SHOWN = (
    "tokens_per_s", "requests_per_s", "makespan_s", "completed", "censored", "cut_outputs", "latency_mean_s",
    "latency_p99_s", "queueing_mean_s", "first_token_p50_s", "first_token_p99_s", "per_token_mean_s",
    "inter_token_p99_s", "slo_attainment", "goodput_per_s", "cost_per_million_tokens", "tokens_per_joule", "busy_share",
    "rounds", "tokens_per_round", "occupancy", "grouping_rate",
    "draft_share", "verify_share", "realign_share", "draft_acceptance_rate",
    "mean_acceptance_length", "kv_peak_bytes", "kv_allocated_bytes", "longest_wait_rounds", "preemptions",
    "cache_hit_rate", "drawn_tokens_per_round", "verified_tokens_per_round", "verified_rectangle_per_round",
)  # fmt: skip
MOST_PRINTED = 40  # scenarios of a sweep
WITH_LIMITS = ("slo_attainment", "goodput_per_s")  # shown where the scenario has limits
WITH_GROUPS = ("grouping_rate",)  # shown where the scheduler groups rows
WITH_DRAFTS = ("draft_acceptance_rate", "mean_acceptance_length")  # shown where there are drafts
WITH_PROPOSALS = SHOWN[-3:]  # shown where a draft budget or a lookup decides what is drafted
IF_ANY = (  # shown where they are known and not 0
    "censored", "cut_outputs", "draft_share", "realign_share", "longest_wait_rounds", "preemptions", "cache_hit_rate",
    "cost_per_million_tokens", "tokens_per_joule",
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


@app.command(epilog="Example: [bold]raggedspec sim init[/bold]")
def init(
    kind: Annotated[
        Literal["scenario", "sweep", "plan", "fleet", "priorities"], typer.Argument(help="What to print.")
    ] = "scenario",
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
    with output(as_json) as found:
        print(f"{given.name}: {counted(count, 'replication')}, costs: {_origin(results)}")
        show(summary if metrics else summary.loc[_shown([given], summary["mean"])])
        print(SUMMARY_LEGEND)
        show_extrapolated(results.extrapolated)
        for note in notes(given, summary["mean"]):
            print(note)
        if precision is not None and not reached <= precision:
            known = f"is known to {reached:.2g}" if reached == reached else "is known in fewer than two"  # NaN
            print(f"precision {precision:g} is not reached: after {count} replications {judged} {known}")
        found |= {"scenario": given.name, "content_hash": given.content_hash, "origin": results.origin}
        found |= {} if precision is None else {"precision_reached": reached <= precision}
        found |= {"extrapolated": results.extrapolated, "metrics": summary.to_dict(orient="index")}


def _origin(results: "Results") -> str:
    """Where costs came from; of a linear law, whether it was given."""
    if results.scenario.cost.kind != "linear":
        return results.origin
    given = results.scenario.cost != Scenario().cost
    return results.origin + (" (as given)" if given else " (illustrative defaults, not measured)")


def _shown(scenarios: Sequence[Scenario], *means: Mapping[str, float]) -> list[str]:
    """Metrics that may differ from 0 or 1 in scenarios like these; `means` are their metrics."""
    from simulator.service.metrics import own_metrics

    limits = any(s.has_limits for s in scenarios)
    groups = any(s.engine.scheduler == "grouped" for s in scenarios)
    drafts = any(s.engine.num_speculative_tokens for s in scenarios)
    proposals = any(s.engine.varies_drafts for s in scenarios)
    parts = (WITH_LIMITS, limits), (WITH_GROUPS, groups), (WITH_DRAFTS, drafts), (WITH_PROPOSALS, proposals)
    left_out = {name for names, wanted in parts if not wanted for name in names}
    left_out |= {name for name in IF_ANY if not any(each[name] > 0 for each in means)}
    own = [name for s in scenarios for name in own_metrics(s) if all(name in each for each in means)]
    return [name for name in dict.fromkeys([*SHOWN, *own]) if name.partition(".")[0] not in left_out]


@app.command(
    epilog="Examples: [bold]raggedspec sim compare example -s method=exspec[/bold]\n\n"
    "[bold]raggedspec sim compare example -s method=exspec --attribute latency_mean_s --plot gain.png[/bold]"
)
def compare(
    first: FirstPath,
    second: SecondPath = None,
    sets: Sets = None,
    replications: Replications = 10,
    workers: Workers = 1,
    metrics: Annotated[bool, typer.Option("--all", help="Show every metric.")] = False,
    attribute: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC", help="Explain its difference instead: what each setting contributes (Shapley values)."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(**FILE, help="Draw the contributions as a waterfall chart: PNG, SVG or PDF.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare two scenarios on the same random numbers: paired differences b - a and a verdict."""
    from simulator.studies.comparison import compare as run_compare

    require(second is not None or bool(sets), "compare: give a second scenario, or changes with --set")
    require(attribute is not None or plot is None, "--plot draws what --attribute METRIC finds: give one, too")
    a, b = load_scenario(first), read_scenario(second or first, sets)
    if attribute is not None:
        if plot:
            _check_plot(plot, a, b, first, second)
        _attribute(a, b, replications, workers, attribute, plot, as_json=as_json)
        return
    pair = run_compare(a, b, replications, workers=workers, progress=True)
    with output(as_json) as found:
        means = pair.table["a"], pair.table["b"]
        show(pair.table if metrics else pair.table.loc[_shown((a, b), *means)])
        print(COMPARISON_LEGEND)
        show_extrapolated(pair.extrapolated)
        for name, each, known in zip("ab", (a, b), means, strict=True):
            for note in notes(each, known):
                print(f"{name}: {note}")
        found |= {"extrapolated": pair.extrapolated, "metrics": pair.table.to_dict(orient="index")}


def _check_plot(plot: Path, a: Scenario, b: Scenario, *files: Path | None) -> None:
    from refimpl.core.files import check_writable
    from simulator.plots import check_figure
    from simulator.settings.inputs import input_files

    check_figure(plot)
    check_writable(plot, *files, *input_files(a).values(), *input_files(b).values())


def _attribute(
    a: Scenario, b: Scenario, replications: int, workers: int, metric: str, plot: Path | None, *, as_json: bool
) -> None:
    from simulator.studies.attribution import HEADINGS, attribute

    shares = attribute(a, b, replications, metric=metric, workers=workers, progress=True)
    if plot:
        from simulator.plots import save, waterfall

        save(waterfall(shares), str(plot))
    with output(as_json) as found:
        print(f"{metric}: a {shares.a:.4g}, b {shares.b:.4g}")
        show(shares.table.rename(columns=HEADINGS))
        print(ATTRIBUTION_LEGEND.format(metric))
        show_extrapolated(shares.extrapolated)
        found |= {"metric": metric, "a": shares.a, "b": shares.b, "extrapolated": shares.extrapolated}
        found |= {"factors": shares.table.to_dict(orient="index")}


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
    check_metric(metric, loaded.tasks[0].scenario if loaded.tasks else None)
    skipped = list(loaded.skipped)
    frame = sweeps.sweep(loaded, out, workers=workers, dask=dask, progress=True, skip=skipped.append)
    counts = {"points": len(loaded.tasks) + len(loaded.skipped), "scenarios": int(frame["key"].nunique())}
    counts["replications"] = len(frame)
    with output(as_json) as found:
        for reason in skipped:
            print(f"left out {reason}")
        told = ", ".join(counted(number, noun.removesuffix("s")) for noun, number in counts.items())
        print(f"{told} in {out / 'results.parquet'}")
        found |= {**counts, "skipped": skipped, "extrapolated": extrapolated_of(frame)}
        if loaded.sobol:
            indices = sobol_indices(loaded, frame, metric)
            show(indices)
            found["sobol"] = indices.to_dict(orient="index")
        elif counts["scenarios"] <= MOST_PRINTED:
            means = sweeps.table_of_points(frame, metric)
            show(means)
            print(POINTS_LEGEND)
            found["means"] = means.reset_index().to_dict(orient="records")
        show_extrapolated(found["extrapolated"])
