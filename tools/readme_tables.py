"""The measured tables of the pages, by kind: their rows, their columns, and what is said below them.

A column is a heading and a format of a row's numbers, or a function of the row. Beside Python's formats there are
``.1%`` with a space before the sign, and ``.1m``, ``.1M``, ``.1G`` and ``.1i`` for thousandths, millions, billions and
mebi; what is None or absent is left blank.
"""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from string import Formatter
from typing import Any

from pages import markdown_table, origin

from refimpl.bench.anatomy_rows import AnatomyRow, scalings
from refimpl.bench.demo import DEMO_HEADINGS, NO_DRAFTS, PLAIN, demo_cells, demo_legend
from refimpl.commands.bench_tables import exponent_cells
from refimpl.commands.law import RULE_HEADINGS, rule_cells

Row = dict[str, Any]
Column = tuple[str, str | Callable[[Row], str]]
Table = tuple[list[str], list[list[str]]]
SCALES = {"%": 0.01, "m": 1e-3, "M": 1e6, "G": 1e9, "i": 1 << 20}
MOST_KERNELS = 6  # that a table names


class Scaled(Formatter):
    """Formats of this module, see above."""

    def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
        """None where a row has no such number."""
        return kwargs.get(key)

    def format_field(self, value: Any, spec: str) -> str:
        """A number divided by its scale."""
        if value is None:
            return ""
        if spec[-1:] in SCALES:
            return f"{value / SCALES[spec[-1]]:{spec[:-1]}f}{' %' if spec.endswith('%') else ''}"
        return format(value, spec)


FORMAT = Scaled().vformat


def tabulate(columns: Iterable[Column], rows: Iterable[Row]) -> Table:
    """A line a row."""
    shown = list(columns)
    lines = [[FORMAT(cell, (), row) if isinstance(cell, str) else cell(row) for _, cell in shown] for row in rows]
    return [heading for heading, _ in shown], lines


def pivoted(corner: str, cells: Iterable[tuple[str, str, str]]) -> Table:
    """A line for each first word of the cells, a column for each second one, as they come."""
    lines: dict[str, dict[str, str]] = {}
    for line, heading, cell in cells:
        lines.setdefault(line, {})[heading] = cell
    headings = list(dict.fromkeys(heading for line in lines.values() for heading in line))
    return [corner, *headings], [[line, *found.values()] for line, found in lines.items()]


@dataclass(frozen=True)
class Kind:
    """How data of a kind become a table, what stands below it, and whether their origin stands below that."""

    table: Callable[[Row], Table]
    note: Callable[[Row], str] = lambda data: device_rates(data.get("meta", {}))
    has_origin: bool = True


def of_rows(*columns: Column, key: str = "rows") -> Kind:
    """A table of the same columns for any data; rows know what is the same for all of them."""
    return Kind(lambda data: tabulate(columns, [data | row for row in data[key]]))


def render_table(kind: Kind, data: Any) -> str:
    """Table, note and origin."""
    source = origin(data["meta" if "meta" in data else "environment"]) if kind.has_origin else ""
    return markdown_table(*kind.table(data)) + kind.note(data) + source


def device_rates(meta: Row) -> str:
    """What the device did at best in the same run, and whether rows are missing; empty without such meta data."""
    if "rates" not in meta:
        return ""
    rates = "Device in the same run: {bytes_per_s:.0G} GB/s, {flops:.2f} TFLOP/s"
    text = FORMAT(rates, (), meta["rates"] | {"flops": meta["rates"]["flops_per_s"] / 1e12})
    text += f"; pair {meta['pair']}, {meta['dtype']}; acceptance {meta['acceptance']}"
    return f"\n{text}{'' if meta.get('complete', True) else '; cut short, rows are missing'}.\n"


# --- the demonstration, and benchmarks -------------------------------------------------------------------------------


def demo_note(data: Row) -> str:
    """What the columns mean."""
    return "\n" + "\n\n".join(demo_legend(data["rows"], data["meta"]["prompt_lens"])) + "\n"


def brief_table(data: Row) -> Table:
    """The demonstration at its batch size alone, with the columns that a first reader needs."""
    names = {PLAIN: "transformers `generate`", NO_DRAFTS: "`inplace` without drafts"}
    columns: list[Column] = [
        ("method", lambda row: names.get(row["method"], f"`{row['method']}`")),
        ("exact", "{exact}/{prompts}"),
        ("tokens/s", "{tokens_per_s:.0f}"),
        # plain decoding adds one token to a row in each step, and has no layout
        ("tokens per row and round", lambda r: "1.00" if r["rounds"] is None else f"{r['tokens_per_row_round']:.2f}"),
        ("time spent moving K/V", lambda r: "" if r["rounds"] is None else f"{100 * r['share_realign']:.1f} %"),
    ]
    return tabulate(columns, [r for r in data["rows"] if r["batch_size"] == data["meta"]["settings"]["batch_size"]])


