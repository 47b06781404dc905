"""`memory-plan`: settings that fit into a memory budget."""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from refimpl.commands.options import (
    DecodingOptions,
    DraftTokensOption,
    MaxNewOption,
    MethodOptions,
    PairOptions,
    PromptOptions,
    SetOption,
)
from refimpl.commands.parsing import parse_settings
from refimpl.commands.reports import ReportOptions, check_outputs, console_for_tables, write_report
from refimpl.core.errors import require
from refimpl.core.option_groups import ENGINE, command, option
from refimpl.core.shown import counted

app = typer.Typer()
MIB = 1 << 20


@command(app, "memory-plan --budget 0.12", "memory-plan --budget 0.1 --limit 8 --measure --json")
def memory_plan(
    *,
    models: PairOptions,
    prompts: PromptOptions,
    decoding: DecodingOptions,
    method: MethodOptions,
    budget: Annotated[float, option(ENGINE, "GiB for weights, K/V and everything that passes need.")],
    num_speculative_tokens: DraftTokensOption = 5,
    max_new_tokens: MaxNewOption = 64,
    set_: SetOption = None,
    measure: Annotated[bool, option(ENGINE, "Run it, and lay the measured peak beside the plan.", "--measure")] = False,
    output: ReportOptions,
) -> None:
    """Choose layout, rows, drafts and drafter that fit into a memory budget, and say what was given up."""
    from refimpl.bench.memory import peak_bytes
    from refimpl.generation import generate
    from refimpl.planning import plan_memory

    require(not measure or models.device == "cpu", "--measure reads the CPU's allocator: leave it out, or use cpu")
    check_outputs([output.output], [prompts.prompts])
    texts, pair = prompts.read(), models.load()
    asked = decoding.settings() | method.settings() | parse_settings(set_ or [])
    asked |= {"num_speculative_tokens": num_speculative_tokens, "max_new_tokens": max_new_tokens}
    plan = plan_memory(pair, texts, budget_gib=budget, max_prompt_tokens=prompts.max_prompt_tokens, **asked)
    found: dict[str, Any] = {"plan": asdict(plan) | {"total_bytes": plan.footprint.total_bytes}}
    if measure:
        found["measured_bytes"] = plan.footprint.weights_bytes + peak_bytes(
            lambda: generate(pair, texts, **plan.settings)
        )
    report = write_report(output.output, found, pair.device, {"pair": pair.name, "prompts": len(texts)})
    _print_table(report, console_for_tables(json_=output.json_))
    output.print(report)


def _print_table(report: dict[str, Any], console: Console) -> None:
    plan, settings = report["plan"], report["plan"]["settings"]
    drafts = counted(settings["num_speculative_tokens"], "draft")
    chosen = f"{settings['method']}, batch size {settings['batch_size']}, {drafts}, drafter {settings['drafter']}"
    console.print(chosen, highlight=False)
    table = Table("", "MiB at the peak")
    sizes = plan["footprint"] | {name: plan[name] for name in ("total_bytes", "budget_bytes")}
    for name, size in (sizes | {"measured_bytes": report.get("measured_bytes")}).items():
        if size is not None:
            table.add_row(name.removesuffix("_bytes"), f"{size / MIB:.2f}")
    console.print(table)
    for line in ["given up:"] * bool(plan["gave_up"]) + [f"  {line}" for line in plan["gave_up"]]:
        console.print(line, highlight=False)
