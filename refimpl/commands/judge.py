"""`tie-or-bug`: is output that differs from the oracle's explained by rounding, or wrong?"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from refimpl.commands.options import EngineOptions, HeadOptions, PromptOptions, RunOptions
from refimpl.commands.reports import PageOptions, check_outputs, console_for_tables, write_report
from refimpl.core.config import make_config
from refimpl.core.errors import InputError, require, shown
from refimpl.core.interrupts import tell
from refimpl.core.option_groups import OUTPUT, PROMPTS, changed, command, option
from refimpl.core.reading import read_mappings

app = typer.Typer()
PICTURES = (".png", ".pdf", ".svg")
RUNS, ENGINE = RunOptions(batch_sizes="8"), EngineOptions.but(max_new_tokens=50)
OF_OUTPUTS = ("--num-speculative-tokens", "--max-new-tokens", "--drafter")  # count where no method runs, too


@command(app, "tie-or-bug --limit 8 --methods eqspec,inplace --plot regrets.png")
def tie_or_bug(
    *,
    models: HeadOptions = HeadOptions(dtype="bfloat16"),
    prompts: PromptOptions,
    outputs: Annotated[
        Path | None,
        option(PROMPTS, "Judge another engine's greedy tokens: JSON lines with token_ids, in order of the prompts."),
    ] = None,
    runs: RunOptions = RUNS,
    engine: EngineOptions = ENGINE,
    plot: Annotated[Path | None, option(OUTPUT, "Draw a histogram of the regrets: PNG, PDF or SVG.")] = None,
    output: PageOptions,
) -> None:
    """Judge 16-bit output: exact, tie (no token beyond what rounding explains) or bug. Exit code 1 for a bug."""
    from refimpl.bench.settings import plain_texts
    from refimpl.judging.method_runs import runs_to_verify
    from refimpl.judging.pages import ties_page
    from refimpl.judging.tie_or_bug import plot_regrets
    from refimpl.viz.page import write_pages

    if outputs is not None:
        _require_none_idle(runs, engine)
    settings = engine.settings()
    chosen = runs_to_verify(runs.methods, runs.sizes, settings)
    check_outputs([plot, *output.files], [prompts.prompts, outputs])
    if plot and plot.suffix not in PICTURES:
        raise InputError(f"--plot must end in {', '.join(PICTURES)}, not {plot.name!r}")
    foreign = None if outputs is None else read_outputs(outputs)
    texts = plain_texts(prompts.read())
    pair = models.load(drafter=engine.drafter)
    ran_on = _attention(pair, chosen, settings) if foreign is None else None
    settings |= {"max_prompt_tokens": prompts.max_prompt_tokens}
    judgements = _judge(pair, texts, chosen, foreign, settings)
    if plot:
        plot_regrets(judgements, plot)
    report = {"judgements": {name: judgement.as_dict() for name, judgement in judgements.items()}}
    report = write_report(output.output, report, pair.device, ran_on)
    write_pages(ties_page(judgements), output.html, output.junit)
    _print_table(judgements, output.json_)
    output.print(report)
    if any(judgement.verdict == "bug" for judgement in judgements.values()):
        raise typer.Exit(1)


def _require_none_idle(runs: RunOptions, engine: EngineOptions) -> None:
    """Raise InputError for options of methods that are given beside tokens to judge."""
    idle = changed(runs, RUNS) + [name for name in changed(engine, ENGINE) if name not in OF_OUTPUTS]
    require(not idle, f"--outputs is judged without running a method: no effect of {', '.join(idle)}, leave it out")


def _attention(pair: Any, runs: list[tuple[str, int]], settings: dict[str, Any]) -> dict[str, Any]:
    """What answers each method's packed passes."""
    from refimpl.judging.method_runs import widened
    from refimpl.results import environment_of

    configs = {method: make_config(method=method, batch_size=size, **widened(settings, size)) for method, size in runs}
    found = {method: environment_of(pair, config)["packed_attention"] for method, config in configs.items()}
    return {"packed_attention": found}


def _judge(
    pair: Any,
    texts: list,
    runs: list[tuple[str, int]],
    foreign: list[list[int]] | None,
    settings: dict[str, Any],
) -> dict[str, Any]:
    from refimpl.generation import generate
    from refimpl.judging.method_runs import widened
    from refimpl.judging.tie_or_bug import judge_method, judge_outputs, tokens_of

    if foreign is not None:
        return {"outputs": judge_outputs(pair, texts, foreign, **settings)}
    found = {}
    reference = tokens_of(generate(pair, texts, method="autoregressive", **settings))
    for method, size in runs:
        name = f"{method}, batch {size}"
        tell(name)
        of_run = {"method": method, "batch_size": size, **widened(settings, size)}
        found[name] = judge_method(pair, texts, reference=reference, **of_run)
    return found


def read_outputs(path: Path) -> list[list[int]]:
    """Token ids of a JSON-lines file, one output a line.

    Raises:
        InputError: the file cannot be read, or a line holds no list ``token_ids``.
    """
    rows = []
    for number, record in read_mappings(path):
        row = record.get("token_ids")
        if not isinstance(row, list):
            raise InputError(f"{path}:{number}: token_ids must be a list, not {shown(row)}")
        rows.append(row)
    return rows


def _print_table(judgements: dict[str, Any], json_: bool) -> None:
    table = Table(
        title="Greedy output against one-at-a-time decoding",
        caption="regret: how far a token's logit is below the largest one; noise: the most that rounding alone moves a "
        "logit; threshold: twice the noise, the largest regret that a tie may have; prefixes: texts that the noise was "
        "measured on",
    )
    for name in ("run", "verdict", "exact", "tie", "bug", "largest regret", "threshold", "noise", "prefixes"):
        table.add_column(name, justify="left" if name in ("run", "verdict") else "right")
    for name, judgement in judgements.items():
        entry = judgement.as_dict()
        counts = [str(entry[verdict]) for verdict in ("exact", "tie", "bug")]
        sizes = [f"{entry[key]:.4g}" for key in ("largest_regret", "threshold", "noise")]
        table.add_row(name, judgement.verdict, *counts, *sizes, str(judgement.num_prefixes))
    console_for_tables(json_=json_).print(table)