def brief_note(data: Row) -> str:
    """The setting."""
    settings = data["meta"]["settings"]
    return (
        f"\n{len(data['meta']['prompt_lens'])} prompts, batch size {settings['batch_size']}, "
        f"{settings['max_new_tokens']} new tokens each, bundled pair, {data['meta']['device']}. "
        "*exact* counts the outputs with exactly the tokens of one-at-a-time decoding.\n"
    )


def by_batch_size(rows: list[Row]) -> list[Row]:
    """Rows of a benchmark, which may have run its batch sizes in any order; engines stay in theirs."""
    return sorted(rows, key=lambda row: row["batch_size"])


def bench_table(data: Row) -> Table:
    """Throughput of every engine; recording, floor, idle time and memory where they were measured."""
    rows, stages = by_batch_size(data["rows"]), ("draft", "verify", "realign", "host")
    with_floor = "fraction_of_floor" in rows[0]
    on_gpu = with_floor and any(row["peak_memory_bytes"] for row in rows)
    of_rounds = ("ms_per_round", "share_outside_forward", *(f"share_{stage}" for stage in stages))
    for row in rows:
        row |= {} if row["ms_per_round"] else dict.fromkeys(of_rounds)
        row |= {name: row.get(name) or None for name in ("record_s", "fraction_of_floor")}
    columns: list[Column] = [
        ("engine", "{engine}"), ("batch", "{batch_size}"), ("tokens/s", "{tokens_per_s:.0f}"),
        ("against plain", "{ratio_to_hf_generate:.2f}×"),
        *[("against first method", "{ratio_to_first_method:.2f}×")] * ("ratio_to_first_method" in rows[0]),
        ("ms/round", "{ms_per_round:.1f}"), *((stage, f"{{share_{stage}:.0%}}") for stage in stages),
        ("outside forward", "{share_outside_forward:.1%}"),
        *[("record s", "{record_s:.2f}")] * any(row["record_s"] for row in rows),
        *[("floor/time", "{fraction_of_floor:.0%}")] * with_floor,
        *[("idle", "{share_idle:.0%}"), ("memory", lambda row: FORMAT("{peak_memory_bytes:.1G} GB", (), row))] * on_gpu,
    ]  # fmt: skip
    return tabulate(columns, rows)


def anatomy_table(data: Row) -> Table:
    """One line an engine and context: share of the round at every batch size, the rest at the largest."""
    sizes, rows = sorted({row["batch_size"] for row in data["rows"]}), []
    for fit in map(asdict, scalings([AnatomyRow(**row) for row in data["rows"]])):
        here = {r["batch_size"]: r for r in data["rows"] if all(r[n] == fit[n] for n in ("engine", "context_tokens"))}
        shares = {f"at_{size}": here[size]["share_realign"] for size in sizes}
        rows.append(here[sizes[-1]] | shares | {"verdict": fit["verdict"], "fit": exponent_cells(fit)})
    last = sizes[-1]
    columns: list[Column] = [
        ("engine", "{engine}"), ("context", "{context_tokens}"),
        *((f"share at {size}", f"{{at_{size}:.1%}}") for size in sizes),
        (f"operations at {last}", "{host_operations_per_round:.1f}"), (f"MB at {last}", "{bytes_per_round:.1M}"),
        (f"ms at {last}", "{realign_ms_per_round:.2f}"), (f"of bandwidth at {last}", "{fraction_of_bandwidth:.0%}"),
        ("exponent", lambda row: row["fit"][0]), ("95 % interval", lambda row: row["fit"][1]),
        ("growth", "{verdict}"), ("bound", "{bound}"), (f"checks at {last}", "{share_checks:.1%}"),
    ]  # fmt: skip
    return tabulate(columns, rows)


def median_ratio(row: Row) -> str:
    """Of the ratios within repeats."""
    return f"{statistics.median(row['ratios']):.2f}×"


def span_of_ratios(row: Row) -> str:
    """Least and most of them."""
    return f"{min(row['ratios']):.2f} … {max(row['ratios']):.2f}"


def kernel_names(row: Row) -> str:
    """Kernels that take most of the time."""
    return "; ".join(
        f"`{k['name'][:50].replace('|', '/')}` × {k['count']}: {k['ms']:.1f} ms" for k in row["by_name"][:MOST_KERNELS]
    )


