"""Commands that set the simulator beside published numbers, or explain them: reproduce, explain, and so on."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from refimpl.core.errors import require
from simulator.commands.options import FILE, Json, Replications, Workers
from simulator.commands.output import print_json, show, show_extrapolated, tables, write_runs
from simulator.settings.kinds import DEFAULT_PROBABILITY

app = typer.Typer()


@app.command(epilog="Example: [bold]raggedspec sim reproduce --replications 5[/bold]")
def reproduce(
    targets: Annotated[
        Path | None,
        typer.Option(**FILE, help="Published figures as JSON; those of the paper are shipped.", show_default=False),
    ] = None,
    replications: Replications = 40,
    spec_bench: Annotated[
        Path | None,
        typer.Option(**FILE, help="Spec-Bench's question.jsonl; without it a summary of its lengths is used."),
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Fit the constants anew, to the EQSPEC row of the targets, and print them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Simulate the paper's experiments with the behaviours of its code, and compare every published figure."""
    from simulator.intervals import share_held
    from simulator.studies.published import load_constants, read_lengths
    from simulator.studies.reproduction import (
        FITTED_WITH,
        HELD,
        WHOLE_FILE_REPLICATIONS,
        Reproduction,
        fit_constants,
        to_frame,
    )
    from simulator.studies.targets import TARGETS, read_targets

    published = read_targets(targets or TARGETS)
    lengths = read_lengths(spec_bench) if spec_bench else None
    constants = load_constants()
    if fit:
        constants = fit_constants(published.row("eqspec", FITTED_WITH), constants, replications, lengths)
    rows = list(Reproduction(published, replications, constants, lengths).rows())
    require(bool(rows), f"{targets}: holds no figure that is simulated")
    with tables(as_json):
        show(to_frame(rows))
        held, whole = (share_held(min(n, replications), HELD) for n in (replications, WHOLE_FILE_REPLICATIONS))
        print(f"low … high: holds {100 * held:.3g} % of single runs, of the headline {100 * whole:.3g} %")
        print("constants: " + ", ".join(f"{name} {value:.4g}" for name, value in asdict(constants).items()))
    if as_json:
        print_json({"constants": asdict(constants), "rows": [row.as_mapping() for row in rows]})


@app.command(epilog="Example: [bold]raggedspec sim explain --replications 5[/bold]")
def explain(replications: Replications = 20, as_json: Json = False) -> None:
    """Change the behaviours of the published code one after the other, and print what each of them costs."""
    import pandas as pd

    from simulator.studies.explanation import explain as run_explain

    steps = [asdict(step) for step in run_explain(replications)]
    with tables(as_json):
        show(pd.DataFrame(steps).set_index("name"))
    if as_json:
        print_json({"steps": steps})


@app.command(epilog="Example: [bold]raggedspec sim crossing --device h100 --device l40s[/bold]")
def crossing(
    devices: Annotated[
        list[str] | None,
        typer.Option("--device", help="Device or its YAML file; may be repeated.", show_default="seven GPUs"),
    ] = None,
    target: Annotated[str, typer.Option(help="Target, or its YAML file.")] = "qwen3-8b",
    draft: Annotated[str, typer.Option(help="Draft, or its YAML file.")] = "qwen3-0.6b",
    dtype: Annotated[Literal["float16", "bfloat16", "float8"], typer.Option(help="Type of the weights.")] = "bfloat16",
    acceptance: Annotated[
        float, typer.Option(min=0, max=1, help="Probability that a draft is right.")
    ] = DEFAULT_PROBABILITY,
    as_json: Json = False,
) -> None:
    """Print the largest batch at which drafts pay, by device and context: with 5 drafts, and with the best number."""
    import pandas as pd

    from simulator.studies.crossing import DEVICES, HEADINGS, LEGEND, find_crossings

    cost = {"target": target, "draft": draft, "dtype": dtype}
    found = [asdict(each) for each in find_crossings(cost, devices or DEVICES, acceptance)]
    with tables(as_json):
        show(pd.DataFrame(found).set_index(["device", "context_tokens"]).rename(columns=HEADINGS), 3)
        print(LEGEND)
    if as_json:
        print_json({"crossings": found})


