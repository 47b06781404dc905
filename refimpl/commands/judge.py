"""`tie-or-bug`: is output that differs from the oracle's explained by rounding, or wrong?"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from refimpl.commands.options import (
    BatchesOption,
    DeviceOption,
    DraftOption,
    DraftTokensOption,
    DtypeOption,
    GraphsOption,
    JsonOption,
    LimitOption,
    MaxNewOption,
    MaxPromptOption,
    MethodsOption,
    PairOption,
    PromptsOption,
    RandomOption,
    ReportOption,
    TargetOption,
    Turns,
    TurnsOption,
    VocabOption,
    check_outputs,
    console_for_tables,
    load,
    parse_sizes,
    prompts_from,
    write_report,
)
from refimpl.core.errors import InputError, shown
from refimpl.core.reading import read_mappings

app = typer.Typer()
PICTURES = (".png", ".pdf", ".svg")


@app.command(
    epilog="Example: [bold]python -m refimpl tie-or-bug --limit 8 --methods eqspec,inplace --plot regrets.png[/bold]"
)
def tie_or_bug(
    pair: PairOption = "tiny",
    target: TargetOption = None,
    draft: DraftOption = None,
    vocab_size: VocabOption = None,
    prompts: PromptsOption = None,
    turns: TurnsOption = Turns.first,
    limit: LimitOption = None,
    methods: MethodsOption = "all",
    batch_sizes: BatchesOption = "8",
    outputs: Annotated[
        Path | None, typer.Option(help="Judge another engine's greedy tokens: JSON lines with token_ids, in order.")
    ] = None,
    num_speculative_tokens: DraftTokensOption = 5,
    max_new_tokens: MaxNewOption = 50,
    max_prompt_tokens: MaxPromptOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "bfloat16",
    random_weights: RandomOption = False,
    cuda_graphs: GraphsOption = False,
    plot: Annotated[Path | None, typer.Option(help="Histogram of the regrets, PNG, PDF or SVG.")] = None,
    json_: JsonOption = False,
    output: ReportOption = None,
) -> None:
    """Judge 16-bit output: exact, tie (no token beyond what rounding explains) or bug. Exit code 1 for a bug."""
    from refimpl.judging.equivalence import runs_to_verify
    from refimpl.judging.tie_or_bug import plot_regrets

    settings: dict[str, Any] = {
        "num_speculative_tokens": num_speculative_tokens,
        "max_new_tokens": max_new_tokens,
        "cuda_graphs": cuda_graphs,
    }
    runs = runs_to_verify(methods, parse_sizes(batch_sizes), settings)
    check_outputs([plot, output], [prompts, outputs])
    if plot and plot.suffix not in PICTURES:
        raise InputError(f"--plot must end in {', '.join(PICTURES)}, not {plot.name!r}")
    foreign = None if outputs is None else read_outputs(outputs)
    texts = prompts_from(prompts, turns.value, limit)
    models = load(pair, target, draft, device, dtype, random_weights, vocab_size=vocab_size)
    settings |= {"max_prompt_tokens": max_prompt_tokens}
    judgements = _judge(models, texts, runs, foreign, settings)
    if plot:
        plot_regrets(judgements, plot)
    report = {"judgements": {name: judgement.as_dict() for name, judgement in judgements.items()}}
    report = write_report(output, report, models.device)
    _print_table(judgements, json_)
    if json_:
        print(json.dumps(report))
    if any(judgement.verdict == "bug" for judgement in judgements.values()):
        raise typer.Exit(1)


def _judge(
    models: Any,
    texts: list,
    runs: list[tuple[str, int]],
    foreign: list[list[int]] | None,
    settings: dict[str, Any],
) -> dict[str, Any]:
    from refimpl.generation import generate
    from refimpl.judging.tie_or_bug import judge_method, judge_outputs, tokens_of

    if foreign is not None:
        return {"outputs": judge_outputs(models, texts, foreign, **settings)}
    found = {}
    reference = tokens_of(generate(models, texts, method="autoregressive", **settings))
    for method, size in runs:
        name = f"{method}, batch {size}"
        print(name, file=sys.stderr, flush=True)
        found[name] = judge_method(models, texts, method=method, batch_size=size, reference=reference, **settings)
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
    table = Table(title="Greedy output against one-at-a-time decoding; a tie's tokens are within the threshold")
    for name in ("run", "verdict", "exact", "tie", "bug", "largest regret", "threshold", "noise", "prefixes"):
        table.add_column(name, justify="left" if name in ("run", "verdict") else "right")
    for name, judgement in judgements.items():
        entry = judgement.as_dict()
        counts = [str(entry[verdict]) for verdict in ("exact", "tie", "bug")]
        sizes = [f"{entry[key]:.4g}" for key in ("largest_regret", "threshold", "noise")]
        table.add_row(name, judgement.verdict, *counts, *sizes, str(judgement.num_prefixes))
    console_for_tables(json_=json_).print(table)
