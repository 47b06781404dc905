"""Tables of what was measured: benchmarks, realignment, trained drafts, and verdicts."""

import statistics
from dataclasses import asdict
from typing import Any

from refimpl.bench.anatomy_rows import AnatomyRow, scalings
from refimpl.commands.bench_tables import exponent_cells, gigabytes, has_recordings, percent, record_seconds

Table = tuple[list[str], list[list[str]]]
STAGES = ("draft", "verify", "realign", "host")
MOST_KERNELS = 6  # that a table names


def rates_line(meta: dict[str, Any]) -> str:
    """What the device did at best in the same run, and whether rows are missing; empty without such meta data."""
    if "rates" not in meta:
        return ""
    rates = meta["rates"]
    text = f"Device in the same run: {rates['bytes_per_s'] / 1e9:.0f} GB/s, {rates['flops_per_s'] / 1e12:.2f} TFLOP/s"
    text += f"; pair {meta['pair']}, {meta['dtype']}; acceptance {meta['acceptance']}"
    return f"\n{text}{'' if meta.get('complete', True) else '; cut short, rows are missing'}.\n"


def by_batch_size(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a benchmark, which may have run its batch sizes in any order; engines stay in theirs."""
    return sorted(rows, key=lambda row: row["batch_size"])


def bench_table(data: dict[str, Any]) -> Table:
    """Throughput of every engine; recording, floor, idle time and memory where they were measured."""
    rows = by_batch_size(data["rows"])
    with_floor = "fraction_of_floor" in rows[0]
    on_gpu = with_floor and any(row["peak_memory_bytes"] for row in rows)
    paired = "ratio_to_first_method" in rows[0]
    headings = ["engine", "batch", "tokens/s", "against plain", *["against first method"] * paired, "ms/round"]
    headings += [*STAGES, "outside forward"]
    recorded = has_recordings(rows)
    headings += ["record s"] * recorded + ["floor/time"] * with_floor + ["idle", "memory"] * on_gpu
    return headings, [_bench_cells(row, recorded, with_floor, on_gpu) for row in rows]


def _bench_cells(row: dict[str, Any], recorded: bool, with_floor: bool, on_gpu: bool) -> list[str]:
    has_rounds = bool(row["ms_per_round"])
    cells = [
        row["engine"],
        str(row["batch_size"]),
        f"{row['tokens_per_s']:.0f}",
        f"{row['ratio_to_hf_generate']:.2f}×",
        *(f"{row[key]:.2f}×" for key in ("ratio_to_first_method",) if key in row),
        f"{row['ms_per_round']:.1f}" if has_rounds else "",
        *(percent(row[f"share_{stage}"], 0) if has_rounds else "" for stage in STAGES),
        percent(row["share_outside_forward"]) if has_rounds else "",
    ]
    if recorded:
        cells.append(record_seconds(row))
    if with_floor:
        cells.append(percent(row["fraction_of_floor"] or None, 0))
    if on_gpu:
        cells += [percent(row["share_idle"], 0), gigabytes(row["peak_memory_bytes"])]
    return cells


def residents_table(data: dict[str, Any]) -> Table:
    """Methods with the most rows that the same bytes have room for: residents, their K/V, and speeds as ratios."""
    headings = ["method", "rows", "exact", "resident, most", "resident, mean", "K/V in use, MB", "of tokens, MB"]
    rows = [
        [
            row["method"],
            str(row["batch_size"]),
            f"{row['exact']}/{data['prompts']}",
            str(row["most_residents"]),
            f"{row['mean_residents']:.1f}",
            *(f"{row[name] / 1e6:.1f}" for name in ("kv_peak_bytes", "kv_live_bytes")),
            str(row["num_preemptions"]),
            str(row["num_rounds"]),
            f"{statistics.median(row['ratios']):.2f}×",
            f"{min(row['ratios']):.2f} … {max(row['ratios']):.2f}",
        ]
        for row in data["rows"]
    ]
    return [*headings, "preemptions", "rounds", "speed", "least … most"], rows


def joining_table(data: dict[str, Any]) -> Table:
    """Methods that a long prompt joins: gaps of the other rows' tokens, and the wait for the prompt's first."""
    names = ("usual_gap_s", "longest_gap_s", "first_token_s")
    rows = [
        [
            row["method"],
            *(f"{1e3 * row[name]:.0f}" for name in names),
            f"{statistics.median(row['ratios']):.2f}×",
            f"{min(row['ratios']):.2f} … {max(row['ratios']):.2f}",
        ]
        for row in data["rows"]
    ]
    return ["method", "usual gap, ms", "longest gap, ms", "first token, ms", "longest gap", "least … most"], rows


def anatomy_table(data: dict[str, Any]) -> Table:
    """One line an engine and context: share of the round at every batch size, the rest at the largest."""
    rows, sizes = data["rows"], sorted({row["batch_size"] for row in data["rows"]})
    headings = ["engine", "context", *(f"share at {size}" for size in sizes)]
    headings += [f"{name} at {sizes[-1]}" for name in ("operations", "MB", "ms", "of bandwidth")]
    cells = []
    for fit in map(asdict, scalings([AnatomyRow(**row) for row in rows])):
        place = fit["engine"], fit["context_tokens"]
        here = {row["batch_size"]: row for row in rows if (row["engine"], row["context_tokens"]) == place}
        cells.append(_anatomy_cells(place, [here[size] for size in sizes], fit))
    return [*headings, "exponent", "95 % interval", "growth", "bound", f"checks at {sizes[-1]}"], cells


def _anatomy_cells(place: tuple[str, int], rows: list[dict[str, Any]], fit: dict[str, Any]) -> list[str]:
    last = rows[-1]
    return [
        place[0],
        str(place[1]),
        *(percent(row["share_realign"]) for row in rows),
        f"{last['host_operations_per_round']:.1f}",
        f"{last['bytes_per_round'] / 1e6:.1f}",
        f"{last['realign_ms_per_round']:.2f}",
        percent(last["fraction_of_bandwidth"], 0),
        *exponent_cells(fit),
        fit["verdict"],
        last["bound"],
        percent(last["share_checks"]),
    ]


def speed_table(data: dict[str, Any]) -> Table:
    """Rounds of the simulator, in its own seconds and in bare timeouts of SimPy, a line a window."""
    rows = [
        [window, f"{speed:,.0f}", f"{1e6 / speed:.1f}", f"{1 / data['ratio'][window]:.0f}"]
        for window, speed in data["rounds_per_s"].items()
    ]
    return ["window", "rounds per CPU second", "µs a round", "bare timeouts a round"], rows


def bitwise_table(data: dict[str, Any]) -> Table:
    """Prompts with the oracle's tokens, and with its log-probabilities to the last bit."""
    rows = [
        [
            row["method"],
            str(row["batch_size"]),
            f"{row['exact']}/{data['prompts']}",
            f"{row['bitwise']}/{data['prompts']}",
            f"{row['mean_acceptance_length']:.2f}",
        ]
        for row in data["results"]
    ]
    return ["method", "batch", "tokens equal", "equal to the last bit", "acceptance length"], rows


def ties_table(data: dict[str, Any]) -> Table:
    """Verdict on every run."""
    rows = [
        [
            name,
            found["verdict"],
            *(str(found[verdict]) for verdict in ("exact", "tie", "bug")),
            f"{found['largest_regret']:.4g}",
            f"{found['threshold']:.4g}",
            str(found["num_prefixes"]),
        ]
        for name, found in data["judgements"].items()
    ]
    return ["run", "verdict", "exact", "tie", "bug", "largest regret", "threshold", "prefixes"], rows


def kernels_table(data: dict[str, Any]) -> Table:
    """A round as loaded, then compiled, with the kernels that take most of its time."""
    rows = []
    for found in data["variants"]:
        times = [f"{found[name]:.1f}" for name in ("ms_per_round", "ms_draft", "ms_verify", "ms_busy")]
        most = "; ".join(
            f"`{k['name'][:50].replace('|', '/')}` × {k['count']}: {k['ms']:.1f} ms"
            for k in found["by_name"][:MOST_KERNELS]
        )
        rows.append([found["name"], *times, str(found["kernels"]), most])
    return ["models", "ms/round", "draft, ms", "verify, ms", "device busy, ms", "kernels", "most of the time"], rows


def drafters_table(rows: list[dict[str, Any]]) -> Table:
    """Ratios, accepted drafts and seconds of every drafter, and of none."""
    cells = [
        [
            f"`{row['engine'].split()[-1]}`" if " " in row["engine"] else "none",
            f"{row['ratio_to_hf_generate']:.2f}×",
            f"{row['mean_acceptance_length']:.2f}",
            f"{100 * row['draft_acceptance_rate']:.0f} %" if " " in row["engine"] else "",
            f"{row['ms_draft']:.1f}",
            f"{row['ms_verify']:.1f}",
        ]
        for row in rows
        if row["engine"] != "hf_generate"
    ]
    headings = ["drafter", "against plain", "tokens per row and round", "drafts accepted", "draft ms", "verify ms"]
    return headings, cells


def law_table(rows: list[dict[str, Any]]) -> Table:
    """Total variation of every combination of drafter, budget and rule, one column a rule."""
    rules = list(dict.fromkeys(row["acceptance"] for row in rows))
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        distance = f"{row['total_variation']:.4f}" if row["total_variation"] else "0"
        cells = found.setdefault((row["drafter"], row["draft_budget"]), [])
        cells.append(distance if row["allowed"] else f"{distance}, refused")
    lines = [[f"`{drafter}`, {budget}", *cells] for (drafter, budget), cells in found.items()]
    return ["drafter, draft budget", *rules], lines


def capacity_table(rows: list[dict[str, Any]]) -> Table:
    """Tokens per verified token of both budgets."""
    cells = [
        [
            str(row["drafts_per_row"]),
            *(f"{row[name]:.3f}" for name in ("fixed", "capacity")),
            f"{row['capacity'] / row['fixed']:.2f}×",
        ]
        for row in rows
    ]
    return ["drafts a row", "fixed", "capacity", "ratio"], cells


def curve_table(rows: list[dict[str, Any]]) -> Table:
    """The best fixed number of drafts over none, and each budget that adapts over both, a line a batch size."""
    lines: dict[int, list[str]] = {}
    adaptive = list(dict.fromkeys(row["budget"] for row in rows if not row["budget"].startswith("fixed")))
    for row in rows:
        cells = lines.setdefault(row["batch_size"], [])
        if row["budget"] == row["measured"]["best"]:
            cells.insert(0, f"{_beside(row, 'over_none')} (k = {row['budget'].removeprefix('fixed ')})")
        elif row["budget"] in adaptive:
            cells += [_measured(row, "over_best"), _beside(row, "over_none")]
    headings = [f"`{name}` over {other}" for name in adaptive for other in ("the best fixed", "none")]
    return ["rows", "the best fixed over none", *headings], [[str(size), *cells] for size, cells in lines.items()]


def _beside(row: dict[str, Any], ratio: str) -> str:
    """A measured ratio with its interval, and the simulated one."""
    return f"{_measured(row, ratio)}, simulated {row['simulated'][ratio][0]:.2f}"


def _measured(row: dict[str, Any], ratio: str) -> str:
    value, low, high = row["measured"][ratio]
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def scaling_table(data: dict[str, Any]) -> Table:
    """Mean acceptance length of every draft, a line a size and a column a training, and where the law bends."""
    trainings = sorted({draft["training_tokens"] for draft in data["drafts"]})
    found = {(d["parameters"], d["training_tokens"]): d["mean_acceptance_length"] for d in data["drafts"]}
    rows = []
    for bend in data["bend"]["drafts"]:
        size, (at, low, high) = bend["parameters"], bend["log10_training_tokens"]
        cells = [f"{found[size, tokens]:.3f}" for tokens in trainings]
        rows.append([f"{size:,}", *cells, f"10^{at:.1f} tokens [10^{low:.1f}, 10^{high:.1f}]"])
    bends = f"bends, at {data['bend']['tokens_per_round']:.2f} tokens a round, after"
    return ["parameters", *(f"{tokens:,} tokens" for tokens in trainings), bends], rows


def scaling_legend(data: dict[str, Any]) -> str:
    """What the lengths are means of, and that of the bundled draft."""
    what = f"Mean acceptance length, k = {data['num_speculative_tokens']}, {data['prompts']} prompts"
    return f"\n{what}; the bundled draft, which was distilled as well, has {data['bundled_draft']:.2f} on them.\n\n"


LAW_TERMS = {
    "per_tenfold_tokens": "ten times the training tokens",
    "per_tenfold_parameters": "ten times the parameters",
    "tokens_squared": "square of the first logarithm, added alone",
    "parameters_squared": "square of the second, added alone",
    "product": "their product, added alone",
}


def scaling_fits(data: dict[str, Any]) -> Table:
    """Coefficients of the law and of the straight line, with intervals, and how far a draft left out is missed."""
    law, straight = data["intervals"] | data["beyond"], data["straight"]
    rows = [
        [title, _span(law[name]), _span(straight[name]) if name in straight else ""]
        for name, title in LAW_TERMS.items()
    ]
    rows.append(
        ["a draft left out, root mean square", *(f"{fit['left_out_tokens']:.3f} tokens" for fit in (data, straight))]
    )
    return ["", "law: logit of the probability", "straight line: tokens"], rows


def _span(values: list[float]) -> str:
    value, low, high = (f"{value:+.3f}" for value in values)
    return f"{value} [{low}, {high}]"


def plans_table(rows: list[dict[str, Any]]) -> Table:
    """Plans for smaller and smaller budgets: bytes planned and measured, and speeds measured and simulated."""
    headings = ["budget, MiB", "rows, drafts, drafter", "planned, MiB", "measured, MiB", "tokens/s", "simulated"]
    return headings, [_plan_cells(row) for row in rows]


def _plan_cells(row: dict[str, Any]) -> list[str]:
    bytes_ = (row[name] / (1 << 20) for name in ("budget_bytes", "planned_bytes", "measured_bytes"))
    budget, planned, measured = (f"{size:.1f}" for size in bytes_)
    ratios = row["ratios"]
    chosen = f"`{row['method']}`, {row['batch_size']}, {row['num_speculative_tokens']}, `{row['drafter']}`"
    speed = f"{sum(ratios) / len(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})"
    return [budget, chosen, planned, measured, speed, f"{row['simulated_ratio']:.2f}"]


def rooms_table(rows: list[dict[str, Any]]) -> Table:
    """A simulated server by room for K/V, layout by layout."""
    layouts = list(dict.fromkeys(row["layout"] for row in rows))
    lines: dict[float, list[str]] = {}
    for row in rows:
        lines.setdefault(row["room_gib"], []).append(f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]")
    return ["K/V, GiB", *(f"`{name}`" for name in layouts)], [[f"{gib:g}", *cells] for gib, cells in lines.items()]
