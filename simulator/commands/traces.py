"""The commands that read the engine's traces: trace, parity, validate, fit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refimpl.core.errors import require
from refimpl.core.files import check_writable
from refimpl.core.option_groups import as_file
from simulator.commands.options import FILE, FOLDER, Json, Replications, ScenarioPath, Sets, Workers, read_scenario
from simulator.commands.output import print_json, show, show_extrapolated, tables

if TYPE_CHECKING:
    from simulator.engine_runs.validation import Validation

app = typer.Typer()


@app.command(
    epilog="Examples: [bold]raggedspec sim trace example --out trace.json[/bold], "
    "[bold]raggedspec sim trace --engine run.ndjson[/bold]"
)
def trace(
    scenario: ScenarioPath = None,
    out: Annotated[Path, typer.Option(**FILE, help="File to write, in Chrome's trace format.")] = Path("trace.json"),
    engine: Annotated[
        Path | None, typer.Option(**FILE, help="Convert this engine trace instead of simulating.")
    ] = None,
    replication: Annotated[int, typer.Option(min=0, max=10**6, help="Number of the replication.")] = 0,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Write one replication, or an engine trace, for chrome://tracing or ui.perfetto.dev."""
    from simulator.engine_runs.trace_export import export_trace
    from simulator.service.simulation import Simulation, simulate_once
    from simulator.settings.inputs import input_files
    from simulator.settings.traces import read_engine_trace

    given_trace = scenario is not None and ".ndjson" in scenario.suffixes
    require(not given_trace, f"{scenario} is a trace, no scenario: --engine {scenario} converts it")
    simulated = scenario is not None or bool(sets) or replication > 0
    require(not (engine and simulated), "--engine converts a trace: leave out scenario, --set and --replication")
    given = read_scenario(scenario, sets)
    check_writable(out, scenario, engine, *input_files(given).values())
    source = read_engine_trace(engine) if engine else simulate_once(given, replication, keep_rows=True)
    count = export_trace(source, out)
    extrapolated = sorted(source.cost.extrapolated) if isinstance(source, Simulation) else []
    with tables(as_json):
        print(f"{count} events in {out}")
        show_extrapolated(extrapolated)
    if as_json:
        print_json({"events": count, "path": str(out), "extrapolated": extrapolated})


@app.command(epilog="Example: [bold]raggedspec sim parity validation/cpu/tiny/eqspec-b3-k4-0.ndjson.gz[/bold]")
def parity(
    traces: Annotated[list[Path], typer.Argument(parser=as_file, help="Traces that the engine wrote (--trace).")],
    as_json: Json = False,
) -> None:
    """Replay engine traces and compare every decision; exit code 1 when one differs."""
    from dataclasses import asdict

    import pandas as pd

    from simulator.engine_runs.parity import check_parity

    found = [check_parity(path) for path in traces]
    table = pd.DataFrame([asdict(item) for item in found])
    table["trace"] = [Path(item.trace).name for item in found]
    share = sum(item.same_rows for item in found) / max(sum(item.rows for item in found), 1)
    moves = sum(item.same_moves for item in found) / max(sum(item.rounds for item in found), 1)
    with tables(as_json):
        show(table.drop(columns="first_difference"))
        for item in found:
            if not item.exact:
                print(f"{item.trace}: {item.first_difference}")
        print(f"decision parity: {100 * share:.4g} % of {sum(item.rows for item in found)} row-rounds")
        print(f"K/V moved, or not, as the engine did: {100 * moves:.4g} % of {sum(i.rounds for i in found)} rounds")
    if as_json:
        print_json(
            {
                "exact": all(item.exact for item in found),
                "parity": share,
                "moves": moves,
                "traces": [asdict(i) for i in found],
            }
        )
    if not all(item.exact for item in found):
        raise typer.Exit(1)


@app.command(epilog="Example: [bold]raggedspec sim validate --calibration cpu/tiny --workers 2[/bold]")
def validate(
    calibration: Annotated[str, typer.Option(help="Calibration: DEVICE/PAIR.")] = "cpu/tiny",
    runs: Annotated[
        Path | None, typer.Option(**FOLDER, help="Folder of held-out traces.", show_default="the shipped ones")
    ] = None,
    replications: Replications = 200,
    workers: Workers = 1,
    write: Annotated[bool, typer.Option("--write", help="Write validation.csv beside the traces.")] = False,
    as_json: Json = False,
) -> None:
    """Compare the simulator with engine runs that were held out from the calibration: signed errors per metric."""
    from simulator.engine_runs.validation import validate as run_validate
    from simulator.engine_runs.validation import write_table
    from simulator.settings.folders import VALIDATION

    table = (runs or VALIDATION / calibration) / "validation.csv"
    if write:
        check_writable(table)
    found = run_validate(calibration, runs, replications=replications, workers=workers, progress=True)
    with tables(as_json):
        _show_validation(found)
    if write:
        write_table(found, table)
        with tables(as_json):
            print(f"written: {table.name}")
    if as_json:
        noise = {name: found.meta[name] for name in ("reference_cv", "speed_cv", "drift_cv", "run_cv", "round_cv")}
        print_json(
            {"parity": found.parity, "coverage": found.coverage, "coverage_interval": found.interval()}
            | {"planner_coverage": found.planner_coverage, "cost_coverage": found.cost_coverage, **noise}
            | {"bands_hold": found.share_held, "missed_studies": found.missed_studies, "outside": found.outside}
            | {"summary": found.summary.to_dict(orient="index"), "studies": found.studies.to_dict(orient="index")}
            | {"runs": found.table.to_dict(orient="index")}
        )


