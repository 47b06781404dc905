"""Commands that set the simulator beside published numbers: reproduce, and studies of one question each."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from refimpl.core.errors import require
from refimpl.core.files import check_writable
from simulator.commands.options import FILE, Json, Replications, Workers
from simulator.commands.output import output, show, show_extrapolated
from simulator.settings.json_files import with_environment, write_json

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer()
REPEATED = {"devices": "device", "rates": "rate"}  # options that may be
Tables = Callable[[], None]  # prints what a study has found


@app.command(
    epilog="Examples: [bold]raggedspec sim reproduce --replications 5[/bold]\n\n"
    "[bold]raggedspec sim reproduce --explain --replications 5[/bold]"
)
def reproduce(
    replications: Replications = 40,
    spec_bench: Annotated[
        Path | None,
        typer.Option(**FILE, help="Spec-Bench's question.jsonl; without it a summary of its lengths is used."),
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Fit the constants anew, to the published EQSPEC row, and print them.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Instead change the published code's behaviours one by one: what each costs."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Simulate the paper's experiments with the behaviours of its code, and compare every published figure."""
    if explain:
        require(not (spec_bench or fit), "--explain takes no --spec-bench or --fit")
        _explain(replications, as_json=as_json)
        return
    from simulator.intervals import share_held
    from simulator.studies.published import load_constants, read_lengths
    from simulator.studies.reproduction import (
        HELD,
        WHOLE_FILE_REPLICATIONS,
        Reproduction,
        fit_constants,
        to_frame,
    )
    from simulator.studies.targets import read_targets

    published = read_targets()
    lengths = read_lengths(spec_bench) if spec_bench else None
    constants = load_constants()
    if fit:
        constants = fit_constants(published.anatomy["eqspec"], constants, replications, lengths)
    rows = list(Reproduction(published, replications, constants, lengths).rows())
    with output(as_json) as found:
        show(to_frame(rows))
        held, whole = (share_held(min(n, replications), HELD) for n in (replications, WHOLE_FILE_REPLICATIONS))
        print(f"low … high: holds {100 * held:.3g} % of single runs, of the headline {100 * whole:.3g} %")
        print("constants: " + ", ".join(f"{name} {value:.4g}" for name, value in asdict(constants).items()))
        found |= {"constants": asdict(constants), "rows": [row.as_mapping() for row in rows]}


def _explain(replications: int, *, as_json: bool) -> None:
    import pandas as pd

    from simulator.studies.explanation import explain

    with output(as_json) as found:
        found["steps"] = [asdict(step) for step in explain(replications)]
        show(pd.DataFrame(found["steps"]).set_index("name"))


