"""`calibrate`: what the stages of a round cost on this device, for the simulator."""

import os
from pathlib import Path
from typing import Annotated

import typer

from refimpl.commands.options import PairOptions, PromptOptions, SeedOption
from refimpl.core.option_groups import ENGINE, OUTPUT, PROMPTS, as_folder, command, option

app = typer.Typer()
SIMULATOR_DATA = Path("simulator/data")


def name_of(target: str) -> str:
    """The last part of a hub id or of a folder's path, also where that is written as a dot or two."""
    return Path(os.path.abspath(os.path.expanduser(target))).name


@command(app, "calibrate --pair tiny --device cpu --threads 1")
def calibrate(
    *,
    models: PairOptions,
    prompts: Annotated[
        Path | None,
        option(
            PROMPTS,
            "File with one prompt per line (.txt), or JSON lines with `prompt` or `turns`; - reads stdin.",
            none="pieces of the standard library, or random ids without a tokenizer",
        ),
    ] = None,
    seed: SeedOption = 0,
    passes: Annotated[int | None, option(ENGINE, "Passes over the grid.", min=2, none="5, or 2 on a GPU")] = None,
    repeats: Annotated[
        int | None, option(ENGINE, "Runs of each held-out study.", min=1, none="6, or 2 on a GPU")
    ] = None,
    minutes: Annotated[
        float | None, option(ENGINE, "Stop after this many minutes, with what has been measured.", min=0.1)
    ] = None,
    threads: Annotated[int | None, option(ENGINE, "Threads of the tensor library.", min=1)] = None,
    out: Annotated[
        Path, option(OUTPUT, "Data folder of the simulator.", parser=as_folder, metavar="PATH")
    ] = SIMULATOR_DATA,
) -> None:
    """Measure what each stage of a round costs, with held-out runs in between, for the simulator."""
    from refimpl.calibrate import calibrate as run
    from refimpl.core.files import check_folder
    from refimpl.core.progress import progress_bars
    from refimpl.core.provenance import command_line

    check_folder(out)
    with progress_bars() as bars:
        run(
            models.load(),
            PromptOptions(prompts=prompts).read() if prompts else None,
            out,
            pair_name=models.pair if models.target is None else name_of(models.target),
            passes=passes,
            repeats=repeats,
            minutes=minutes,
            threads=threads,
            seed=seed,
            command=command_line(),
            progress=bars,
        )