PAPER = {
    "paper eqspec": "their EQSPEC, tokens/s",
    "paper exspec": "their EXSPEC, tokens/s",
    "eqspec": "`eqspec` over their EQSPEC",
    "exspec": "`exspec` over their EXSPEC",
    "inplace": "`inplace` over their EXSPEC",
    "paper transformers": "`generate` of theirs, tokens/s",
    "transformers": "`generate` of ours over theirs",
}


def paper_table(data: Row) -> Table:
    """Speeds of the paper's code, and ratios to them, a line a batch size."""
    cells = []
    for row in data["rows"]:
        shown = f"{median_ratio(row)} ({span_of_ratios(row)})" if "ratios" in row else f"{row['median']:.0f}"
        cells.append((str(row["batch_size"]), PAPER[row["engine"]], shown))
    return pivoted("batch", cells)


def paper_note(data: Row) -> str:
    """How many outputs are exact, of all engines and batch sizes."""
    exact = [row["exact"] for row in data["rows"]]
    return f"\nOutputs that equal ordinary decoding: {sum(exact)} of {data['prompts'] * len(exact)}.\n"


# --- verdicts --------------------------------------------------------------------------------------------------------

TIES_LEGEND = (
    "\nregret: how far a token's logit is below the largest one; 0 means that the two logits are equal, in the "
    "number format of the run. threshold: twice the most that rounding alone moves a logit, the largest regret "
    "that a tie may have; 0 means that it moved none. prefixes: texts that the rounding was measured on.\n"
)
TIES: list[Column] = [
    ("run", "{run}"), ("verdict", "{verdict}"), ("exact", "{exact}"), ("tie", "{tie}"), ("bug", "{bug}"),
    ("largest regret", "{largest_regret:.4g}"), ("threshold", "{threshold:.4g}"), ("prefixes", "{num_prefixes}"),
]  # fmt: skip

# --- drafters, budgets, laws -----------------------------------------------------------------------------------------


def drafters_table(data: Row) -> Table:
    """Drafters beside each other and beside none, as ratios to plain batched generation in the same run."""
    columns: list[Column] = [
        ("drafter", lambda row: f"`{row['engine'].split()[-1]}`" if " " in row["engine"] else "none"),
        ("against plain", "{ratio_to_hf_generate:.2f}×"), ("tokens per row and round", "{mean_acceptance_length:.2f}"),
        ("drafts accepted", lambda row: FORMAT("{draft_acceptance_rate:.0%}", (), row) if " " in row["engine"] else ""),
        ("draft ms", "{ms_draft:.1f}"), ("verify ms", "{ms_verify:.1f}"),
    ]  # fmt: skip
    return tabulate(columns, [row for row in data["rows"] if row["engine"] != "hf_generate"])


def law_cell(row: Row) -> str:
    """Total variation, and whether the engine refuses."""
    distance = f"{row['total_variation']:.4f}" if row["total_variation"] else "0"
    return distance if row["allowed"] else f"{distance}, refused"


def interval(values: list[float], digits: str = ".2f") -> str:
    """A value with its interval."""
    value, low, high = (f"{value:{digits}}" for value in values)
    return f"{value} [{low}, {high}]"


def judged_budgets(data: Row) -> Table:
    """Budgets over the best fixed number of drafts and over none, by rate."""
    cells = []
    for row in data["judged"]:
        name, _, best = row["over"].partition(", fixed ")
        heading = f"`{row['budget']}` over {'the best fixed' if name == 'best' else 'none'}"
        shown = interval([row["throughput"], row["throughput_low"], row["throughput_high"]], ".3f")
        cells.append((f"{row['rate_per_s']:g}", heading, shown + (f" (k = {best})" if best else "")))
    return pivoted("requests/s", cells)


def measured_budgets(data: Row) -> Table:
    """The best fixed number of drafts over none, and each budget that adapts over both, a line a batch size."""
    cells = []
    for row in sorted(data["rows"], key=lambda row: row["budget"] != row["measured"]["best"]):
        size, name = str(row["batch_size"]), row["budget"]
        none = f"{interval(row['measured']['over_none'])}, simulated {row['simulated']['over_none'][0]:.2f}"
        if name == row["measured"]["best"]:
            cells.append((size, "the best fixed over none", f"{none} (k = {name.removeprefix('fixed ')})"))
        elif not name.startswith("fixed"):
            cells.append((size, f"`{name}` over the best fixed", interval(row["measured"]["over_best"])))
            cells.append((size, f"`{name}` over none", none))
    return pivoted("rows", cells)


