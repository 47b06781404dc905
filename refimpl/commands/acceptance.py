"""`acceptance`: how many drafts do the rules accept that keep the distribution?"""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from refimpl.commands.options import PairOptions, PromptOptions, SeedOption
from refimpl.commands.parsing import parse_sizes
from refimpl.commands.reports import ReportOptions, check_outputs, console_for_tables, write_report
from refimpl.core.errors import InputError
from refimpl.core.option_groups import ENGINE, PROMPTS, SAMPLING, command, option
from refimpl.core.progress import progress_bars

app = typer.Typer()


@command(app, "acceptance --temperatures 0.6,1 --drafts 3,5,8")
def acceptance(
    *,
    models: PairOptions,
    limit: Annotated[int, option(PROMPTS, "Prompts, evenly spaced over the bundled ones.", min=2)] = 24,
    temperatures: Annotated[str, option(SAMPLING, "Above 0, separated by commas.")] = "0.6,1",
    seed: SeedOption = 0,
    drafts: Annotated[str, option(ENGINE, "Drafts a round, separated by commas.")] = "3,5,8",
    contexts: Annotated[int, option(ENGINE, "Rounds looked at for each prompt.", min=1)] = 8,
    output: ReportOptions,
) -> None:
    """Compare rejection and block verification on the same drafts, by sums of probabilities."""
    from refimpl.bench.acceptance import AcceptanceSettings, measure_acceptance
    from refimpl.bench.settings import prompt_ids

    settings = AcceptanceSettings(
        parse_temperatures(temperatures), tuple(parse_sizes(drafts, "--drafts")), contexts, seed=seed
    )
    check_outputs([output.output], [])
    pair = models.load()
    prompts = prompt_ids(pair, PromptOptions().read(), limit, 64, seed)
    with progress_bars() as bars:
        rows = [asdict(row) for row in measure_acceptance(pair, prompts, settings, bars)]
    meta = {"pair": pair.name, "prompts": len(prompts), "settings": asdict(settings)}
    report = write_report(output.output, {"rows": rows}, pair.device, meta)
    _print_table(rows, output.json_)
    output.print(report)


def parse_temperatures(text: str) -> tuple[float, ...]:
    """Read comma-separated numbers above 0.

    Raises:
        InputError: the text is something else.
    """
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--temperatures must be comma-separated numbers, not {text!r}") from error
    if not all(0 < value < float("inf") for value in found):
        raise InputError(f"--temperatures must be above 0, not {text!r}")
    return found


HEADINGS = ("temperature", "k", "accepted by rejection", "accepted by block", "gain", "95 % interval", "gain in tokens")


def cells(row: dict[str, Any]) -> list[str]:
    """A line of the table."""
    return [
        f"{row['temperature']:g}",
        str(row["num_speculative_tokens"]),
        f"{row['rejection']:.3f}",
        f"{row['block']:.3f}",
        f"{100 * row['gain']:+.1f} %",
        f"{100 * row['low']:+.1f} … {100 * row['high']:+.1f} %",
        f"{100 * row['token_gain']:+.1f} %",
    ]


def _print_table(rows: list[dict[str, Any]], json_: bool) -> None:
    table = Table(*HEADINGS, title="Drafts accepted a round, expected")
    for row in rows:
        table.add_row(*cells(row))
    console_for_tables(json_=json_).print(table)