@app.command(epilog="Example: [bold]raggedspec sim budgets --rate 5 --duration 5 --replications 2[/bold]")
def budgets(
    device: Annotated[str, typer.Option(help="Device, or its YAML file.")] = "h100",
    target: Annotated[str, typer.Option(help="Target, or its YAML file.")] = "qwen3-8b",
    draft: Annotated[str, typer.Option(help="Draft, or its YAML file.")] = "qwen3-0.6b",
    rates: Annotated[
        list[float] | None,
        typer.Option("--rate", help="Requests per second; may be repeated.", show_default="5, 20, 40, 60, 80, 110"),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, max=4096, help="Rows decoded together.")] = 256,
    duration: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds of each run.")] = 10.0,
    replications: Replications = 5,
    workers: Workers = 1,
    out: Annotated[Path | None, typer.Option(**FILE, help="Write every run to this JSON file.")] = None,
    as_json: Json = False,
) -> None:
    """Let requests arrive at several rates, and compare draft budgets that adapt with fixed numbers of drafts."""
    from refimpl.core.files import check_writable
    from simulator.settings.inputs import input_files
    from simulator.studies.adaptive import METRICS, base_scenario, find_budgets, judge_budgets, run_budgets

    base = base_scenario(device, target, draft, batch_size, duration)
    if out:
        check_writable(out, *input_files(base).values())
    runs = run_budgets(base, rates or (5, 20, 40, 60, 80, 110), replications, workers=workers, progress=True)
    judged = judge_budgets(runs)
    data = write_runs(out, judged, runs, budgets=find_budgets(base))
    with tables(as_json):
        show(runs.groupby(["rate_per_s", "budget"], sort=False)[list(METRICS)].mean())
        show(judged.set_index(["rate_per_s", "budget"]))
        show_extrapolated(data["extrapolated"])
    if as_json:
        print_json(data)


@app.command(epilog="Example: [bold]raggedspec sim overlap --replications 2[/bold]")
def overlap(
    replications: Replications = 10,
    workers: Workers = 1,
    out: Annotated[Path | None, typer.Option(**FILE, help="Write every run to this JSON file.")] = None,
    as_json: Json = False,
) -> None:
    """Simulate drafting for half of the rows while the other half is verified.

    Compare it with serial rounds of half as many rows, and of as many.
    """
    from refimpl.core.files import check_writable
    from simulator.studies.overlap import CASES, judge_overlap, run_overlap

    if out:
        check_writable(out)
    runs = run_overlap(list(CASES), replications, workers=workers, progress=True)
    judged = judge_overlap(runs)
    data = write_runs(out, judged, runs)
    with tables(as_json):
        show(judged.set_index("machine"))
        show_extrapolated(data["extrapolated"])
    if as_json:
        print_json(data)


@app.command(
    epilog="Example: [bold]raggedspec sim roofline --calibration nvidia-h200/vicuna --device h200 "
    "--target vicuna-7b --draft vicuna-68m[/bold]"
)
def roofline(
    out: Annotated[Path | None, typer.Option(**FILE, help="Write every row to this CSV file.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Show every row.")] = False,
    calibration: Annotated[
        str | None, typer.Option(help="Compare with the points of this calibration instead, DEVICE/PAIR.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="With --calibration: its device, or a YAML file.")] = None,
    target: Annotated[str | None, typer.Option(help="With --calibration: its target, or a YAML file.")] = None,
    draft: Annotated[str | None, typer.Option(help="With --calibration: its draft, or a YAML file.")] = None,
    as_json: Json = False,
) -> None:
    """Print how far costs of kind roofline are off: on points left out, and on numbers that nothing was fitted to.

    With --calibration: on each component of a machine that was measured here.
    """
    facts = {"calibration": calibration, "device": device, "target": target, "draft": draft}
    missing = [f"--{name}" for name, value in facts.items() if value is None]
    require(len(missing) in (0, len(facts)), f"a comparison with a calibration also needs {', '.join(missing)}")
    if not missing:
        _show_components([str(value) for value in facts.values()], out, every=every, as_json=as_json)
        return
    import pandas as pd

    from refimpl.core.files import check_writable
    from simulator.settings.curves import curve_errors
    from simulator.studies.roofline_checks import CHECKS, check_roofline, summarize_checks, write_checks

    if out:
        check_writable(out, CHECKS)
    curves, checks = pd.DataFrame(curve_errors()), check_roofline()
    summary = summarize_checks(checks)
    if out:
        write_checks(checks, out)
    with tables(as_json):
        print("relative errors of the operator tables, predicted from the rest")
        show(curves.set_index("table"), 2)
        print("\nrelative errors of published numbers that nothing was fitted to")
        show(summary, 2)
        if every:
            show(checks.drop(columns=["source", "note"]), 3)
    if as_json:
        print_json(
            {"curves": curves.to_dict(orient="records"), "groups": summary.reset_index().to_dict(orient="records")}
            | {"rows": checks.to_dict(orient="records")}
        )


def _show_components(facts: list[str], out: Path | None, *, every: bool, as_json: bool) -> None:
    from refimpl.core.files import check_writable
    from simulator.studies.roofline_calibration import (
        compare_calibration,
        files_of,
        summarize_components,
        write_points,
    )

    if out:
        check_writable(out, *files_of(*facts))
    points = compare_calibration(*facts)
    summary = summarize_components(points)
    if out:
        write_points(points, out)
    with tables(as_json):
        print(f"relative errors of the roofline of {facts[1]} on the points of {facts[0]}")
        show(summary, 3)
        if every:
            show(points, 3)
    if as_json:
        rows = {"components": summary.reset_index().to_dict(orient="records"), "rows": points.to_dict(orient="records")}
        print_json(rows)