LAW_TERMS = {
    "per_tenfold_tokens": "ten times the training tokens",
    "per_tenfold_parameters": "ten times the parameters",
    "tokens_squared": "square of the first logarithm, added alone",
    "parameters_squared": "square of the second, added alone",
    "product": "their product, added alone",
}


def scaling_table(data: Row) -> Table:
    """Mean acceptance length of every draft, a line a size and a column a training, and where the law bends."""
    at, bends = "{:,} tokens".format, f"bends, at {data['bend']['tokens_per_round']:.2f} tokens a round, after"
    drafts = sorted(data["drafts"], key=lambda draft: draft["training_tokens"])
    cells = [(f"{d['parameters']:,}", at(d["training_tokens"]), f"{d['mean_acceptance_length']:.3f}") for d in drafts]
    for bend in data["bend"]["drafts"]:
        value, low, high = (f"10^{tokens:.1f}" for tokens in bend["log10_training_tokens"])
        cells.append((f"{bend['parameters']:,}", bends, f"{value} tokens [{low}, {high}]"))
    return pivoted("parameters", cells)


def scaling_note(data: Row) -> str:
    """What the lengths are means of, and the coefficients of the law and of the straight line."""
    what = f"Mean acceptance length, k = {data['num_speculative_tokens']}, {data['prompts']} prompts"
    law, straight = data["intervals"] | data["beyond"], data["straight"]
    rows = [
        [title, interval(law[name], "+.3f"), interval(straight[name], "+.3f") if name in straight else ""]
        for name, title in LAW_TERMS.items()
    ]
    missed = [f"{fit['left_out_tokens']:.3f} tokens" for fit in (data, straight)]
    rows.append(["a draft left out, root mean square", *missed])
    fits = markdown_table(["", "law: logit of the probability", "straight line: tokens"], rows)
    bundled = f"the bundled draft, which was distilled as well, has {data['bundled_draft']:.2f} on them."
    return f"\n{what}; {bundled}\n\n{fits}"


# --- memory, execution, latency, speed -------------------------------------------------------------------------------

PLANS: list[Column] = [
    ("budget, MiB", "{budget_bytes:.1i}"),
    ("rows, drafts, drafter", "`{method}`, {batch_size}, {num_speculative_tokens}, `{drafter}`"),
    ("planned, MiB", "{planned_bytes:.1i}"), ("measured, MiB", "{measured_bytes:.1i}"),
    ("tokens/s", lambda row: f"{statistics.mean(row['ratios']):.2f} ({span_of_ratios(row)})"),
    ("simulated", "{simulated_ratio:.2f}"),
]  # fmt: skip


def memory_note(data: Row) -> str:
    """A simulated server by room for K/V, layout by layout."""
    server = "A server with the costs of an H100, Qwen3 8B and 0.6B, simulated; 95 % intervals:"
    rooms = [(r["room_gib"], r["layout"], [r["ratio"], r["low"], r["high"]]) for r in data["server"]]
    cells = [(f"{room:g}", f"`{layout}`", interval(found)) for room, layout, found in rooms]
    return f"\n{server}\n\n{markdown_table(*pivoted('K/V, GiB', cells))}"


OVERLAP: list[Column] = [
    ("costs", "{machine}"), ("rows", "{rows}"), ("fixed / drafting, ms", "{fixed_s:.1m} / {draft_s:.1m}"),
    ("over half as many rows", "{half:.2f} [{half_low:.2f}, {half_high:.2f}]"),
    ("over as many rows", "{equal:.2f} [{equal_low:.2f}, {equal_high:.2f}]"),
    ("expected", "{expected_half:.2f}, {expected_equal:.2f}"),
]  # fmt: skip


KEYS = str.maketrans(" -", "__")


def latency_table(data: Row) -> Table:
    """Served runs: measured over simulated, a line a method."""

    def cell(key: str, spec: str) -> Callable[[Row], str]:
        return lambda run: FORMAT(f"{{measured:{spec}}} / {{simulated:{spec}}}", (), run["metrics"][key])

    waits = [(name, q) for name in ("first token", "inter-token") for q in (50, 90, 99)]
    columns: list[Column] = [("method", "{method}"), ("tokens/s", cell("tokens_per_s", ".1f"))]
    columns += [(f"{name} {q} %", cell(f"{name.translate(KEYS)}_p{q}_s", ".0m")) for name, q in waits]
    return tabulate(columns, data["runs"])


def latency_note(data: Row) -> str:
    """The setting of the first run, which is that of all."""
    run = data["runs"][0]
    return (
        f"\n{run['num_sequences']} requests that came at {run['rate_per_s']:.2g} a second, "
        f"batch size {run['batch_size']}, {run['device']}; measured / simulated, waits in ms.\n"
    )


