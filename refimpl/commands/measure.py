"""`bench` and `anatomy`: time the methods against what a user would pick instead, and look into realignment."""

import json
import math
from typing import Annotated, Any

import typer

from refimpl.commands.bench_tables import bench_meta, print_anatomy_tables, print_bench_table
from refimpl.commands.options import (
    CompileOption,
    DeviceOption,
    DraftOption,
    DraftTokensOption,
    DtypeOption,
    JsonOption,
    MaxNewOption,
    PairOption,
    RandomOption,
    ReportOption,
    SeedOption,
    TargetOption,
    VocabOption,
    check_outputs,
    load,
    parse_sizes,
    prompts_from,
    write_report,
)
from refimpl.core.errors import InputError
from refimpl.core.progress import progress_bars
from refimpl.core.reading import parse_json

app = typer.Typer()
EngineOption = Annotated[
    list[str] | None, typer.Option(help="NAME=VALUE, a further setting of the engine; may be repeated.")
]


@app.command(
    epilog="Examples: [bold]python -m refimpl bench --limit 16 --batch-sizes 1,8 --json[/bold]\n\n"
    "[bold]python -m refimpl bench --pair qwen3 --random-weights --device cuda --dtype bfloat16 "
    "--batch-sizes 1,8,32 --prompts-per-row 2 --acceptance forced:rate:0.4[/bold]"
)
def bench(
    pair: PairOption = "tiny",
    target: TargetOption = None,
    draft: DraftOption = None,
    vocab_size: VocabOption = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Prompts, evenly spaced over the bundled ones. Default: 32 or more.")
    ] = None,
    prompts_per_row: Annotated[
        int, typer.Option(min=0, help="At batch B decode B times so many prompts; 0 decodes all at every B.")
    ] = 0,
    methods: Annotated[str, typer.Option(help="Comma-separated names, or all.")] = "all",
    batch_sizes: Annotated[str, typer.Option(help="Comma-separated.")] = "1,8",
    num_speculative_tokens: DraftTokensOption = 5,
    max_new_tokens: MaxNewOption = 48,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved runs after a warm-up.")] = 3,
    max_minutes: Annotated[float, typer.Option(min=0, help="Begin no further repeat after so long.")] = math.inf,
    acceptance: Annotated[
        str, typer.Option(help="natural, or forced:D with D of iid:A, rate:R (accepted/drafted), trace:FILE.")
    ] = "natural",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Random prompts of this length for --random-weights.")] = 64,
    cuda_graphs: Annotated[
        bool | None, typer.Option(help="Record rounds where a method can. Default: on a GPU, if checks allow it.")
    ] = None,
    checks: Annotated[str, typer.Option(help="Run-time checks: off, host, device, oracle.")] = "off",
    engine_option: EngineOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = None,
    random_weights: RandomOption = False,
    compile_: CompileOption = False,
    json_: JsonOption = False,
    output: ReportOption = None,
) -> None:
    """Time every method against plain and assisted generation of transformers, interleaved, on the bundled prompts.

    Beside the times stand the bytes and FLOPs that a round cannot avoid, the least time for them at the bandwidth and
    matrix rate measured in the same run, and the fraction of it that was reached.
    """
    from refimpl.bench import BenchSettings, as_rows, run_bench
    from refimpl.bench.settings import prompt_ids

    check_outputs([output], [])
    sizes = parse_sizes(batch_sizes)
    settings = BenchSettings(
        batch_sizes=tuple(sizes),
        methods=tuple(methods.split(",")),
        num_speculative_tokens=num_speculative_tokens,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        checks=checks,
        forced_lengths=() if acceptance == "natural" else forced_lengths(acceptance, num_speculative_tokens),
        prompts_per_row=prompts_per_row,
        max_minutes=max_minutes,
        cuda_graphs=device.startswith("cuda") and checks in ("off", "host") if cuda_graphs is None else cuda_graphs,
        options=engine_options(engine_option),
    )
    models = load(pair, target, draft, device, dtype, random_weights, compile_, vocab_size=vocab_size)
    count = limit or max(32, (prompts_per_row or 2) * max(sizes))
    ids = prompt_ids(models, prompts_from(None, "first", None), count, prompt_tokens, seed)

    def report_of(found: Any) -> dict[str, Any]:
        meta = {"acceptance": acceptance, **bench_meta(models, settings, ids, found)}
        return write_report(output, {"rows": as_rows(found.rows)}, models.device, meta)

    with progress_bars() as bars:
        found = run_bench(models, ids, settings, bars, report_of if output else None)
    report = report_of(found)
    print_bench_table(report["rows"], found.rates, json_=json_)
    if json_:
        print(json.dumps(report))


