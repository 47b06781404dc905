"""Tables of `bench` and `anatomy`, and what their reports say of a run."""

import math
from dataclasses import asdict
from typing import Any

from rich.table import Table

from refimpl.commands.reports import console_for_tables


def bench_meta(pair: Any, settings: Any, prompts: list[list[int]], report: Any) -> dict[str, Any]:
    """What a benchmark's rows were measured with."""
    lengths = sorted(map(len, prompts))
    return {
        "pair": pair.name,
        "dtype": str(pair.dtype).removeprefix("torch."),
        "settings": asdict(settings)
        | {"max_minutes": None if math.isinf(settings.max_minutes) else settings.max_minutes},
        "prompts": {str(size): len(settings.prompts_at(size, prompts)) for size in settings.batch_sizes},
        "prompt_tokens": {"min": lengths[0], "median": lengths[len(lengths) // 2], "max": lengths[-1]},
        "layers": {role: model.layers.describe() for role, model in (("target", pair.target), ("draft", pair.draft))},
        "rates": asdict(report.rates),
        "repeats": report.repeats,
        "complete": report.complete,
    }


def percent(share: float | None, digits: int = 1) -> str:
    """Share as text; empty where there is none."""
    return "" if share is None else f"{100 * share:.{digits}f} %"


def _hundredths(number: float | None) -> str:
    """With two digits; empty where there is none."""
    return "" if number is None else f"{number:.2f}"


def gigabytes(num_bytes: int | None) -> str:
    """Memory as text; empty where it was not measured."""
    return "" if num_bytes is None else f"{num_bytes / 1e9:.1f} GB"


def has_recordings(rows: list[dict[str, Any]]) -> bool:
    """Whether any row was measured with recorded rounds."""
    return any(row.get("record_s") for row in rows)


def record_seconds(row: dict[str, Any]) -> str:
    """Seconds that a run spent on recording, as text; empty where nothing was recorded."""
    return f"{row['record_s']:.2f}" if row.get("record_s") else ""


def print_bench_table(rows: list[dict[str, Any]], rates: Any, *, json_: bool) -> None:
    """One line an engine and batch size."""
    recorded = has_recordings(rows)
    table = Table(
        title="Medians of interleaved runs; shares are of a round, prefill left out. α: acceptance of a draft; "
        "least α: from which drafts pay off",
        caption=_caption(rates) + "; tokens/s leaves record s out" * recorded,
    )
    table.add_column("engine", no_wrap=True)
    on_cuda = any(row["peak_memory_bytes"] for row in rows)
    shares = ("draft", "verify", "realign", "host", *(("idle",) if on_cuda else ()), "outside_forward")
    last = [*["record s"] * recorded, "floor/time", *["memory"] * on_cuda]
    for name in ("batch", "tokens/s", "vs plain", "vs first method", "α", "least α", "ms/round", *shares, *last):
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        has_rounds = row["ms_per_round"] > 0
        table.add_row(
            row["engine"],
            str(row["batch_size"]),
            f"{row['tokens_per_s']:.0f}",
            f"{row['ratio_to_hf_generate']:.2f}×",
            f"{row['ratio_to_first_method']:.2f}×",
            _hundredths(row["acceptance_probability"]),
            _hundredths(row["break_even_acceptance"]),
            f"{row['ms_per_round']:.1f}" if has_rounds else "",
            *(percent(row[f"share_{s}"]) if has_rounds else "" for s in shares),
            *([record_seconds(row)] * recorded),
            percent(row["fraction_of_floor"] or None),
            *([gigabytes(row["peak_memory_bytes"])] * on_cuda),
        )
    console_for_tables(json_=json_).print(table)


def print_anatomy_tables(rows: list[dict[str, Any]], fits: list[dict[str, Any]], rates: Any, *, json_: bool) -> None:
    """What realignment moves and costs, and how that grows."""
    table = Table(title="What realignment moves and costs, per round", caption=_caption(rates))
    table.add_column("engine")
    for name in (
        "batch",
        "context",
        "host operations",
        "MB",
        "realign ms",
        "share",
        "GB/s",
        "of bandwidth",
        "bound",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["engine"],
            str(row["batch_size"]),
            str(row["context_tokens"]),
            f"{row['host_operations_per_round']:.1f}",
            f"{row['bytes_per_round'] / 1e6:.1f}",
            f"{row['realign_ms_per_round']:.3f}",
            percent(row["share_realign"]),
            f"{row['bytes_per_s'] / 1e9:.1f}",
            percent(row["fraction_of_bandwidth"]),
            row["bound"],
        )
    growth = Table(title="How its time grows with the batch: exponent of a power law")
    for name in ("engine", "context", "exponent", "95 % interval", "verdict"):
        growth.add_column(name, justify="left" if name in ("engine", "verdict") else "right")
    for fit in fits:
        growth.add_row(fit["engine"], str(fit["context_tokens"]), *exponent_cells(fit), fit["verdict"])
    for one in (table, growth):
        console_for_tables(json_=json_).print(one)


def exponent_cells(fit: dict[str, Any]) -> list[str]:
    """Exponent of a power law and its interval; empty where they are not known."""
    exponent = "" if fit["exponent"] is None else f"{fit['exponent']:.2f}"
    return [exponent, "" if fit["low"] is None else f"{fit['low']:.2f} … {fit['high']:.2f}"]


def _caption(rates: Any) -> str:
    return f"measured in this run: {rates.bytes_per_s / 1e9:.0f} GB/s, {rates.flops_per_s / 1e12:.2f} TFLOP/s"
