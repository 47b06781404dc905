"""Commands of ``python -m refimpl``: options in, tables or JSON out, exit code 2 for bad input."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from refimpl.errors import InputError, InvariantViolation

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="Exact batch speculative decoding: decode prompts, and verify every method against plain decoding.",
)

Turns = Enum("Turns", {"first": "first", "all": "all"}, type=str)

PairOption = Annotated[str, typer.Option("--pair", help="tiny, vicuna, qwen3, glm4; or --target and --draft.")]
TargetOption = Annotated[str | None, typer.Option(help="Path or hub id of a target of your own.")]
DraftOption = Annotated[str | None, typer.Option(help="Path or hub id of its draft.")]
PromptsOption = Annotated[
    Path | None,
    typer.Option(
        "--prompts", help="One prompt a line (.txt), or JSON lines with `prompt` or `turns`. Default: bundled."
    ),
]
TurnsOption = Annotated[Turns, typer.Option(help="Which turns of a multi-turn file to take.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Use the first so many prompts.")]
MaxPromptOption = Annotated[int | None, typer.Option(help="Keep the last so many tokens of each prompt.")]
MaxNewOption = Annotated[int, typer.Option(help="Budget of new tokens per prompt.")]
DraftTokensOption = Annotated[int, typer.Option("--num-speculative-tokens", "-k", help="Drafts per row and round.")]
WindowOption = Annotated[int | None, typer.Option(help="Sequences that a grouped scheduler chooses from.")]
ChecksOption = Annotated[str | None, typer.Option(help="Run-time checks: off, host, device, oracle.")]
TemperatureOption = Annotated[float, typer.Option(help="0 is greedy.")]
TopKOption = Annotated[int, typer.Option(help="Keep the k most probable tokens; 0 keeps all.")]
TopPOption = Annotated[float, typer.Option(help="Keep the most probable tokens of this mass.")]
MinPOption = Annotated[float, typer.Option(help="Drop tokens below this share of the most probable one.")]
AcceptanceOption = Annotated[str | None, typer.Option(help="greedy, rejection or coupled. Default: by temperature.")]
SeedOption = Annotated[int, typer.Option(help="Key of the random numbers.")]
DeviceOption = Annotated[str, typer.Option(help="cpu or cuda.")]
DtypeOption = Annotated[str | None, typer.Option(help="float64, float32, bfloat16, float16.")]
RandomOption = Annotated[bool, typer.Option("--random-weights", help="The preset's architecture, no download.")]
ReportOption = Annotated[Path | None, typer.Option("--output", help="Write the rows and their provenance as JSON.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON object as the last line.")]


def load(pair: str, target: str | None, draft: str | None, device: str, dtype: str | None, random_weights: bool) -> Any:
    """Load the pair that the options describe."""
    from refimpl.pairs import load_pair

    if (target is None) != (draft is None):
        raise InputError("--target and --draft go together")
    return load_pair(target or pair, draft, device=device, dtype=dtype, random_weights=random_weights)


def prompts_from(path: Path | None, turns: str, limit: int | None) -> list:
    """Prompts of a file, or the bundled ones."""
    from refimpl.pairs.loading import TINY
    from refimpl.prompts import read_prompts

    return read_prompts(path or TINY / "prompts.jsonl", turns, limit)  # type: ignore[arg-type]


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None] | None]:
    """Yield a callback (label, done, total) that draws bars on a terminal; None where stdout is none."""
    if not sys.stdout.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, Any] = {}

        def update(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = progress.add_task(label, total=total)
            progress.update(tasks[label], completed=done)

        yield update


@app.command(
    epilog="Example: [bold]python -m refimpl generate --pair tiny --method exspec --limit 4 --output out.jsonl[/bold]"
)
def generate(
    pair: PairOption = "tiny",
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptsOption = None,
    turns: TurnsOption = Turns.first,
    limit: LimitOption = None,
    method: Annotated[str, typer.Option(help="A named method, or LAYOUT+SCHEDULER.")] = "inplace",
    batch_size: Annotated[int, typer.Option(help="Rows of a round.")] = 8,
    num_speculative_tokens: DraftTokensOption = 5,
    max_new_tokens: MaxNewOption = 64,
    window_size: WindowOption = None,
    max_prompt_tokens: MaxPromptOption = None,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    acceptance: AcceptanceOption = None,
    seed: SeedOption = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends a generation; may be repeated.")] = None,
    checks: ChecksOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = None,
    random_weights: RandomOption = False,
    output: Annotated[Path | None, typer.Option(help="JSON lines, in input order. Default: stdout.")] = None,
    trace: Annotated[Path | None, typer.Option(help="NDJSON, one line per row per round.")] = None,
) -> None:
    """Decode prompts and write what was generated, one JSON line per prompt."""
    from refimpl.config import make_config
    from refimpl.files import check_writable, write_whole
    from refimpl.generation import generate as run

    settings = {
        "method": method,
        "batch_size": batch_size,
        "num_speculative_tokens": num_speculative_tokens,
        "max_new_tokens": max_new_tokens,
        "window_size": window_size,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "acceptance": acceptance,
        "seed": seed,
        "stop_strings": tuple(stop or ()),
        "checks": checks,
    }
    make_config(**settings)
    for path in filter(None, (output, trace)):
        check_writable(path)
    texts = prompts_from(prompts, turns.value, limit)
    models = load(pair, target, draft, device, dtype, random_weights)
    with progress_bars() as bars:
        bar = partial(bars, method) if bars else None
        result = run(models, texts, max_prompt_tokens=max_prompt_tokens, progress=bar, **settings)
    lines = [json.dumps(_output_line(s)) for s in result.sequences]
    if trace:
        result.write_trace(trace)
    if output:
        write_whole(output, lines)
    else:
        print("\n".join(lines))
    _print_summary(result)


def _output_line(sequence: Any) -> dict[str, Any]:
    return {
        "index": sequence.index,
        "text": sequence.text,
        "token_ids": sequence.token_ids,
        "stop_reason": sequence.stop_reason,
        "num_prompt_tokens": sequence.num_prompt_tokens,
        "num_prompt_tokens_cut": sequence.num_prompt_tokens_cut,
        "mean_acceptance_length": sequence.stats.mean_acceptance_length,
    }


def _print_summary(result: Any) -> None:
    stats = result.stats
    cut = f", {stats.num_prompt_tokens_cut} prompt tokens cut" if stats.num_prompt_tokens_cut else ""
    print(
        f"{result.config.method}: {stats.num_sequences} prompts, {stats.num_generated} tokens in {stats.wall_s:.1f} s "
        f"({stats.tokens_per_s:.0f} tokens/s), {stats.num_rounds} rounds, "
        f"mean acceptance length {stats.acceptance.mean_acceptance_length:.2f}, "
        f"checks {result.environment['checks']}{cut}",
        file=sys.stderr,
    )


@app.command(
    epilog="Example: [bold]python -m refimpl verify --limit 8 --methods eqspec,exspec --batch-sizes 4 --json[/bold]"
)
def verify(
    pair: PairOption = "tiny",
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptsOption = None,
    turns: TurnsOption = Turns.first,
    limit: LimitOption = None,
    methods: Annotated[str, typer.Option(help="Comma-separated names, or all.")] = "all",
    batch_sizes: Annotated[str, typer.Option(help="Comma-separated.")] = "1,4,8",
    num_speculative_tokens: DraftTokensOption = 5,
    max_new_tokens: MaxNewOption = 50,
    window_size: WindowOption = None,
    max_prompt_tokens: MaxPromptOption = None,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    seed: SeedOption = 0,
    checks: ChecksOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = None,
    random_weights: RandomOption = False,
    json_: JsonOption = False,
    output: ReportOption = None,
) -> None:
    """Compare every method, token by token, with one-at-a-time decoding. Exit code 1 if a CPU run is not exact."""
    from refimpl.config import make_config
    from refimpl.equivalence import verify as run

    sizes = parse_sizes(batch_sizes)
    settings = {
        "num_speculative_tokens": num_speculative_tokens,
        "max_new_tokens": max_new_tokens,
        "window_size": window_size,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "checks": checks,
    }
    make_config(**settings)
    _check_report(output)
    texts = prompts_from(prompts, turns.value, limit)
    models = load(pair, target, draft, device, dtype, random_weights)
    with progress_bars() as bars:
        report = run(
            models,
            texts,
            methods=methods,
            batch_sizes=sizes,
            progress=bars,
            max_prompt_tokens=max_prompt_tokens,
            **settings,
        )
    _print_verify_table(report)
    _write_report(output, report.as_dict(), models.device)
    if json_:
        print(json.dumps(report.as_dict()))
    must_be_exact = models.device.type == "cpu" and models.dtype.itemsize >= 4
    if (must_be_exact and not report.exact) or any(r.violations for r in report.results):
        raise typer.Exit(1)


def parse_sizes(text: str) -> list[int]:
    """Read comma-separated positive integers.

    Raises:
        InputError: something else stands there.
    """
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--batch-sizes must be comma-separated integers, not {text!r}") from error
    if not sizes or min(sizes) < 1:
        raise InputError(f"--batch-sizes must be at least 1, not {text!r}")
    return sizes


def _print_verify_table(report: Any) -> None:
    table = Table(title=f"{report.prompts} prompts against one-at-a-time decoding")
    for name in ("method", "batch", "exact", "partial", "mean acceptance length", "grouping rate", "violations"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in report.results:
        entry = row.as_dict()
        table.add_row(
            row.method,
            str(row.batch_size),
            f"{entry['exact']}/{report.prompts}",
            f"{100 * entry['partial']:.1f} %",
            f"{entry['mean_acceptance_length']:.2f}",
            f"{100 * entry['grouping_rate']:.1f} %",
            "; ".join(row.violations) or "none",
        )
    _console().print(table)


@app.command(epilog="Example: [bold]python -m refimpl demo --limit 16 --max-new-tokens 32[/bold]")
def demo(
    limit: LimitOption = 64,
    batch_size: Annotated[int, typer.Option(help="Rows of a round.")] = 8,
    max_new_tokens: MaxNewOption = 48,
    checks: ChecksOption = "host",
    device: DeviceOption = "cpu",
    output: ReportOption = None,
) -> None:
    """Decode the bundled prompts with the bundled pair by every method, and print one table."""
    from dataclasses import asdict

    from refimpl.demo import demo_table, run_demo

    _check_report(output)
    models = load("tiny", None, None, device, None, False)
    settings = {"batch_size": batch_size, "max_new_tokens": max_new_tokens, "checks": checks}
    with progress_bars() as bars:
        rows = run_demo(models, prompts_from(None, "first", limit), bars, **settings)
    _console().print(demo_table(rows))
    _write_report(output, {"rows": [asdict(row) for row in rows]}, models.device)
    if any(row.exact != row.prompts for row in rows):
        raise typer.Exit(1)


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
    out: Annotated[Path, typer.Option(help="Data folder of the simulator.")] = Path("simulator/data"),
) -> None:
    """Measure what each stage of a round costs, with held-out runs in between, for the simulator."""
    from refimpl.calibrate import calibrate as run

    texts = prompts_from(prompts, "first", None)
    models = load(pair, target, draft, device, dtype, random_weights)
    command = f"python -m refimpl {' '.join(sys.argv[1:])}"
    settings: dict[str, Any] = {"passes": passes, "repeats": repeats, "threads": threads, "seed": seed}
    run(models, texts, out, pair_name=pair if target is None else Path(target).name, command=command, **settings)


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
    device: DeviceOption = "cpu",
    dtype: DtypeOption = None,
    json_: JsonOption = False,
    output: ReportOption = None,
) -> None:
    """Time every method against plain and assisted generation of transformers, interleaved, on the bundled prompts."""
    from refimpl.bench import BenchSettings, as_rows, run_bench
    from refimpl.requests import encode

    _check_report(output)
    settings = BenchSettings(
        batch_sizes=tuple(parse_sizes(batch_sizes)),
        methods=tuple(methods.split(",")),
        num_speculative_tokens=num_speculative_tokens,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
    )
    models = load(pair, target, draft, device, dtype, False)
    ids = [encode(models, text, i) for i, text in enumerate(prompts_from(None, "first", limit))]
    with progress_bars() as bars:
        rows = as_rows(run_bench(models, ids, settings, bars))
    _print_bench_table(rows)
    report = _write_report(output, {"rows": rows}, models.device)
    if json_:
        print(json.dumps(report))


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
    _console().print(table)


def _check_report(output: Path | None) -> None:
    """Refuse an impossible report file before any work is done."""
    from refimpl.files import check_writable

    if output:
        check_writable(output)


def _write_report(output: Path | None, report: dict[str, Any], device: Any) -> dict[str, Any]:
    """Add provenance to a report, write it where one asked for it, and return it."""
    from refimpl.files import write_whole
    from refimpl.provenance import provenance

    report = {**report, "meta": provenance(device)}
    if output:
        write_whole(output, [json.dumps(report, indent=1)])
    return report


def _console() -> Console:
    """A console that does not fold tables when its output is piped."""
    return Console(width=None if sys.stdout.isatty() else 160)


def main() -> None:
    """Run a command; bad input is one line on stderr and exit code 2, a broken invariant exit code 3."""
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except InvariantViolation as violation:
        print(f"invariant violated: {violation}", file=sys.stderr)
        sys.exit(3)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