def forced_lengths(text: str, k: int) -> tuple[float, ...]:
    """Probabilities of 0 … k accepted drafts, from a text with or without ``forced:`` in front."""
    from refimpl.bench.forced import parse_forced

    return parse_forced(text.removeprefix("forced:"), k)


def engine_options(texts: list[str] | None) -> tuple[tuple[str, Any], ...]:
    """Settings of the engine from texts like ``compaction_threshold=0.5``; values are JSON, else text.

    Raises:
        InputError: a text without ``=``.
    """
    options = []
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--engine-option must look like NAME=VALUE, not {text!r}")
        try:
            options.append((name, parse_json(value, name)))
        except InputError:
            options.append((name, value))
    return tuple(options)


@app.command(
    epilog="Examples: [bold]python -m refimpl anatomy --batch-sizes 1,2,4,8 --contexts 64,256[/bold]\n\n"
    "[bold]python -m refimpl anatomy --pair qwen3 --random-weights --device cuda --dtype bfloat16 "
    "--batch-sizes 1,2,4,8,16,32 --contexts 128,1024 --output anatomy.json[/bold]"
)
def anatomy(
    pair: PairOption = "tiny",
    target: TargetOption = None,
    draft: DraftOption = None,
    vocab_size: VocabOption = None,
    methods: Annotated[str, typer.Option(help="Comma-separated names.")] = "eqspec,exspec,masked,rollback,inplace",
    batch_sizes: Annotated[str, typer.Option(help="Comma-separated.")] = "1,2,4,8",
    contexts: Annotated[str, typer.Option(help="Longest prompts, in tokens, comma-separated.")] = "64,256",
    num_speculative_tokens: DraftTokensOption = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds of each run.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved runs.")] = 2,
    acceptance: Annotated[
        str, typer.Option(help="The forced trace: iid:A, rate:R (accepted/drafted), trace:FILE.")
    ] = "rate:0.228",
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = None,
    random_weights: RandomOption = False,
    json_: JsonOption = False,
    output: ReportOption = None,
) -> None:
    """Run one forced acceptance trace through every layout: what does realignment move and cost, and how does it grow?

    The row per_row moves the same K/V row by row and layer by layer, as published code does.
    """
    from dataclasses import asdict

    from refimpl.bench.anatomy import AnatomySettings, run_anatomy
    from refimpl.bench.anatomy_rows import as_report
    from refimpl.judging.equivalence import expand_methods

    check_outputs([output], [])
    settings = AnatomySettings(
        forced_lengths=forced_lengths(acceptance, num_speculative_tokens),
        batch_sizes=tuple(parse_sizes(batch_sizes)),
        contexts=tuple(parse_sizes(contexts, "--contexts")),
        methods=tuple(expand_methods(methods)),
        num_speculative_tokens=num_speculative_tokens,
        rounds=rounds,
        repeats=repeats,
        seed=seed,
    )
    models = load(pair, target, draft, device, dtype, random_weights, vocab_size=vocab_size)

    def report_of(found: Any) -> dict[str, Any]:
        rows, fits, rates = found
        meta = {
            "pair": models.name,
            "dtype": str(models.dtype).removeprefix("torch."),
            "acceptance": acceptance,
            "settings": asdict(settings),
            "rates": asdict(rates),
        }
        return write_report(output, as_report(rows, fits), models.device, meta)

    with progress_bars() as bars:
        found = run_anatomy(models, settings, bars, report_of if output else None)
    report = report_of(found)
    print_anatomy_tables(report["rows"], report["scaling"], found[-1], json_=json_)
    if json_:
        print(json.dumps(report))
