"""`generate`, `verify` and `demo`: decode prompts, and compare with one-at-a-time decoding."""

import json
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from refimpl.commands.options import (
    BatchSizeOption,
    ChecksOption,
    DecodingOptions,
    DeviceOption,
    EngineOptions,
    MaxNewOption,
    MethodOptions,
    ModelOptions,
    PromptOptions,
    RunOptions,
    SamplingOptions,
)
from refimpl.commands.reports import (
    LineOptions,
    PageOptions,
    ReportPath,
    check_outputs,
    console_for_tables,
    write_report,
)
from refimpl.core.config import make_config
from refimpl.core.interrupts import tell
from refimpl.core.option_groups import ENGINE, PROMPTS, changed, command, option
from refimpl.core.progress import progress_bars
from refimpl.core.request import Request
from refimpl.core.shown import counted

app = typer.Typer()
MAX_DIVERGENCES = 5  # shown of each run; the report has all of them


@command(app, "generate --pair tiny --method exspec --limit 4 --output out.jsonl")
def generate(
    *,
    models: ModelOptions,
    prompts: PromptOptions,
    samples: Annotated[
        int, option(PROMPTS, "Samples of each prompt that does not ask for more.", "--samples", "-n", min=1)
    ] = 1,
    sampling: DecodingOptions,
    method: MethodOptions,
    engine: EngineOptions,
    output: LineOptions,
) -> None:
    """Decode prompts and show what was generated: as text, or one JSON line per sample."""
    settings: dict[str, Any] = method.settings() | engine.settings() | sampling.settings()
    make_config(**settings)
    check_outputs([output.output, output.trace], [prompts.prompts])
    _tell_idle(sampling)
    from refimpl.generation import generate as run  # slow: after the checks

    texts = [_sampled(each, samples) for each in prompts.read()]
    pair = models.load(drafter=engine.drafter)
    with progress_bars() as bars:
        shown = partial(bars, method.method)
        result = run(pair, texts, max_prompt_tokens=prompts.max_prompt_tokens, progress=shown, **settings)
    _write_output(result, output)
    _print_summary(result)


def _tell_idle(sampling: SamplingOptions) -> None:
    """Say on stderr which filters change nothing, as tokens are not drawn."""
    idle = [name for name in changed(sampling, type(sampling)()) if name in ("--top-k", "--top-p", "--min-p")]
    if sampling.temperature == 0 and idle:
        tell(f"greedy decoding at --temperature 0: no effect of {', '.join(idle)}")


def _sampled(prompt: Any, samples: int) -> Any:
    """A prompt that asks for so many samples, unless it asks for several itself."""
    request = prompt if isinstance(prompt, Request) else Request(prompt)
    return replace(request, n=samples) if request.n == 1 else request


def _write_output(result: Any, to: LineOptions) -> None:
    """Files first: a reader of stdout may leave."""
    from refimpl.core.files import write_whole

    lines = [json.dumps(_output_line(sequence)) for sequence in result.sequences]
    if to.trace:
        result.write_trace(to.trace)
    if to.output:
        write_whole(to.output, lines)
    elif to.as_json:
        print("\n".join(lines), flush=True)
    else:
        _print_texts(result)


def _print_texts(result: Any) -> None:
    """Each prompt and what follows it: dimmed, or each below a line of its own where nothing can be dimmed."""
    console = console_for_tables()
    for s in result.sequences:
        console.print(Text(f"[{s.index}] {counted(len(s.token_ids), 'token')}, stopped: {s.stop_reason}", "bold"))
        output = str(s.token_ids) if s.text is None else s.text
        if s.prompt is None or console.color_system:
            shown = Text.assemble((s.prompt or "", "dim"), output)
        else:
            shown = Text(f"--- prompt\n{s.prompt}\n--- output\n{output}")
        console.print(shown, soft_wrap=True, end="\n\n")


def _output_line(sequence: Any) -> dict[str, Any]:
    return {
        "index": sequence.index,
        "sample": sequence.sample,
        "prompt": sequence.prompt,
        "text": sequence.text,
        "token_ids": sequence.token_ids,
        "stop_reason": sequence.stop_reason,
        "num_prompt_tokens": sequence.num_prompt_tokens,
        "num_prompt_tokens_cut": sequence.num_prompt_tokens_cut,
        "mean_acceptance_length": sequence.stats.mean_acceptance_length,
        **({"logprobs": [asdict(each) for each in sequence.logprobs]} if sequence.logprobs else {}),
    }


