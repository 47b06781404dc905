"""The commands about runs of the engine and how far the simulator is off: validate, fit, trace."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refimpl.core.errors import require
from refimpl.core.files import check_writable
from refimpl.core.option_groups import as_file
from simulator.commands.options import FILE, Json, Replications, ScenarioPath, Sets, Workers, read_scenario
from simulator.commands.output import output, show, show_extrapolated

if TYPE_CHECKING:
    from simulator.engine_runs.validation import Validation

app = typer.Typer()


@app.command(
    epilog="Examples: [bold]raggedspec sim validate --workers 2[/bold]\n\n"
    "[bold]raggedspec sim validate run.ndjson[/bold]\n\n"
    "[bold]raggedspec sim validate served.ndjson --calibration cpu/tiny[/bold]\n\n"
    "[bold]raggedspec sim validate --roofline --calibration nvidia-h200/vicuna --device h200 --target vicuna-7b "
    "--draft vicuna-68m[/bold]"
)
def validate(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(parser=as_file, help="Traces that the engine wrote, or the folder of a calibration's runs."),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(help="Costs: DEVICE/PAIR.", show_default="cpu/tiny for held-out runs"),
    ] = None,
    roofline: Annotated[
        bool, typer.Option("--roofline", help="Judge costs of kind roofline, by published numbers or a calibration.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="With --roofline and --calibration: device, or YAML file.")] = None,
    target: Annotated[str | None, typer.Option(help="With --roofline and --calibration: target, or YAML file.")] = None,
    draft: Annotated[str | None, typer.Option(help="With --roofline and --calibration: draft, or YAML file.")] = None,
    replications: Annotated[
        int | None,
        typer.Option("--replications", "-n", help="Runs with different random numbers.", show_default="200, served 40"),
    ] = None,
    workers: Workers = 1,
    out: Annotated[
        Path | None, typer.Option(**FILE, help="Write every row: CSV, of served runs JSON with what made it.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show every row of a roofline.")] = False,
    as_json: Json = False,
) -> None:
    """Compare the simulator with what was measured.

    Without traces: with runs of the engine that were held out from a calibration, signed errors per metric. With
    traces: replay them and compare every decision; exit code 1 when one differs. With traces of bench-serving and
    --calibration: waits and speed beside the prediction. With --roofline: costs computed from data sheets.
    """
    given, files = calibration or "cpu/tiny", list(traces or ())
    facts = {"calibration": calibration, "device": device, "target": target, "draft": draft}
    if out:
        check_writable(out, *files)
    if roofline:
        _roofline({name: value for name, value in facts.items() if value}, out, every=every, as_json=as_json)
    elif not files or files[0].is_dir():
        require(len(files) < 2, "give one folder of held-out runs, or traces")
        _held_out(
            given, next(iter(files), None), 200 if replications is None else replications, workers, out, as_json=as_json
        )
    elif calibration is None:
        _decisions(files, as_json=as_json)
    else:
        _served(files, given, 40 if replications is None else replications, out, as_json=as_json)


def _decisions(traces: list[Path], *, as_json: bool) -> None:
    import pandas as pd

    from simulator.engine_runs.parity import check_parity

    each = [check_parity(path) for path in traces]
    rounds, rows = (sum(getattr(item, name) for item in each) for name in ("rounds", "rows"))
    exact = all(item.exact for item in each)
    with output(as_json) as found:
        found |= {"exact": exact, "parity": sum(item.same_rows for item in each) / max(rows, 1)}
        found |= {"moves": sum(item.same_moves for item in each) / max(rounds, 1)}
        found["traces"] = [asdict(item) for item in each]
        show(pd.DataFrame(found["traces"]).assign(trace=[p.name for p in traces]).drop(columns="first_difference"))
        print(*(f"{item.trace}: {item.first_difference}\n" for item in each if not item.exact), sep="", end="")
        print(f"decision parity: {100 * found['parity']:.4g} % of {rows} row-rounds")
        print(f"K/V moved, or not, as the engine did: {100 * found['moves']:.4g} % of {rounds} rounds")
    if not exact:
        raise typer.Exit(1)


def _held_out(
    calibration: str, folder: Path | None, replications: int, workers: int, out: Path | None, *, as_json: bool
) -> None:
    from simulator.engine_runs.validation import validate, write_table

    judged = validate(calibration, folder, replications=replications, workers=workers, progress=True)
    if out:
        write_table(judged, out)
    with output(as_json) as found:
        _show_validation(judged)
        found |= {"parity": judged.parity, "coverage": judged.coverage, "coverage_interval": judged.interval()}
        found |= {"planner_coverage": judged.planner_coverage, "cost_coverage": judged.cost_coverage}
        found |= {name: judged.meta[name] for name in ("reference_cv", "speed_cv", "drift_cv", "run_cv", "round_cv")}
        found |= {"bands_hold": judged.share_held, "missed_studies": judged.missed_studies, "outside": judged.outside}
        frames = {"summary": judged.summary, "studies": judged.studies, "runs": judged.table}
        found |= {name: frame.to_dict(orient="index") for name, frame in frames.items()}


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


def _served(traces: list[Path], calibration: str, replications: int, out: Path | None, *, as_json: bool) -> None:
    from simulator.engine_runs.latency import predict, write_latency
    from simulator.intervals import MIDDLE, share_held
    from simulator.settings.traces import read_engine_trace

    runs = {str(path): predict(read_engine_trace(path), calibration, replications) for path in traces}
    if out:
        write_latency(out, runs, calibration)
    with output(as_json) as found:
        for name, run in runs.items():
            print(f"{Path(name).name}: measured, and simulated with costs of {calibration}")
            show(run.table, 3)
            print(_speed_note(run.speed, calibration))
            show_extrapolated(run.extrapolated)
            found[name] = {"speed": run.speed, "extrapolated": run.extrapolated} | run.table.to_dict(orient="index")
        print(f"low … high: holds {100 * share_held(replications, MIDDLE):.3g} % of single runs")


def _speed_note(speed: float | None, calibration: str) -> str:
    if speed is None:
        return f"costs at the mean speed of {calibration}: the trace has no reference_s, so its drift is in the errors"
    return f"costs times {speed:.3f}: seconds of a reference pass around the run, over those of {calibration}"


def _roofline(facts: dict[str, str], out: Path | None, *, every: bool, as_json: bool) -> None:
    from simulator.studies.roofline_calibration import compare_calibration, files_of, summarize_components, write_points

    if not facts:
        _published(out, every=every, as_json=as_json)
        return
    missing = [f"--{name}" for name in ("calibration", "device", "target", "draft") if name not in facts]
    require(not missing, f"a comparison with a calibration also needs {', '.join(missing)}")
    if out:
        check_writable(out, *files_of(*facts.values()))
    points = compare_calibration(*facts.values())
    if out:
        write_points(points, out)
    with output(as_json) as found:
        print(f"relative errors of the roofline of {facts['device']} on the points of {facts['calibration']}")
        show(summarize_components(points), 3)
        if every:
            show(points, 3)
        found["components"] = summarize_components(points).reset_index().to_dict(orient="records")
        found["rows"] = points.to_dict(orient="records")


def _published(out: Path | None, *, every: bool, as_json: bool) -> None:
    import pandas as pd

    from simulator.settings.curves import curve_errors
    from simulator.studies.roofline_checks import CHECKS, check_roofline, summarize_checks, write_checks

    if out:
        check_writable(out, CHECKS)
    curves, checks = pd.DataFrame(curve_errors()), check_roofline()
    summary = summarize_checks(checks)
    if out:
        write_checks(checks, out)
    with output(as_json) as found:
        print("relative errors of the operator tables, predicted from the rest")
        show(curves.set_index("table"), 2)
        print("\nrelative errors of published numbers that nothing was fitted to")
        show(summary, 2)
        if every:
            show(checks.drop(columns=["source", "note"]), 3)
        frames = {"curves": curves, "groups": summary.reset_index(), "rows": checks}
        found |= {name: frame.to_dict(orient="records") for name, frame in frames.items()}


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
    with output(as_json) as found:
        for name, each in fits.items():
            values = {key: value for key, value in each.spec.values if key != "path"}
            print(f"{name} {values}, log-likelihood {each.log_likelihood:.1f}")
            show(each.table)
            found[name] = {"spec": each.spec.as_mapping(), "log_likelihood": each.log_likelihood}
            found[name]["statistics"] = each.table.to_dict(orient="index")
        print(f"low … high: holds {100 * share_held(replications, HELD):.3g} % of single replications")


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
    with output(as_json) as found:
        print(f"{count} events in {out}")
        show_extrapolated(extrapolated)
        found |= {"events": count, "path": str(out), "extrapolated": extrapolated}
