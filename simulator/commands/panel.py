"""The command that writes the what-if panel as a page."""

from pathlib import Path
from typing import Annotated

import typer

from simulator.commands.options import FILE, Replications, ScenarioPath, Sets, Workers, read_scenario

app = typer.Typer()
EXAMPLE = (
    "raggedspec sim panel --axis device=h100,l40s --axis models=qwen3-8b+qwen3-0.6b --axis batch_size=1,16 "
    "--axis num_speculative_tokens=3 --axis acceptance=0.7 --axis deviation=0.15"
)


@app.command(epilog=f"Example: [bold]{EXAMPLE}[/bold]")
def panel(
    scenario: ScenarioPath = None,
    sets: Sets = None,
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            "-a",
            help="What can be moved, NAME=VALUE,VALUE: batch_size, num_speculative_tokens, acceptance and deviation "
            "have values without this; window_size, rate_per_s, device and models (TARGET+DRAFT) can be added.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(**FILE, help="The page.")] = Path("panel.html"),
    replications: Replications = 5,
    workers: Workers = 1,
) -> None:
    """Simulate a grid of settings and write a page to choose from it, which needs no server and no Python.

    Method, window, batch size, drafts and acceptance of the scenario are replaced; its requests and costs are kept
    unless they can be moved.
    """
    from refimpl.core.files import check_writable
    from simulator.page import Page
    from simulator.settings.inputs import input_files
    from simulator.studies.whatif_grid import answer_grid, files_of, read_axes

    given, moved = read_scenario(scenario, sets), read_axes(axes or ())
    check_writable(out, scenario, *input_files(given).values(), *files_of(moved))
    grid = answer_grid(given, replications=replications, axes=moved, workers=workers, progress=True)
    Page(grid).write(out)
    print(f"{out}: {grid.num_answered} of {len(grid.answers)} questions answered; open it in a browser")
