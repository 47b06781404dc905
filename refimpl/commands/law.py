"""`law`: which drafters, draft budgets and rules keep the target's distribution, and what the rules accept."""

from dataclasses import asdict
from itertools import starmap
from typing import Annotated, Any

import typer
from rich.table import Table

from refimpl.commands.options import PairOptions, PromptOptions
from refimpl.commands.reports import ReportOptions, check_outputs, console_for_tables, write_report
from refimpl.core.errors import require
from refimpl.core.option_groups import ENGINE, PROMPTS, changed, command, option
from refimpl.core.progress import progress_bars

app = typer.Typer()


@command(app, "law --json", "law --rules --limit 16")
def law(
    *,
    rules: Annotated[bool, option(ENGINE, "Compare rejection and block verification instead.", "--rules")] = False,
    models: PairOptions,
    limit: Annotated[int, option(PROMPTS, "Prompts of --rules, evenly spaced over the bundled ones.", min=2)] = 16,
    output: ReportOptions,
) -> None:
    """Compare the exact distribution of the engine's outputs with the target's, on pairs with a two-token vocabulary.

    It takes some minutes. Exit code 1 if a combination that the engine runs has another distribution.
    With --rules: how many drafts of a pair the two rules that keep the distribution accept, by sums of probabilities.
    """
    check_outputs([output.output], [])
    if rules:
        _compare_rules(models, limit, output)
        return
    idle = changed(models, PairOptions())
    require(not idle, f"without --rules law has pairs of its own: no effect of {', '.join(idle)}, leave it out")
    if not _keeps_the_law(output):
        raise typer.Exit(1)


def _keeps_the_law(output: ReportOptions) -> bool:
    import torch

    from refimpl.selfcheck.law import law_row, law_settings

    rows, settings = [], law_settings()
    with progress_bars() as bars:
        for row in starmap(law_row, settings):
            rows.append(asdict(row))
            bars("combinations", len(rows), len(settings))
    report = write_report(output.output, {"rows": rows}, torch.device("cpu"))
    table = Table("drafter", "draft budget", "acceptance", "allowed", "total variation")
    for line in rows:
        allowed, distance = "yes" if line["allowed"] else "refused", f"{line['total_variation']:.4f}"
        table.add_row(line["drafter"], line["draft_budget"], line["acceptance"], allowed, distance)
    _show(table, report, output)
    return not any(line["allowed"] and line["total_variation"] for line in rows)


def _compare_rules(models: PairOptions, limit: int, output: ReportOptions) -> None:
    from refimpl.bench.acceptance import AcceptanceSettings, measure_acceptance
    from refimpl.bench.settings import prompt_ids

    settings, pair = AcceptanceSettings(), models.load()
    prompts = prompt_ids(pair, PromptOptions().read(), limit, 64, settings.seed)
    with progress_bars() as bars:
        rows = [asdict(row) for row in measure_acceptance(pair, prompts, settings, bars)]
    meta = {"pair": pair.name, "prompts": len(prompts), "settings": asdict(settings)}
    report = write_report(output.output, {"rows": rows}, pair.device, meta)
    table = Table(*RULE_HEADINGS, title="Drafts accepted a round, expected")
    for row in rows:
        table.add_row(*rule_cells(row))
    _show(table, report, output)


def _show(table: Table, report: dict[str, Any], output: ReportOptions) -> None:
    console_for_tables(json_=output.json_).print(table)
    output.print(report)


RULE_HEADINGS = (
    "temperature", "k", "accepted by rejection", "accepted by block", "gain", "95 % interval", "gain in tokens",
)  # fmt: skip


def rule_cells(row: dict[str, Any]) -> list[str]:
    """A line of the table of rules."""
    return [
        f"{row['temperature']:g}",
        str(row["num_speculative_tokens"]),
        f"{row['rejection']:.3f}",
        f"{row['block']:.3f}",
        f"{100 * row['gain']:+.1f} %",
        f"{100 * row['low']:+.1f} … {100 * row['high']:+.1f} %",
        f"{100 * row['token_gain']:+.1f} %",
    ]