@app.command(
    epilog="Examples: [bold]raggedspec sim study crossing --device h100 --device l40s[/bold]\n\n"
    "[bold]raggedspec sim study budgets --rate 5 --duration 5 --replications 2[/bold]"
)
def study(
    name: Annotated[
        Literal["crossing", "budgets", "overlap"],
        typer.Argument(
            help="crossing: the largest batch at which drafts pay, by device and context. budgets: draft budgets that "
            "adapt beside fixed numbers of drafts, while requests arrive at several rates. overlap: drafting for half "
            "of the rows while the other half is verified, beside serial rounds."
        ),
    ],
    devices: Annotated[
        list[str] | None,
        typer.Option("--device", help="Device or its YAML file; may be repeated (crossing, budgets)."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Target, or its YAML file (crossing, budgets).")] = None,
    draft: Annotated[str | None, typer.Option(help="Draft, or its YAML file (crossing, budgets).")] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option("--layers", help="What runs the layers, as `layers` of costs; may be repeated (crossing)."),
    ] = None,
    rates: Annotated[
        list[float] | None, typer.Option("--rate", help="Requests per second; may be repeated (budgets).")
    ] = None,
    duration: Annotated[float | None, typer.Option(min=0.1, max=3600, help="Seconds of each run (budgets).")] = None,
    replications: Annotated[
        int | None, typer.Option("--replications", "-n", help="Runs with different random numbers (budgets, overlap).")
    ] = None,
    workers: Workers = 1,
    out: Annotated[Path | None, typer.Option(**FILE, help="Write what was found, run by run, as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Answer one question of the field with the simulator; defaults are those of the published tables."""
    given = {"devices": devices, "target": target, "draft": draft, "rates": rates, "duration": duration}
    given |= {"layers": layers, "replications": replications}
    given = {option: value for option, value in given.items() if value is not None and value != []}
    studies: dict[str, Callable[..., tuple[Tables, dict[str, Any]]]]
    studies = {"crossing": _crossing, "budgets": _budgets, "overlap": _overlap}
    run = studies[name]
    idle = [f"--{REPEATED.get(option, option)}" for option in given if option not in signature(run).parameters]
    require(not idle, f"{', '.join(idle)}: not of the study {name}")
    if out:
        check_writable(out, *(Path(file) for file in (*(devices or ()), target, draft) if file))
    tables, data = run(workers, **given)
    data = with_environment(data)
    if out:
        write_json(data, out)
    with output(as_json) as found:
        tables()
        found |= data


def _crossing(
    workers: int,
    devices: list[str] | None = None,
    target: str = "qwen3-8b",
    draft: str = "qwen3-0.6b",
    layers: list[str] | None = None,
) -> tuple[Tables, dict[str, Any]]:
    import pandas as pd

    from simulator.studies.crossing import DEVICES, HEADINGS, LAYERS, LEGEND, find_crossings

    crossings = find_crossings({"target": target, "draft": draft}, devices or DEVICES, layers=layers or LAYERS)
    found = [asdict(each) for each in crossings]

    def tables() -> None:
        show(pd.DataFrame(found).set_index(["device", "layers", "context_tokens"]).rename(columns=HEADINGS), 3)
        print(LEGEND)

    return tables, {"crossings": found}


def _budgets(
    workers: int,
    devices: list[str] | None = None,
    target: str = "qwen3-8b",
    draft: str = "qwen3-0.6b",
    rates: tuple[float, ...] = (5, 20, 40, 60, 80, 110),
    duration: float = 10.0,
    replications: int = 5,
) -> tuple[Tables, dict[str, Any]]:
    from simulator.studies.adaptive import METRICS, base_scenario, find_budgets, judge_budgets, run_budgets

    device, *others = devices or ["h100"]
    require(not others, "budgets are compared on one --device")
    base = base_scenario(device, target, draft, 256, duration)
    runs = run_budgets(base, rates, replications, workers=workers, progress=True)
    data = _judged(judge_budgets(runs), runs) | {"budgets": find_budgets(base)}

    def tables() -> None:
        show(runs.groupby(["rate_per_s", "budget"], sort=False)[list(METRICS)].mean())
        _show_judged(data, ["rate_per_s", "budget"])

    return tables, data


def _overlap(workers: int, replications: int = 10) -> tuple[Tables, dict[str, Any]]:
    from simulator.studies.overlap import CASES, judge_overlap, run_overlap

    runs = run_overlap(list(CASES), replications, workers=workers, progress=True)
    data = _judged(judge_overlap(runs), runs)
    return partial(_show_judged, data, ["machine"]), data


def _judged(judged: "pd.DataFrame", runs: "pd.DataFrame") -> dict[str, Any]:
    """What a comparison has found, the runs that it rests on, and what these had to extrapolate."""
    from simulator.runner import extrapolated_of

    found = {name: frame.to_dict(orient="records") for name, frame in (("judged", judged), ("runs", runs))}
    return {"extrapolated": extrapolated_of(runs)} | found


def _show_judged(data: dict[str, Any], index: list[str]) -> None:
    import pandas as pd

    show(pd.DataFrame(data["judged"]).set_index(index))
    show_extrapolated(data["extrapolated"])