def _show_validation(found: "Validation") -> None:
    columns = ["speed", "measured_s", "scheduler_error", "cost_error", "acceptance_error", "makespan_error"]
    show(found.table[[*columns, "in_cost_band", "in_band"]], 3)
    print("\nsigned error of each stage's seconds, with replayed acceptance (– where a stage is below 2 % of the run)")
    show(found.stages, 3)
    print("\nmeans over the runs of each study")
    show(found.studies, 3)
    print("\nerrors of runs, then of studies")
    show(found.summary, 3)
    if found.outside:
        print("\noutside the calibrated range, and extrapolated")
        print("\n".join(f"{run}: {what}" for run, what in found.outside.items()))
    speed, meta, (low, high) = found.table["speed"], found.meta, found.interval()
    print(
        f"\ndecision parity {100 * found.parity:.4g} % of row-rounds; of {len(speed)} runs, bands that hold "
        f"{100 * found.share_held:.3g} % of single replications cover "
        f"{100 * found.coverage:.3g} % (95 % interval {100 * low:.0f} … {100 * high:.0f} %); "
        f"{100 * found.planner_coverage:.3g} % where the machine's speed is drawn instead of known; "
        f"{100 * found.cost_coverage:.3g} % where it is known and the run's own acceptance is replayed\n"
        f"drift: machine speed {speed.min():.3f} … {speed.max():.3f} of the calibration's mean, reference pass "
        f"±{100 * meta['reference_cv']:.2g} %, speed of a run ±{100 * meta['speed_cv']:.2g} %, passes at reference "
        f"speed ±{100 * meta['drift_cv']:.2g} %, one and the same run ±{100 * meta['run_cv']:.2g} %, "
        f"round ±{100 * meta['round_cv']:.2g} %"
    )


@app.command(epilog="Example: [bold]raggedspec sim latency run.ndjson --calibration cpu/tiny[/bold]")
def latency(
    traces: Annotated[
        list[Path], typer.Argument(parser=as_file, help="Traces of runs with arrivals (bench-serving --traces).")
    ],
    calibration: Annotated[str, typer.Option(help="Calibration: DEVICE/PAIR.")] = "cpu/tiny",
    replications: Replications = 40,
    out: Annotated[
        Path | None, typer.Option(**FILE, help="Write the tables, and what they come from, as JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare a served run with the simulator's prediction for the same requests, priced by a calibration."""
    from simulator.engine_runs.latency import predict, write_latency
    from simulator.intervals import MIDDLE, share_held
    from simulator.settings.traces import read_engine_trace

    if out:
        check_writable(out, *traces)
    found = {str(path): predict(read_engine_trace(path), calibration, replications) for path in traces}
    if out:
        write_latency(out, found, calibration)
    with tables(as_json):
        for name, prediction in found.items():
            print(f"{Path(name).name}: measured, and simulated with costs of {calibration}")
            show(prediction.table, 3)
            print(_speed_note(prediction.speed, calibration))
            show_extrapolated(prediction.extrapolated)
        print(f"low … high: holds {100 * share_held(replications, MIDDLE):.3g} % of single runs")
    if as_json:
        metrics = {name: prediction.table.to_dict(orient="index") for name, prediction in found.items()}
        about = {name: {"speed": each.speed, "extrapolated": each.extrapolated} for name, each in found.items()}
        print_json({name: about[name] | each for name, each in metrics.items()})


def _speed_note(speed: float | None, calibration: str) -> str:
    if speed is None:
        return f"costs at the mean speed of {calibration}: the trace has no reference_s, so its drift is in the errors"
    return f"costs times {speed:.3f}: seconds of a reference pass around the run, over those of {calibration}"


@app.command(epilog="Example: [bold]raggedspec sim fit validation/cpu/tiny/fit/acceptance.ndjson.gz -n 20[/bold]")
def fit(
    engine_trace: Annotated[Path, typer.Argument(parser=as_file, help="Trace that the engine wrote (--trace).")],
    replications: Replications = 40,
    as_json: Json = False,
) -> None:
    """Fit iid, profile, beta, markov and bootstrap to an engine trace; check the mean and the raggedness of each."""
    from simulator.engine_runs.acceptance_fit import HELD, fit_all
    from simulator.intervals import share_held
    from simulator.settings.traces import read_engine_trace

    fits = fit_all(read_engine_trace(engine_trace), replications)
    with tables(as_json):
        for name, found in fits.items():
            values = {key: value for key, value in found.spec.values if key != "path"}
            print(f"{name} {values}, log-likelihood {found.log_likelihood:.1f}")
            show(found.table)
        print(f"low … high: holds {100 * share_held(replications, HELD):.3g} % of single replications")
    if as_json:
        print_json(
            {
                name: {"spec": found.spec.as_mapping(), "log_likelihood": found.log_likelihood}
                | {"statistics": found.table.to_dict(orient="index")}
                for name, found in fits.items()
            }
        )