def _print_summary(result: Any) -> None:
    stats = result.stats
    cut = f", {counted(stats.num_prompt_tokens_cut, 'prompt token')} cut" if stats.num_prompt_tokens_cut else ""
    decoded = f"{counted(stats.num_sequences, 'sequence')}, {counted(stats.num_generated, 'token')}"
    tell(
        f"{result.config.method}: {decoded} in {stats.wall_s:.1f} s of decoding ({stats.tokens_per_s:.0f} tokens/s), "
        f"{counted(stats.num_rounds, 'round')}, "
        f"mean acceptance length {stats.acceptance.mean_acceptance_length:.2f}, "
        f"checks {result.environment['checks']}{cut}"
    )


@command(app, "verify --limit 8 --methods eqspec,exspec --batch-sizes 4 --json")
def verify(
    *,
    models: ModelOptions,
    prompts: PromptOptions,
    sampling: SamplingOptions,
    runs: RunOptions,
    engine: EngineOptions = EngineOptions.but(max_new_tokens=50),
    bitwise: Annotated[
        bool, option(ENGINE, "Run passes of one shape, and compare to the last bit.", "--bitwise")
    ] = False,
    jobs: Annotated[int, option(ENGINE, "Processes, on a CPU only; each run then has one thread.", min=1)] = 1,
    output: PageOptions,
) -> None:
    """Compare every method, token by token, with one-at-a-time decoding.

    Exit code 1 if a run in float32 or float64 on a CPU, or any run under --bitwise, is not exact, or if any run breaks
    an invariant.
    """
    from refimpl.judging.equivalence import verify as run
    from refimpl.judging.method_runs import runs_to_verify
    from refimpl.judging.pages import verify_page
    from refimpl.viz.page import write_pages

    sizes = runs.sizes
    settings: dict[str, Any] = engine.settings() | sampling.settings()
    runs_to_verify(runs.methods, sizes, settings | {"shape_stable": bitwise})
    settings |= {"max_prompt_tokens": prompts.max_prompt_tokens, "jobs": jobs, "bitwise": bitwise}
    check_outputs(output.files, [prompts.prompts])
    _tell_idle(sampling)
    texts = prompts.read()
    pair = models.load(drafter=engine.drafter)
    with progress_bars() as bars:
        report = run(pair, texts, methods=runs.methods, batch_sizes=sizes, progress=bars, **settings)
    written = write_report(output.output, report.as_dict(), pair.device)
    must_be_exact = bitwise or (pair.device.type == "cpu" and pair.dtype.itemsize >= 4)
    write_pages(verify_page(report, must_be_exact=must_be_exact), output.html, output.junit)
    _print_verify_table(report, output.json_)
    output.print(written)
    if (must_be_exact and not report.exact) or any(row.violations for row in report.results):
        raise typer.Exit(1)


def _print_verify_table(report: Any, json_: bool) -> None:
    table = Table(
        title=f"{counted(report.prompts, 'prompt')} against one-at-a-time decoding",
        caption="partial: mean share of tokens before the first that differs; grouping rate: share of rounds with at "
        "least two rows, all of one length; violations: invariants that broke",
    )
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
            tell(
                f"{row.method} at batch {row.batch_size}: prompt {d.index} diverges at token {d.at}, "
                f"expected {d.expected}, found {d.found}"
            )


@command(app, "demo --limit 8 --max-new-tokens 16")
def demo(
    *,
    device: DeviceOption = "cpu",
    limit: Annotated[int, option(PROMPTS, "Prompts, evenly spaced over the bundled ones.", min=1)] = 16,
    batch_size: BatchSizeOption = 8,
    max_new_tokens: MaxNewOption = 24,
    repeats: Annotated[int, option(ENGINE, "Runs in turn, after a warm-up.", min=1)] = 2,
    checks: ChecksOption = "host",
    output: ReportPath = None,
) -> None:
    """Decode bundled prompts with the bundled pair, by transformers and by every method in turn; print one table."""
    from refimpl.bench.demo import demo_legend, demo_table, run_demo
    from refimpl.bench.settings import prompt_ids

    check_outputs([output], [])
    pair = ModelOptions(device=device, dtype="float32").load()
    prompts = prompt_ids(pair, PromptOptions().read(), limit, 0, 0)
    settings: dict[str, Any] = {"batch_size": batch_size, "max_new_tokens": max_new_tokens, "repeats": repeats}
    with progress_bars() as bars:
        rows = run_demo(pair, prompts, checks=checks or "host", progress=bars, **settings)
    prompt_lens = [len(prompt) for prompt in prompts]
    meta = {"settings": settings | {"checks": checks}, "prompt_lens": prompt_lens}
    report = write_report(output, {"rows": [asdict(row) for row in rows]}, pair.device, meta)
    console = console_for_tables()
    console.print(demo_table(rows))
    for line in demo_legend(report["rows"], prompt_lens):
        console.print(line, highlight=False)
    if any(row.exact != row.prompts for row in rows):
        raise typer.Exit(1)
