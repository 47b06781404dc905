"""`calibrate`: what the stages of a round cost on this device, for the simulator."""

from pathlib import Path
from typing import Annotated

import typer

from refimpl.commands.options import (
    DeviceOption,
    DraftOption,
    DtypeOption,
    PairOption,
    RandomOption,
    SeedOption,
    TargetOption,
    VocabOption,
    load,
    prompts_from,
)

app = typer.Typer()
SIMULATOR_DATA = Path("simulator/data")


@app.command(epilog="Example: [bold]python -m refimpl calibrate --pair tiny --device cpu --threads 1[/bold]")
def calibrate(
    pair: PairOption = "tiny",
    target: TargetOption = None,
    draft: DraftOption = None,
    vocab_size: VocabOption = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Prompt file. Default: pieces of the standard library; random ids for noise.")
    ] = None,
    passes: Annotated[int | None, typer.Option(min=2, help="Passes over the grid. Default: 5; 2 on a GPU.")] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Runs of each held-out study. Default: 6; 2 on a GPU.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Stop then, with what has been measured.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the tensor library.")] = None,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = None,
    random_weights: RandomOption = False,
    out: Annotated[Path, typer.Option(help="Data folder of the simulator.")] = SIMULATOR_DATA,
) -> None:
    """Measure what each stage of a round costs, with held-out runs in between, for the simulator."""
    from refimpl.calibrate import calibrate as run
    from refimpl.core.files import check_folder
    from refimpl.core.provenance import command_line

    check_folder(out)
    models = load(pair, target, draft, device, dtype, random_weights, vocab_size=vocab_size)
    run(
        models,
        prompts_from(prompts, "first", None) if prompts else None,
        out,
        pair_name=pair if target is None else Path(target).name,
        passes=passes,
        repeats=repeats,
        minutes=minutes,
        threads=threads,
        seed=seed,
        command=command_line(),
    )
