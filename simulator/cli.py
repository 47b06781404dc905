"""The command line: readable tables on stdout, ``--json`` puts everything on one last line; bad input exits with 2."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from simulator.errors import InputError, require
from simulator.scenario import Scenario, from_data, load_scenario, parse_yaml, set_path, to_mapping

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

ScenarioPath = Annotated[Path | None, typer.Argument(help="scenario YAML; without it the defaults hold")]
Sets = Annotated[list[str] | None, typer.Option("--set", "-s", help="PATH=VALUE, for example engine.batch_size=4")]
Replications = Annotated[int, typer.Option("--replications", "-n", help="replications")]
Workers = Annotated[int, typer.Option(help="worker processes; the results do not depend on it")]
Json = Annotated[bool, typer.Option("--json", help="print a JSON object as the last line")]
SHOWN = (
    "tokens_per_s", "makespan_s", "completed", "censored", "cut_outputs", "latency_mean_s", "latency_p99_s",
    "first_token_p50_s", "per_token_mean_s", "rounds", "tokens_per_round", "occupancy", "grouping_rate", "draft_share",
    "verify_share", "realign_share", "draft_acceptance_rate", "mean_acceptance_length", "kv_peak_bytes",
    "kv_allocated_bytes", "longest_wait_rounds",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        code = app(arguments, standalone_mode=False)  # what `typer.Exit` says, or what the command returns
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename or 'input or output'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except Exception as error:
        return _usage_error(error)
    return code if isinstance(code, int) else 0


def _usage_error(error: Exception) -> int:
    """Errors of the option parser become one line; anything else is a bug and keeps its traceback."""
    kinds = {kind.__name__ for kind in type(error).__mro__}  # typer may carry its own copy of click
    if "NoArgsIsHelpError" in kinds:
        print(error.format_message())  # type: ignore[attr-defined]
        return 2
    if "ClickException" in kinds:
        print(f"error: {error.format_message()}", file=sys.stderr)  # type: ignore[attr-defined]
        return 2
    if "Abort" in kinds:
        return 130
    raise error


def read_scenario(path: Path | None, sets: list[str] | None) -> Scenario:
    """Scenario from a file and ``PATH=VALUE`` changes."""
    data = to_mapping(load_scenario(path) if path else Scenario())
    for change in sets or []:
        name, equals, value = change.partition("=")
        require(bool(equals), f"--set {change}: must be PATH=VALUE")
        set_path(data, name.strip(), parse_yaml(value, f"--set {change}"))
    return from_data(data)


def print_json(data: dict[str, Any]) -> None:
    """Print one line of JSON; numbers that are not finite become null."""
    print(json.dumps(_finite(data), ensure_ascii=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return value.item() if hasattr(value, "item") else value


def show(frame: Any, digits: int = 4) -> None:
    """Print a table with so many significant digits."""
    print(frame.to_string(float_format=lambda value: f"{value:.{digits}g}", na_rep="–"))


@app.command()
def run(
    scenario: ScenarioPath = None,
    sets: Sets = None,
    replications: Replications = 10,
    workers: Workers = 1,
    precision: Annotated[float | None, typer.Option(help="go on until tokens/s is known to this share")] = None,
    metrics: Annotated[bool, typer.Option("--all", help="show every metric")] = False,
    as_json: Json = False,
) -> None:
    """Simulate one scenario and print each metric with its 95 % interval."""
    from rich.progress import Progress

    from simulator.runner import simulate

    given = read_scenario(scenario, sets)
    with Progress(transient=True, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        shown = bar.add_task("replications", total=replications)
        results = simulate(
            given, replications, precision=precision, workers=workers, keep_frames=False,
            progress=lambda done, planned: bar.update(shown, completed=done, total=planned),
        )  # fmt: skip
    summary = results.summary()
    print(f"{given.name}: {len(results.replications)} replications, costs from {results.origin}")
    show(summary if metrics else summary.loc[list(SHOWN)])
    for what in results.extrapolated:
        print(f"extrapolated: {what}")
    if as_json:
        head = {"scenario": given.name, "content_hash": given.content_hash, "origin": results.origin}
        print_json(head | {"extrapolated": results.extrapolated, "metrics": summary.to_dict(orient="index")})


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="scenario YAML a")],
    second: Annotated[Path | None, typer.Argument(help="scenario YAML b; without it a with --set")] = None,
    sets: Sets = None,
    replications: Replications = 10,
    workers: Workers = 1,
    metrics: Annotated[bool, typer.Option("--all", help="show every metric")] = False,
    as_json: Json = False,
) -> None:
    """Compare two scenarios on common random numbers: paired differences b - a and a verdict."""
    from simulator.runner import compare as run_compare

    require(second is not None or bool(sets), "compare: give a second scenario, or changes with --set")
    table = run_compare(load_scenario(first), read_scenario(second or first, sets), replications, workers=workers).table
    show(table if metrics else table.loc[list(SHOWN)])
    if as_json:
        print_json({"metrics": table.to_dict(orient="index")})


@app.command()
def sweep(
    spec: Annotated[Path, typer.Argument(help="sweep YAML: base, replications, and grid, latin or sobol")],
    out: Annotated[Path, typer.Option(help="folder of the results; started again, it skips what is there")],
    workers: Workers = 1,
    dask: Annotated[str | None, typer.Option(help="address of a Dask scheduler, or `local`")] = None,
    metric: Annotated[str, typer.Option(help="metric of the Sobol indices")] = "tokens_per_s",
    as_json: Json = False,
) -> None:
    """Run many scenarios, resumably; results as Parquet with config, seed, inputs and commit inside."""
    from rich.progress import Progress

    from simulator.sweeps import load_sweep, sobol_indices
    from simulator.sweeps import sweep as run_sweep

    loaded = load_sweep(spec)
    with Progress(transient=True, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        shown = bar.add_task("scenarios", total=len(loaded.tasks))
        frame = run_sweep(
            loaded, out, workers=workers, dask=dask, progress=lambda done, all_: bar.update(shown, completed=done)
        )
    scenarios = int(frame["key"].nunique())
    print(f"{scenarios} scenarios, {len(frame)} replications in {out / 'results.parquet'}")
    indices = sobol_indices(loaded, frame, metric) if loaded.sobol else None
    if indices is not None:
        show(indices)
    if as_json:
        print_json(
            {"scenarios": scenarios, "replications": len(frame)}
            | ({} if indices is None else {"sobol": indices.to_dict(orient="index")})
        )


@app.command()
def attribute(
    first: Annotated[Path, typer.Argument(help="scenario YAML a")],
    second: Annotated[Path | None, typer.Argument(help="scenario YAML b; without it a with --set")] = None,
    sets: Sets = None,
    replications: Replications = 10,
    metric: Annotated[str, typer.Option(help="what to attribute")] = "tokens_per_s",
    workers: Workers = 1,
    plot: Annotated[Path | None, typer.Option(help="write the waterfall to this file (PNG, SVG, PDF)")] = None,
    as_json: Json = False,
) -> None:
    """Say where the difference b - a comes from: Shapley shares of the settings that differ."""
    from simulator.attribution import attribute as run_attribute

    require(second is not None or bool(sets), "attribute: give a second scenario, or changes with --set")
    a, b = load_scenario(first), read_scenario(second or first, sets)
    if plot:
        from simulator.plots import check_figure, save, waterfall

        check_figure(plot)
    found = run_attribute(a, b, replications, metric=metric, workers=workers)
    print(f"{metric}: a {found.a:.4g}, b {found.b:.4g}")
    show(found.table)
    if plot:
        save(waterfall(found), str(plot))
    if as_json:
        print_json({"metric": metric, "a": found.a, "b": found.b, "factors": found.table.to_dict(orient="index")})


@app.command()
def bench(
    batch_size: Annotated[int, typer.Option(min=1, help="rows of a round")] = 4,
    repeats: Annotated[int, typer.Option(min=1, help="runs per window size; medians are printed")] = 5,
    as_json: Json = False,
) -> None:
    """Measure rounds per second of the simulator itself, on one core."""
    from simulator.bench import WINDOWS, measure_speed

    speeds = [measure_speed(window, batch_size, repeats) for window in WINDOWS]
    for speed in speeds:
        print(
            f"window {speed.window_size}, batch {batch_size}: {speed.rounds_per_cpu_s:,.0f} rounds per CPU second, "
            f"{speed.rounds_per_wall_s:,.0f} per wall-clock second"
        )
    if as_json:
        print_json(
            {
                "rounds_per_s": {str(s.window_size): s.rounds_per_cpu_s for s in speeds},
                "rounds_per_wall_s": {str(s.window_size): s.rounds_per_wall_s for s in speeds},
                "batch_size": batch_size,
            }
        )


from simulator import cli_engine  # noqa: E402, F401 (its commands register themselves)