def speed_rows(data: Row) -> list[Row]:
    """A line a window."""
    pairs = ((w, speed, data["ratio"][w]) for w, speed in data["rounds_per_s"].items())
    return [{"window": window, "speed": speed, "us": 1e6 / speed, "bare": 1 / ratio} for window, speed, ratio in pairs]


SPEED: list[Column] = [
    ("window", "{window}"), ("rounds per CPU second", "{speed:,.0f}"), ("µs a round", "{us:.1f}"),
    ("bare timeouts a round", "{bare:.0f}"),
]  # fmt: skip


def speed_note(data: Row) -> str:
    """What SimPy alone does, and the setting."""
    bare = f"{data['simpy_timeouts_per_s']:,.0f} bare timeouts per CPU second"
    return f"\n{bare}; batch size {data['batch_size']}, {data['device']}.\n"


KINDS = {
    "brief": Kind(brief_table, brief_note, has_origin=False),
    "demo": Kind(lambda data: (list(DEMO_HEADINGS), [demo_cells(row) for row in data["rows"]]), demo_note),
    "bench": Kind(bench_table),
    "paper": Kind(paper_table, paper_note),
    "anatomy": Kind(anatomy_table),
    "verify": of_rows(
        ("method", "{method}"), ("batch", "{batch_size}"), ("exact", "{exact}/{prompts}"), ("partial", "{partial:.1%}"),
        ("acceptance length", "{mean_acceptance_length:.2f}"), ("grouped", "{grouping_rate:.1%}"),
        ("violations", lambda row: str(len(row["violations"]))), key="results",
    ),
    "bitwise": of_rows(
        ("method", "{method}"), ("batch", "{batch_size}"), ("tokens equal", "{exact}/{prompts}"),
        ("equal to the last bit", "{bitwise}/{prompts}"), ("acceptance length", "{mean_acceptance_length:.2f}"),
        key="results",
    ),
    "ties": Kind(
        lambda data: tabulate(TIES, [{"run": run} | found for run, found in data["judgements"].items()]),
        lambda data: TIES_LEGEND,
    ),
    "residents": of_rows(
        ("method", "{method}"), ("rows", "{batch_size}"), ("exact", "{exact}/{prompts}"),
        ("resident, most", "{most_residents}"), ("resident, mean", "{mean_residents:.1f}"),
        ("K/V in use, MB", "{kv_peak_bytes:.1M}"), ("of tokens, MB", "{kv_live_bytes:.1M}"),
        ("preemptions", "{num_preemptions}"), ("rounds", "{num_rounds}"), ("speed", median_ratio),
        ("least … most", span_of_ratios),
    ),
    "joining": of_rows(
        ("method", "{method}"), ("usual gap, ms", "{usual_gap_s:.0m}"), ("longest gap, ms", "{longest_gap_s:.0m}"),
        ("first token, ms", "{first_token_s:.0m}"), ("longest gap", median_ratio), ("least … most", span_of_ratios),
    ),
    "kernels": of_rows(
        ("models", "{name}"), ("ms/round", "{ms_per_round:.1f}"), ("draft, ms", "{ms_draft:.1f}"),
        ("verify, ms", "{ms_verify:.1f}"), ("device busy, ms", "{ms_busy:.1f}"), ("kernels", "{kernels}"),
        ("most of the time", kernel_names), key="variants",
    ),
    "drafters": Kind(drafters_table),
    "acceptance": Kind(
        lambda data: (list(RULE_HEADINGS), [rule_cells(row) for row in data["rows"]])
    ),
    "capacity": of_rows(
        ("drafts a row", "{drafts_per_row}"), ("fixed", "{fixed:.3f}"), ("capacity", "{capacity:.3f}"),
        ("ratio", lambda row: f"{row['capacity'] / row['fixed']:.2f}×"),
    ),
    "law": Kind(
        lambda data: pivoted(
            "drafter, draft budget",
            [(f"`{r['drafter']}`, {r['draft_budget']}", r["acceptance"], law_cell(r)) for r in data["rows"]],
        )
    ),
    "budgets": Kind(lambda data: judged_budgets(data) if "judged" in data else measured_budgets(data)),
    "scaling": Kind(scaling_table, scaling_note),
    "memory": Kind(lambda data: tabulate(PLANS, data["engine"]), memory_note),
    "overlap": of_rows(*OVERLAP, key="judged"),
    "latency": Kind(latency_table, latency_note),
    "speed": Kind(lambda data: tabulate(SPEED, speed_rows(data)), speed_note),
}  # fmt: skip
