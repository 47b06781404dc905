"""The command that writes the what-if panel as a page."""

from pathlib import Path
from typing import Annotated

import typer

from simulator.commands.options import Replications, ScenarioPath, Sets, Workers, read_scenario

app = typer.Typer()


@app.command(epilog="Example: [bold]raggedspec sim panel -s cost.kind=table -s cost.calibration=cpu/tiny[/bold]")
def panel(
    scenario: ScenarioPath = None,
    sets: Sets = None,
    out: Annotated[Path, typer.Option(help="The page.")] = Path("panel.html"),
    replications: Replications = 5,
    workers: Workers = 1,
) -> None:
    """Simulate a grid of settings and write a page with sliders over it, which needs no server and no Python.

    Method, window, batch size, drafts and acceptance of the scenario are replaced; its requests and costs are kept.
    """
    from refimpl.core.files import check_writable
    from refimpl.core.progress import progress_bars
    from simulator.page import write_page
    from simulator.studies.whatif_grid import answer_grid

    given = read_scenario(scenario, sets)
    check_writable(out, scenario)
    with progress_bars() as bars:
        grid = answer_grid(given, replications=replications, workers=workers, progress=bars)
    write_page(grid, out)
    print(f"{out}: {grid.num_answered} of {len(grid.answers)} questions answered; open it in a browser")
