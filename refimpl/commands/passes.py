"""`bench-passes`: what packed and mixed passes cost, beside what they replace."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from refimpl.commands.options import DraftTokensOption, PairOptions, PromptOptions, SeedOption
from refimpl.commands.parsing import parse_sizes
from refimpl.commands.reports import ReportOptions, check_outputs, console_for_tables, write_report
from refimpl.core.option_groups import ENGINE, PROMPTS, command, option
from refimpl.core.progress import progress_bars

app = typer.Typer()


@command(app, "bench-passes --batch-sizes 8", "bench-passes --batch-sizes 8,32 --chunk-tokens 64,256 --json")
def bench_passes(
    *,
    models: PairOptions,
    prompts: Annotated[
        Path | None, option(PROMPTS, "File with the prompts of the prefill.", none="the bundled prompts")
    ] = None,
    context_tokens: Annotated[int, option(PROMPTS, "Tokens of every row.", min=2)] = 100,
    seed: SeedOption = 0,
    batch_sizes: Annotated[str, option(ENGINE, "Rows that decode, separated by commas.")] = "8,32",
    num_speculative_tokens: DraftTokensOption = 8,
    chunk_tokens: Annotated[str, option(ENGINE, "Tokens of a prompt beside them, separated by commas.")] = "64,256",
    repeats: Annotated[int, option(ENGINE, "Of every pass, in turn, after a warm-up.", min=1)] = 20,
    output: ReportOptions,
) -> None:
    """Time packed and mixed passes, and in turn with them what they replace.

    A packed pass feeds rows with 1 to k drafts each without pads, instead of a rectangle. A mixed pass feeds a chunk of
    a prompt beside rows of k drafts, instead of a pass each. A prefill caches as many prompts as rows, in both models,
    without pads, instead of pads up to the longest.
    """
    from refimpl.bench.passes import PassSettings, measure_passes
    from refimpl.bench.settings import prompt_ids

    settings = PassSettings(
        batch_sizes=tuple(parse_sizes(batch_sizes)),
        chunk_tokens=tuple(parse_sizes(chunk_tokens, "--chunk-tokens")),
        num_speculative_tokens=num_speculative_tokens,
        context_tokens=context_tokens,
        repeats=repeats,
        seed=seed,
    )
    check_outputs([output.output], [prompts])
    texts = PromptOptions(prompts=prompts).read()
    pair = models.load()
    ids = prompt_ids(pair, texts, max(settings.batch_sizes), context_tokens, seed)
    with progress_bars() as bars:
        rows = [asdict(row) for row in measure_passes(pair, settings, bars, prompts=ids)]
    meta = {"pair": pair.name, "dtype": str(pair.dtype).removeprefix("torch."), "settings": asdict(settings)}
    report = write_report(output.output, {"rows": rows}, pair.device, meta)
    _print_table(rows, json_=output.json_)
    output.print(report)


HEADINGS = ("layout", "rows", "pass", "ms", "instead of", "ms", "gain", "least … most")


def cells(row: dict[str, Any]) -> list[str]:
    """A line of the table."""
    chunk = f"a chunk of {row['chunk_tokens']}"
    name, instead = {
        "packed": ("packed", "rectangle"),
        "mixed": (f"with {chunk}", f"{chunk} apart"),
        "prefill": ("prefill", "prefill with pads"),
    }[row["pass_name"]]
    gains = f"{row['gain_min']:.2f} … {row['gain_max']:.2f}"
    ms, instead_ms = (f"{row[key]:.1f}" for key in ("ms", "instead_ms"))
    return [row["layout"], str(row["batch_size"]), name, ms, instead, instead_ms, f"{row['gain']:.2f}×", gains]


def _print_table(rows: list[dict[str, Any]], *, json_: bool) -> None:
    table = Table(*HEADINGS, title="Passes, and what they replace: medians of interleaved runs")
    for row in rows:
        table.add_row(*cells(row))
    console_for_tables(json_=json_).print(table)
