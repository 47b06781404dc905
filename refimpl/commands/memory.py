"""`memory-plan`: settings that fit into a memory budget."""

from dataclasses import asdict
from typing import Annotated, Any

import typer
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


@command(app, "memory-plan --budget 0.06", "memory-plan --budget 0.05 --limit 8 --measure --json")
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
    from refimpl.planning import plan_memory

    require(not measure or models.device == "cpu", "--measure reads the CPU's allocator: leave it out, or use cpu")
    check_outputs([output.output], [prompts.prompts])
    texts, pair = prompts.read(), models.load()
    asked = decoding.settings() | method.settings() | parse_settings(set_ or [])
    asked |= {"num_speculative_tokens": num_speculative_tokens, "max_new_tokens": max_new_tokens}
    plan = plan_memory(pair, texts, budget_gib=budget, max_prompt_tokens=prompts.max_prompt_tokens, **asked)
    rows: dict[str, Any] = {"plan": asdict(plan) | {"total_bytes": plan.footprint.total_bytes}}
    if measure:
        rows["measured_bytes"] = plan.footprint.weights_bytes + _measured(pair, texts, plan.settings)
    report = write_report(output.output, rows, pair.device, {"pair": pair.name, "prompts": len(texts)})
    _print_table(report, output.json_)
    output.print(report)


def _measured(pair: Any, texts: list, settings: dict[str, Any]) -> int:
    """Peak of the run itself, weights not included."""
    from refimpl.bench.memory import peak_bytes
    from refimpl.generation import generate

    return peak_bytes(lambda: generate(pair, texts, **settings))


def _print_table(report: dict[str, Any], json_: bool) -> None:
    plan, console = report["plan"], console_for_tables(json_=json_)
    settings = plan["settings"]
    drafts = counted(settings["num_speculative_tokens"], "draft")
    chosen = f"{settings['method']}, batch size {settings['batch_size']}, {drafts}, drafter {settings['drafter']}"
    console.print(chosen, highlight=False)
    table = Table("", "MiB at the peak")
    lines = {name.removesuffix("_bytes"): size for name, size in plan["footprint"].items()}
    lines |= {"total": plan["total_bytes"], "budget": plan["budget_bytes"]}
    lines |= {"measured": report["measured_bytes"]} if "measured_bytes" in report else {}
    for name, size in lines.items():
        table.add_row(name, f"{size / MIB:.2f}")
    console.print(table)
    for line in ["given up:"] * bool(plan["gave_up"]) + [f"  {line}" for line in plan["gave_up"]]:
        console.print(line, highlight=False)
