"""`bench-serving`: requests that arrive in real time, and how long they wait."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from refimpl.commands.options import BatchSizeOption, EngineOptions, ModelOptions, PromptOptions, SeedOption
from refimpl.commands.reports import ReportOptions, check_outputs, console_for_tables, write_report
from refimpl.core.files import check_folder
from refimpl.core.option_groups import ENGINE, OUTPUT, PROMPTS, as_folder, command, option
from refimpl.core.progress import progress_bars
from refimpl.core.shown import counted
from refimpl.core.values import split_names

app = typer.Typer()


@command(
    app,
    "bench-serving --rate 1.5 --num-requests 24",
    "bench-serving --rate 2 --methods inplace,paged+continuous --traces runs && "
    "raggedspec sim validate runs/paged+continuous.ndjson --calibration cpu/tiny",
)
def bench_serving(
    *,
    models: ModelOptions,
    prompts: PromptOptions,
    rate: Annotated[float, option(PROMPTS, "Requests per second, on average: a Poisson process.")] = 1.0,
    num_requests: Annotated[int, option(PROMPTS, "Requests in all; prompts are taken in turn.", min=1)] = 32,
    methods: Annotated[str, option(ENGINE, "Names as for generate, separated by commas.")] = "inplace,paged+continuous",
    batch_size: BatchSizeOption = 8,
    engine: EngineOptions = EngineOptions.but(checks="off"),
    seed: SeedOption = 0,
    traces: Annotated[
        Path | None,
        option(OUTPUT, "Write the trace of every method's run into this folder.", parser=as_folder, metavar="PATH"),
    ] = None,
    output: ReportOptions,
) -> None:
    """Serve requests that arrive in real time: time to first token, inter-token latency, tokens per second.

    Every method gets the same requests at the same times. A trace of the run can be laid beside the simulator's
    prediction (`sim validate --calibration`).
    """
    from refimpl.bench.serving import poisson_requests, require_rounds, serve
    from refimpl.bench.settings import plain_texts
    from refimpl.requests import encode

    names = split_names(methods)
    require_rounds(names, {"batch_size": batch_size} | engine.settings())
    files = {name: traces / f"{name}.ndjson" for name in names} if traces else {}
    check_outputs([output.output], [prompts.prompts])
    if traces:
        check_folder(traces)
    settings = {"batch_size": batch_size, "max_prompt_tokens": prompts.max_prompt_tokens} | engine.settings()
    plain = plain_texts(prompts.read())
    pair = models.load(drafter=engine.drafter)
    texts = [encode(pair, each, i) for i, each in enumerate(plain)]
    requests, rows = poisson_requests(texts, rate, num_requests, seed), []
    if traces:
        traces.mkdir(parents=True, exist_ok=True)
        check_outputs([*files.values()], [prompts.prompts, output.output])
    with progress_bars() as bars:
        for name in names:
            row, result = serve(pair, requests, name, progress=lambda *n, name=name: bars(name, *n), **settings)
            rows.append(asdict(row))
            if name in files:
                result.write_trace(files[name])
    meta = {"rate_per_s": rate, "num_requests": num_requests, "seed": seed, "pair": pair.name, "settings": settings}
    report = write_report(output.output, {"rows": rows}, pair.device, meta)
    _print_table(rows, rate, json_=output.json_)
    output.print(report)


def _print_table(rows: list[dict[str, Any]], rate: float, *, json_: bool) -> None:
    table = Table(
        title=f"{counted(rows[0]['requests'], 'request')}, {rate:g} a second on average, the same for every method",
        caption="waits in ms, 50/90/99 %; first token: from arrival; inter-token: between rounds of a request",
    )
    table.add_column("method", no_wrap=True)
    for name in ("tokens/s", "busy", "first token", "inter-token", "latency", "preempted"):
        table.add_column(name, justify="right")
    for row in rows:
        waits = (_in_ms(row[name]) for name in ("first_token", "inter_token", "latency"))
        table.add_row(
            row["method"],
            f"{row['tokens_per_s']:.0f}",
            f"{100 * row['busy_share']:.0f} %",
            *waits,
            str(row["preemptions"]),
        )
    console_for_tables(json_=json_).print(table)


def _in_ms(waits: dict[str, float | None]) -> str:
    """Quantiles, or a dash where there are none."""
    return "/".join("–" if s is None else f"{1000 * s:.0f}" for s in waits.values())
