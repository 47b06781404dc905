"""`law`: which drafters and draft budgets keep the target's distribution."""

from dataclasses import asdict
from itertools import starmap
from typing import Any

import typer
from rich.table import Table

from refimpl.commands.reports import ReportOptions, check_outputs, console_for_tables, write_report
from refimpl.core.option_groups import command
from refimpl.core.progress import progress_bars

app = typer.Typer()


@command(app, "law --json")
def law(*, output: ReportOptions) -> None:
    """Compare the exact distribution of the engine's outputs with the target's, on pairs with a two-token vocabulary.

    It takes some minutes.
    Exit code 1 if a combination that the engine runs has another distribution.
    """
    import torch

    from refimpl.selfcheck.law import law_row, law_settings

    check_outputs([output.output], [])
    rows, settings = [], law_settings()
    with progress_bars() as bars:
        for row in starmap(law_row, settings):
            rows.append(asdict(row))
            bars("combinations", len(rows), len(settings))
    report = write_report(output.output, {"rows": rows}, torch.device("cpu"))
    _print_table(rows, output.json_)
    output.print(report)
    if any(row["allowed"] and row["total_variation"] for row in rows):
        raise typer.Exit(1)


def _print_table(rows: list[dict[str, Any]], json_: bool) -> None:
    table = Table("drafter", "draft budget", "acceptance", "allowed", "total variation")
    for row in rows:
        allowed, distance = "yes" if row["allowed"] else "refused", f"{row['total_variation']:.4f}"
        table.add_row(row["drafter"], row["draft_budget"], row["acceptance"], allowed, distance)
    console_for_tables(json_=json_).print(table)
