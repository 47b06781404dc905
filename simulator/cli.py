"""The command line: readable tables on stdout, ``--json`` puts everything on one last line; bad input exits with 2."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from simulator.errors import InputError, require
from simulator.scenario import Scenario, from_data, load_scenario, set_path, to_mapping

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

ScenarioPath = Annotated[Path | None, typer.Argument(help="scenario YAML; without it the defaults hold")]
Sets = Annotated[list[str] | None, typer.Option("--set", "-s", help="PATH=VALUE, for example engine.batch_size=4")]
Replications = Annotated[int, typer.Option("--replications", "-n", help="replications")]
Workers = Annotated[int, typer.Option(help="worker processes; the results do not depend on it")]
Json = Annotated[bool, typer.Option("--json", help="print a JSON object as the last line")]
SHOWN = (
    "tokens_per_s", "makespan_s", "completed", "censored", "latency_mean_s", "latency_p99_s", "first_token_p50_s",
    "per_token_mean_s", "rounds", "tokens_per_round", "occupancy", "grouping_rate", "draft_share", "verify_share",
    "realign_share", "draft_acceptance_rate", "mean_acceptance_length", "kv_peak_bytes", "longest_wait_rounds",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        app(arguments, standalone_mode=False)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except typer.Exit as error:
        return error.exit_code
    except Exception as error:
        return _usage_error(error)
    return 0


def _usage_error(error: Exception) -> int:
    """Errors of the option parser become one line; anything else is a bug and keeps its traceback."""
    from click.exceptions import Abort, ClickException, NoArgsIsHelpError

    if isinstance(error, NoArgsIsHelpError):
        print(error.format_message())
        return 2
    if isinstance(error, ClickException):
        print(f"error: {error.format_message()}", file=sys.stderr)
        return 2
    if isinstance(error, Abort):
        return 130
    raise error


def read_scenario(path: Path | None, sets: list[str] | None) -> Scenario:
    """Scenario from a file and ``PATH=VALUE`` changes."""
    data = to_mapping(load_scenario(path) if path else Scenario())
    for change in sets or []:
        name, equals, value = change.partition("=")
        require(bool(equals), f"--set {change}: must be PATH=VALUE")
        set_path(data, name.strip(), yaml.safe_load(value))
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
    from simulator.runner import simulate

    given = read_scenario(scenario, sets)
    results = simulate(given, replications, precision=precision, workers=workers, keep_frames=False)
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
