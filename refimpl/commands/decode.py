"""`generate`, `verify` and `demo`: decode prompts, and compare with one-at-a-time decoding."""

import json
import sys
from functools import partial
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from refimpl.commands.options import (
    AcceptanceOption,
    BatchesOption,
    BatchOption,
    BitwiseOption,
    ChecksOption,
    CompileOption,
    DeviceOption,
    DraftOption,
    DraftTokensOption,
    DtypeOption,
    GraphsOption,
    JobsOption,
    JsonOption,
    LimitOption,
    LinesOption,
    MaxNewOption,
    MaxPromptOption,
    MethodOption,
    MethodsOption,
    MinPOption,
    OutputOption,
    PairOption,
    PromptsOption,
    RandomOption,
    ReportOption,
    RoomOption,
    SeedOption,
    StableOption,
    StopOption,
    TargetOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    TraceOption,
    Turns,
    TurnsOption,
    VocabOption,
    WindowOption,
    check_outputs,
    console_for_tables,
    load,
    parse_sizes,
    prompts_from,
    write_report,
)
from refimpl.core.progress import progress_bars

app = typer.Typer()
MAX_DIVERGENCES = 5  # shown of each run; the report holds all


@app.command(
    epilog="Example: [bold]python -m refimpl generate --pair tiny --method exspec --limit 4 --output out.jsonl[/bold]"
)
def generate(
    pair: PairOption = "tiny",
    target: TargetOption = None,
    draft: DraftOption = None,
    vocab_size: VocabOption = None,
    prompts: PromptsOption = None,
    turns: TurnsOption = Turns.first,
    limit: LimitOption = None,
    method: MethodOption = "inplace",
    batch_size: BatchOption = 8,
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
    stop: StopOption = None,
    checks: ChecksOption = None,
    shape_stable: StableOption = False,
    cuda_graphs: GraphsOption = False,
    kv_memory_gib: RoomOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = None,
    random_weights: RandomOption = False,
    compile_: CompileOption = False,
    json_: LinesOption = None,
    output: OutputOption = None,
    trace: TraceOption = None,
) -> None:
    """Decode prompts and show what was generated: as text, or one JSON line per prompt."""
    from refimpl.core.config import make_config
    from refimpl.core.files import write_whole
    from refimpl.generation import generate as run

    settings: dict[str, Any] = {
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
        "shape_stable": shape_stable,
        "cuda_graphs": cuda_graphs,
        "kv_memory_gib": kv_memory_gib,
    }
    make_config(**settings)
    check_outputs([output, trace], [prompts])
    texts = prompts_from(prompts, turns.value, limit)
    models = load(pair, target, draft, device, dtype, random_weights, compile_, vocab_size=vocab_size)
    with progress_bars() as bars:
        bar = partial(bars, method)
        result = run(models, texts, max_prompt_tokens=max_prompt_tokens, progress=bar, **settings)
    lines = [json.dumps(_output_line(s)) for s in result.sequences]
    if trace:  # files first: a reader of stdout may leave
        result.write_trace(trace)
    if output:
        write_whole(output, lines)
    elif json_ or (json_ is None and not sys.stdout.isatty()):
        print("\n".join(lines), flush=True)
    else:
        _print_texts(result)
    _print_summary(result)


