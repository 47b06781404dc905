"""`bench` and `anatomy`: time the methods against what a user would pick instead, and look into realignment."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from refimpl.commands.bench_tables import bench_meta, print_anatomy_tables, print_bench_table
from refimpl.commands.options import (
    DraftingOptions,
    DraftTokensOption,
    ModelOptions,
    PairOptions,
    PromptOptions,
    RunOptions,
    SeedOption,
)
from refimpl.commands.parsing import parse_sizes
from refimpl.commands.reports import ReportOptions, check_outputs, write_report
from refimpl.core.config import forced
from refimpl.core.option_groups import ENGINE, PROMPTS, SAMPLING, command, option
from refimpl.core.progress import progress_bars
from refimpl.core.values import split_names

app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """What a benchmark decodes."""

    prompts: Annotated[
        Path | None, option(PROMPTS, "File with prompts without settings of their own.", none="the bundled prompts")
    ] = None
    limit: Annotated[int | None, option(PROMPTS, "Prompts, evenly spaced over them.", min=1, none="32 or more")] = None
    prompts_per_row: Annotated[
        int | None,
        option(
            PROMPTS,
            "Decode B times this many prompts at batch size B; 0 for all prompts.",
            min=0,
            none="4 with --random-weights, else 0",
        ),
    ] = None
    prompt_tokens: Annotated[int, option(PROMPTS, "Length of the random prompts of --random-weights.", min=1)] = 64
    acceptance: Annotated[
        str, option(SAMPLING, "natural, or forced:D with D of iid:A, rate:R (accepted/drafted), trace:FILE; several.")
    ] = "natural"
    seed: SeedOption = 0

    def prompt_ids(self, pair: Any, settings: Any) -> list[list[int]]:
        """Token ids of the prompts."""
        from refimpl.bench.settings import prompt_ids

        count = self.limit or max(32, (settings.prompts_per_row or 2) * max(settings.batch_sizes))
        return prompt_ids(pair, PromptOptions(prompts=self.prompts).read(), count, self.prompt_tokens, self.seed)


@dataclass(frozen=True, kw_only=True)
class RepeatOptions:
    """With which drafters and further settings a benchmark runs, how often and how long."""

    drafters: Annotated[
        str | None,
        option(ENGINE, "Run every method with each of these: names separated by commas.", none="that of --drafter"),
    ] = None
    repeats: Annotated[int, option(ENGINE, "Runs in turn, after a warm-up.", min=1)] = 3
    max_minutes: Annotated[float, option(ENGINE, "Begin no repeat after this many minutes.", min=0)] = math.inf
    eager: Annotated[bool, option(ENGINE, "Also time recorded methods without recordings.")] = True
    assisted: Annotated[bool, option(ENGINE, "Also time transformers' assisted generation, at batch size 1.")] = True


@command(
    app,
    "bench --limit 16 --batch-sizes 1,8 --json",
    "bench --pair qwen3 --random-weights --device cuda --dtype bfloat16 --batch-sizes 1,8,32 -k 2,3,5 "
    "--acceptance forced:iid:0.7",
)
def bench(
    *,
    models: ModelOptions,
    work: WorkOptions,
    runs: RunOptions = RunOptions(batch_sizes="1,8"),
    engine: DraftingOptions = DraftingOptions.but(max_new_tokens=48, checks="off"),
    repeat: RepeatOptions,
    output: ReportOptions,
) -> None:
    """Time every method against generation of transformers (plain, assisted), in turn.

    autoregressive_batched is the same engine without drafts; all of our rows run on --layers, those of transformers on
    its own. Several drafters, numbers of drafts or acceptances, separated by commas, are rows of their own. The table
    compares the acceptance of a draft with the least at which drafts pay off, and the time of a round with the least
    for its bytes and FLOPs at the bandwidth and matrix rate measured in the same run.
    """
    from refimpl.bench import run_bench

    check_outputs([output.output], [work.prompts, *map(trace_of, split_names(work.acceptance))])
    settings = bench_settings(models, work, runs, engine, repeat)
    pair = models.load()
    ids = work.prompt_ids(pair, settings)

    def report_of(found: Any) -> dict[str, Any]:
        meta = {"acceptance": work.acceptance, **bench_meta(pair, settings, ids, found)}
        return write_report(output.output, {"rows": [asdict(row) for row in found.rows]}, pair.device, meta)

    with progress_bars() as bars:
        found = run_bench(pair, ids, settings, bars, report_of if output.output else None)
    report = report_of(found)
    print_bench_table(report["rows"], found.rates, json_=output.json_)
    output.print(report)


def bench_settings(
    models: ModelOptions, work: WorkOptions, runs: RunOptions, engine: DraftingOptions, repeat: RepeatOptions
) -> Any:
    """Settings of a benchmark; those of the engine that it has no field for are its `options`."""
    from refimpl.bench import BenchSettings
    from refimpl.bench.settings import takes_graphs

    drafters = split_names(repeat.drafters) if repeat.drafters else []
    drafts = parse_sizes(engine.num_speculative_tokens, "--num-speculative-tokens", least=0)
    given = engine.settings() | {"num_speculative_tokens": drafts[0]}
    recordable = not drafters and takes_graphs("inplace", **given)
    on_gpu = models.device.startswith("cuda") and engine.checks in ("off", "host") and recordable
    given = {"cuda_graphs": on_gpu} | given
    names = {field.name for field in fields(BenchSettings)}
    usual = 4 if models.random_weights else 0
    return BenchSettings(
        batch_sizes=tuple(runs.sizes),
        methods=tuple(split_names(runs.methods)),
        repeats=repeat.repeats,
        prompts_per_row=usual if work.prompts_per_row is None else work.prompts_per_row,
        max_minutes=repeat.max_minutes,
        eager=repeat.eager,
        assisted=repeat.assisted,
        options=tuple((name, value) for name, value in given.items() if name not in names),
        variants=tuple(variants(drafters, drafts, split_names(work.acceptance))),
        **{name: value for name, value in given.items() if name in names},
    )


def variants(drafters: list[str], drafts: list[int], acceptances: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Settings of each row of a method, by what is added to its name: all that there are several of."""
    for drafter, k, acceptance in product(drafters or [""], drafts, acceptances):
        parts = (drafter, f"k={k}" * (len(drafts) > 1), acceptance.removeprefix("forced:") * (len(acceptances) > 1))
        changes: dict[str, Any] = {"num_speculative_tokens": k} | ({"drafter": drafter} if drafter else {})
        if acceptance != "natural":
            changes["acceptance"] = forced(forced_lengths(acceptance, k))
        yield " ".join(filter(None, parts)), changes


