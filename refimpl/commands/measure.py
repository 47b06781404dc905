"""`bench` and `calibrate`: time the methods against what a user would pick instead, and what their stages cost."""

import json
import random
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from refimpl.commands.options import (
    DeviceOption,
    DraftOption,
    DraftTokensOption,
    DtypeOption,
    JsonOption,
    LimitOption,
    MaxNewOption,
    PairOption,
    PromptsOption,
    RandomOption,
    ReportOption,
    SeedOption,
    TargetOption,
    check_report,
    console_for_tables,
    load,
    parse_sizes,
    progress_bars,
    prompts_from,
    write_report,
)

app = typer.Typer()
SIMULATOR_DATA = Path("simulator/data")


@app.command(epilog="Example: [bold]python -m refimpl bench --limit 16 --batch-sizes 1,8 --json[/bold]")
def bench(
    pair: PairOption = "tiny",
    target: TargetOption = None,
    draft: DraftOption = None,
    limit: LimitOption = 32,
    methods: Annotated[str, typer.Option(help="Comma-separated names, or all.")] = "all",
    batch_sizes: Annotated[str, typer.Option(help="Comma-separated.")] = "1,8",
    num_speculative_tokens: DraftTokensOption = 5,
    max_new_tokens: MaxNewOption = 48,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved runs after a warm-up.")] = 3,
    acceptance: Annotated[str, typer.Option(help="natural, or forced: iid:A, rate:R, trace:FILE.")] = "natural",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Random prompts of this length for --random-weights.")] = 64,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = None,
    random_weights: RandomOption = False,
    json_: JsonOption = False,
    output: ReportOption = None,
) -> None:
    """Time every method against plain and assisted generation of transformers, interleaved, on the bundled prompts."""
    from refimpl.bench import BenchSettings, as_rows, run_bench
    from refimpl.forced import parse_forced

    check_report(output)
    forced = () if acceptance == "natural" else parse_forced(acceptance.removeprefix("forced:"), num_speculative_tokens)
    settings = BenchSettings(
        batch_sizes=tuple(parse_sizes(batch_sizes)),
        methods=tuple(methods.split(",")),
        num_speculative_tokens=num_speculative_tokens,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        forced_lengths=forced,
    )
    models = load(pair, target, draft, device, dtype, random_weights)
    ids = prompt_ids(models, limit or 32, prompt_tokens, seed)
    with progress_bars() as bars:
        rows = as_rows(run_bench(models, ids, settings, bars))
    _print_bench_table(rows)
    report = write_report(output, {"rows": rows}, models.device)
    if json_:
        print(json.dumps(report))


def prompt_ids(pair: Any, limit: int, prompt_tokens: int, seed: int) -> list[list[int]]:
    """The bundled prompts as token ids; random ids for a pair without tokenizer."""
    from refimpl.requests import encode

    if pair.tokenizer is not None:
        return [encode(pair, text, i) for i, text in enumerate(prompts_from(None, "first", limit))]
    rng = random.Random(seed)
    return [[rng.randrange(pair.vocab_size) for _ in range(prompt_tokens)] for _ in range(limit)]


def _print_bench_table(rows: list[dict[str, Any]]) -> None:
    table = Table(title="Medians of interleaved runs; shares are of a round, prefill left out")
    names = ("tokens/s", "against plain", "ms/round", "draft", "verify", "realign", "host", "outside forward")
    table.add_column("engine")
    for name in ("batch", *names):
        table.add_column(name, justify="right")
    for row in rows:
        shares = [f"{100 * row[f'share_{s}']:.1f} %" for s in ("draft", "verify", "realign", "host", "outside_forward")]
        has_rounds = row["ms_per_round"] > 0
        table.add_row(
            row["engine"],
            str(row["batch_size"]),
            f"{row['tokens_per_s']:.0f}",
            f"{row['ratio_to_hf_generate']:.2f}×",
            f"{row['ms_per_round']:.1f}" if has_rounds else "",
            *(shares if has_rounds else [""] * len(shares)),
        )
    console_for_tables().print(table)


@app.command(epilog="Example: [bold]python -m refimpl calibrate --pair tiny --device cpu --threads 1[/bold]")
def calibrate(
    pair: PairOption = "tiny",
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptsOption = None,
    passes: Annotated[int, typer.Option(min=2, help="Passes over the grid; between them the held-out runs.")] = 4,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each held-out study, on prompts of their own.")] = 2,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the tensor library.")] = None,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = None,
    random_weights: RandomOption = False,
    out: Annotated[Path, typer.Option(help="Data folder of the simulator.")] = SIMULATOR_DATA,
) -> None:
    """Measure what each stage of a round costs, with held-out runs in between, for the simulator."""
    from refimpl.calibrate import calibrate as run

    texts = prompts_from(prompts, "first", None)
    models = load(pair, target, draft, device, dtype, random_weights)
    command = f"python -m refimpl {' '.join(sys.argv[1:])}"
    settings: dict[str, Any] = {"passes": passes, "repeats": repeats, "threads": threads, "seed": seed}
    run(models, texts, out, pair_name=pair if target is None else Path(target).name, command=command, **settings)