def _print_texts(result: Any) -> None:
    """Each prompt, dimmed, and what follows it; token ids where there is no tokenizer."""
    console = console_for_tables()
    for s in result.sequences:
        console.print(f"[bold]{s.index}[/bold]  {len(s.token_ids)} tokens, {s.stop_reason}", highlight=False)
        output = str(s.token_ids) if s.text is None else s.text
        console.print(Text.assemble((s.prompt or "", "dim"), output), soft_wrap=True, end="\n\n")


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
    vocab_size: VocabOption = None,
    prompts: PromptsOption = None,
    turns: TurnsOption = Turns.first,
    limit: LimitOption = None,
    methods: MethodsOption = "all",
    batch_sizes: BatchesOption = "1,4,8",
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
    jobs: JobsOption = 1,
    bitwise: BitwiseOption = False,
    cuda_graphs: GraphsOption = False,
    kv_memory_gib: RoomOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = None,
    random_weights: RandomOption = False,
    compile_: CompileOption = False,
    json_: JsonOption = False,
    output: ReportOption = None,
) -> None:
    """Compare every method, token by token, with one-at-a-time decoding.

    Exit code 1 if a run in float32 or float64 on a CPU, or any run under --bitwise, is not exact.
    """
    from refimpl.judging.equivalence import runs_to_verify
    from refimpl.judging.equivalence import verify as run

    sizes = parse_sizes(batch_sizes)
    settings: dict[str, Any] = {
        "num_speculative_tokens": num_speculative_tokens,
        "max_new_tokens": max_new_tokens,
        "window_size": window_size,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "checks": checks,
        "cuda_graphs": cuda_graphs,
        "kv_memory_gib": kv_memory_gib,
    }
    runs_to_verify(methods, sizes, settings | {"shape_stable": bitwise})
    check_outputs([output], [prompts])
    texts = prompts_from(prompts, turns.value, limit)
    models = load(pair, target, draft, device, dtype, random_weights, compile_, vocab_size=vocab_size)
    with progress_bars() as bars:
        report = run(
            models,
            texts,
            methods=methods,
            batch_sizes=sizes,
            jobs=jobs,
            bitwise=bitwise,
            progress=bars,
            max_prompt_tokens=max_prompt_tokens,
            **settings,
        )
    write_report(output, report.as_dict(), models.device)
    _print_verify_table(report, json_)
    if json_:
        print(json.dumps(report.as_dict()))
    must_be_exact = bitwise or (models.device.type == "cpu" and models.dtype.itemsize >= 4)
    if (must_be_exact and not report.exact) or any(r.violations for r in report.results):
        raise typer.Exit(1)


def _print_verify_table(report: Any, json_: bool) -> None:
    table = Table(title=f"{report.prompts} prompts against one-at-a-time decoding")
    names = ["method", "batch", "exact", "partial", "mean acceptance length", "grouping rate", "violations"]
    bitwise = any(row.bitwise is not None for row in report.results)
    for name in names[:3] + ["to the last bit"] * bitwise + names[3:]:
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in report.results:
        entry = row.as_dict()
        table.add_row(
            row.method,
            str(row.batch_size),
            f"{entry['exact']}/{report.prompts}",
            *([f"{entry.get('bitwise', 0)}/{report.prompts}"] if bitwise else []),
            f"{100 * entry['partial']:.1f} %",
            f"{entry['mean_acceptance_length']:.2f}",
            f"{100 * entry['grouping_rate']:.1f} %",
            "; ".join(row.violations) or "none",
        )
    console_for_tables(json_=json_).print(table)
    for row in report.results:
        for d in row.comparison.divergences[:MAX_DIVERGENCES] if row.comparison else ():
            print(
                f"{row.method} at batch {row.batch_size}: prompt {d.index} diverges at token {d.at}, "
                f"expected {d.expected}, found {d.found}",
                file=sys.stderr,
            )


@app.command(epilog="Example: [bold]python -m refimpl demo --limit 8 --max-new-tokens 16[/bold]")
def demo(
    limit: Annotated[int, typer.Option(min=1, help="Prompts, evenly spaced over the bundled ones.")] = 16,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a round.")] = 8,
    max_new_tokens: MaxNewOption = 24,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved runs after a warm-up.")] = 2,
    checks: ChecksOption = "host",
    device: DeviceOption = "cpu",
    output: ReportOption = None,
) -> None:
    """Decode bundled prompts with the bundled pair, by transformers and by every method in turn; print one table."""
    from dataclasses import asdict

    from refimpl.bench.demo import demo_legend, demo_table, run_demo
    from refimpl.bench.settings import prompt_ids

    check_outputs([output], [])
    models = load("tiny", None, None, device, "float32", False)
    prompts = prompt_ids(models, prompts_from(None, "first", None), limit, 0, 0)
    settings: dict[str, Any] = {"batch_size": batch_size, "max_new_tokens": max_new_tokens, "repeats": repeats}
    with progress_bars() as bars:
        rows = run_demo(models, prompts, checks=checks or "host", progress=bars, **settings)
    prompt_lens = [len(prompt) for prompt in prompts]
    meta = {"settings": settings | {"checks": checks}, "prompt_lens": prompt_lens}
    report = write_report(output, {"rows": [asdict(row) for row in rows]}, models.device, meta)
    console = console_for_tables()
    console.print(demo_table(rows))
    for line in demo_legend(report["rows"], prompt_lens):
        console.print(line, highlight=False)
    if any(row.exact != row.prompts for row in rows):
        raise typer.Exit(1)
