"""Commands that set the simulator beside published numbers: roofline."""

from pathlib import Path
from typing import Annotated

import typer

from simulator.commands.options import Json
from simulator.commands.output import print_json, show, tables

app = typer.Typer()


@app.command(epilog="Example: [bold]raggedspec sim roofline --json[/bold]")
def roofline(
    out: Annotated[Path | None, typer.Option(help="Write every row to this CSV file.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Show every row.")] = False,
    as_json: Json = False,
) -> None:
    """Print how far costs of kind roofline are off: on points left out, and on numbers that nothing was fitted to."""
    import pandas as pd

    from simulator.settings.curves import curve_errors
    from simulator.studies.roofline_checks import check_roofline, summarize_checks, write_checks

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