def forced_lengths(text: str, k: int) -> tuple[float, ...]:
    """Probabilities of 0 … k accepted drafts, from a text with or without ``forced:`` in front."""
    from refimpl.bench.forced import parse_forced

    return parse_forced(text.removeprefix("forced:"), k)


def trace_of(acceptance: str) -> Path | None:
    """The file that such a text names, if it names one."""
    kind, _, file = acceptance.removeprefix("forced:").partition(":")
    return Path(file) if kind == "trace" and file else None


@command(
    app,
    "anatomy --batch-sizes 1,2,4,8 --contexts 64,256",
    "anatomy --pair qwen3 --random-weights --device cuda --dtype bfloat16 --batch-sizes 1,2,4,8,16,32 "
    "--contexts 128,1024 --output anatomy.json",
)
def anatomy(
    *,
    models: PairOptions,
    contexts: Annotated[str, option(PROMPTS, "Longest prompts, in tokens, separated by commas.")] = "64,256",
    acceptance: Annotated[
        str, option(SAMPLING, "The forced trace: iid:A, rate:R (accepted/drafted), trace:FILE.")
    ] = "rate:0.228",
    seed: SeedOption = 0,
    runs: RunOptions = RunOptions(methods="eqspec,exspec,masked,rollback,inplace", batch_sizes="1,2,4,8"),
    num_speculative_tokens: DraftTokensOption = 5,
    rounds: Annotated[int, option(ENGINE, "Timed rounds of each run.", min=1)] = 16,
    repeats: Annotated[int, option(ENGINE, "Runs in turn.", min=1)] = 2,
    output: ReportOptions,
) -> None:
    """Run one forced acceptance trace through every layout: what does realignment move and cost, and how does it grow?

    The row per_row moves the same K/V row by row and layer by layer, as published code does.
    """
    from refimpl.bench.anatomy import AnatomySettings, run_anatomy
    from refimpl.judging.method_runs import expand_methods

    check_outputs([output.output], [trace_of(acceptance)])
    settings = AnatomySettings(
        forced_lengths=forced_lengths(acceptance, num_speculative_tokens),
        batch_sizes=tuple(runs.sizes),
        contexts=tuple(parse_sizes(contexts, "--contexts")),
        methods=tuple(expand_methods(runs.methods)),
        num_speculative_tokens=num_speculative_tokens,
        rounds=rounds,
        repeats=repeats,
        seed=seed,
    )
    pair = models.load()
    report_of = partial(_anatomy_report, pair, settings, acceptance, output.output)
    with progress_bars() as bars:
        found = run_anatomy(pair, settings, bars, report_of if output.output else None)
    report = report_of(found)
    print_anatomy_tables(report["rows"], report["scaling"], found[-1], json_=output.json_)
    output.print(report)


def _anatomy_report(pair: Any, settings: Any, acceptance: str, path: Path | None, found: Any) -> dict[str, Any]:
    from refimpl.bench.anatomy_rows import as_report

    rows, fits, rates = found
    meta = {
        "pair": pair.name,
        "dtype": str(pair.dtype).removeprefix("torch."),
        "acceptance": acceptance,
        "settings": asdict(settings),
        "rates": asdict(rates),
    }
    return write_report(path, as_report(rows, fits), pair.device, meta)
