"""Render the tables of README.md and docs/ from committed data files.

Run from the repository root: ``python tools/readme.py`` rewrites what is stale, ``--check`` only reports (exit code 1).
A table is between ``<!-- table:NAME -->`` and ``<!-- /table -->``. ``brief-NAME`` is a short form of the table NAME.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import readme_measured as tables
from pages import markdown_table, origin
from readme_simulated import recorded, roofline, simulator, trust

from refimpl.bench.demo import DEMO_HEADINGS, NO_DRAFTS, PLAIN, demo_cells, demo_legend
from refimpl.commands.acceptance import HEADINGS as ACCEPTANCE_HEADINGS
from refimpl.commands.acceptance import cells as acceptance_cells

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
SHIPPED = {"scaling": ROOT / "simulator" / "data" / "scaling" / "tiny.json"}  # results that the simulator reads
BLOCK = re.compile(r"(<!-- table:(?P<name>[\w-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def demo(data: dict[str, Any]) -> str:
    """The demonstration's table."""
    table = markdown_table(DEMO_HEADINGS, [demo_cells(row) for row in data["rows"]])
    legend = "\n\n".join(demo_legend(data["rows"], data["meta"]["prompt_lens"]))
    return f"{table}\n{legend}\n{origin(data['meta'])}"


BRIEF_DEMO = ("method", "exact", "tokens/s", "tokens per row and round", "time spent moving K/V")


def brief_demo(data: dict[str, Any]) -> str:
    """The demonstration at its batch size alone, with the columns that a first reader needs."""
    size = data["meta"]["settings"]["batch_size"]
    rows = [row for row in data["rows"] if row["batch_size"] == size]
    table = markdown_table(BRIEF_DEMO, [_brief_cells(row) for row in rows])
    setting = (
        f"{len(data['meta']['prompt_lens'])} prompts, batch size {size}, "
        f"{data['meta']['settings']['max_new_tokens']} new tokens each, bundled pair, {data['meta']['device']}. "
        "*exact* counts the outputs with exactly the tokens of one-at-a-time decoding."
    )
    return f"{table}\n{setting}\n"


def _brief_cells(row: dict[str, Any]) -> list[str]:
    names = {PLAIN: "transformers `generate`", NO_DRAFTS: "`inplace` without drafts"}
    name = names.get(row["method"], f"`{row['method']}`")
    cells = [name, f"{row['exact']}/{row['prompts']}", f"{row['tokens_per_s']:.0f}"]
    if row["rounds"] is None:  # plain decoding adds one token to a row in each step, and has no layout
        return [*cells, "1.00", ""]
    return [*cells, f"{row['tokens_per_row_round']:.2f}", f"{100 * row['share_realign']:.1f} %"]


def verify(data: dict[str, Any]) -> str:
    """Exact matches of every method and batch size, one table a file."""
    rows = [
        [
            row["method"],
            str(row["batch_size"]),
            f"{row['exact']}/{data['prompts']}",
            f"{100 * row['partial']:.1f} %",
            f"{row['mean_acceptance_length']:.2f}",
            f"{100 * row['grouping_rate']:.1f} %",
            str(len(row["violations"])),
        ]
        for row in data["results"]
    ]
    headings = ["method", "batch", "exact", "partial", "acceptance length", "grouped", "violations"]
    return markdown_table(headings, rows) + origin(data["meta"])


def measured(data: dict[str, Any], table: tables.Table) -> str:
    """A table, the rates of the device where they were measured, and where it all comes from."""
    return markdown_table(*table) + tables.rates_line(data["meta"]) + origin(data["meta"])


def drafters(data: dict[str, Any]) -> str:
    """Drafters beside each other and beside none, as ratios to plain batched generation in the same interleaved run."""
    return measured(data, tables.drafters_table(data["rows"]))


def memory(data: dict[str, Any]) -> str:
    """Throughput against memory: plans of the engine, and a simulated server."""
    server = "A server with the costs of an H100, Qwen3 8B and 0.6B, simulated; 95 % intervals:"
    plans, rooms = tables.plans_table(data["engine"]), tables.rooms_table(data["server"])
    return f"{markdown_table(*plans)}\n{server}\n\n{markdown_table(*rooms)}{origin(data['meta'])}"


def capacity(data: dict[str, Any]) -> str:
    """A number of drafts for the round beside as many for each row."""
    return measured(data, tables.capacity_table(data["rows"]))


def acceptance(data: dict[str, Any]) -> str:
    """Drafts accepted by the rules that keep the law."""
    return measured(data, (list(ACCEPTANCE_HEADINGS), [acceptance_cells(row) for row in data["rows"]]))


def budgets(data: dict[str, Any]) -> str:
    """Tokens per second of adaptive budgets over the best fixed number of drafts and none, by rate or batch size."""
    if "judged" not in data:
        return measured(data, tables.curve_table(data["rows"]))
    names = list(dict.fromkeys(row["budget"] for row in data["judged"]))
    lines: dict[float, list[str]] = {}
    for row in data["judged"]:
        cells = lines.setdefault(row["rate_per_s"], [])
        best = f" (k = {row['over'].removeprefix('best, fixed ')})" if row["over"].startswith("best") else ""
        cells.append(f"{row['throughput']:.3f} [{row['throughput_low']:.3f}, {row['throughput_high']:.3f}]{best}")
    headings = ["requests/s", *(f"`{name}` over {other}" for name in names for other in ("the best fixed", "none"))]
    return markdown_table(headings, [[f"{rate:g}", *cells] for rate, cells in lines.items()]) + origin(
        data["environment"]
    )


def overlap(data: dict[str, Any]) -> str:
    """Tokens per second of overlapped over serial execution, a line a machine."""
    headings = ["costs", "rows", "fixed / drafting, ms", "over half as many rows", "over as many rows", "expected"]
    lines = []
    for row in data["judged"]:
        seconds = f"{1e3 * row['fixed_s']:.1f} / {1e3 * row['draft_s']:.1f}"
        found = [f"{row[name]:.2f} [{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]" for name in ("half", "equal")]
        expected = f"{row['expected_half']:.2f}, {row['expected_equal']:.2f}"
        lines.append([row["machine"], str(row["rows"]), seconds, *found, expected])
    return markdown_table(headings, lines) + origin(data["environment"])


def latency(data: dict[str, Any]) -> str:
    """Served runs: measured over simulated, in milliseconds, a line a method."""
    headings = [
        "method",
        "tokens/s",
        *(f"{name} {q} %" for name in ("first token", "inter-token") for q in (50, 90, 99)),
    ]
    keys = ["tokens_per_s", *(f"{name}_p{q}_s" for name in ("first_token", "inter_token") for q in (50, 90, 99))]
    rows = []
    for run in data["runs"]:
        pairs = [(run["metrics"][key]["measured"], run["metrics"][key]["simulated"]) for key in keys]
        speed, *waits = pairs
        cells = [f"{speed[0]:.1f} / {speed[1]:.1f}", *(f"{1000 * a:.0f} / {1000 * b:.0f}" for a, b in waits)]
        rows.append([run["method"], *cells])
    run = data["runs"][0]
    setting = (
        f"\n{run['num_sequences']} requests that came at {run['rate_per_s']:.2g} a second, "
        f"batch size {run['batch_size']}, {run['device']}; measured / simulated, waits in ms.\n"
    )
    return markdown_table(headings, rows) + setting + origin(data["environment"])


def speed(data: dict[str, Any]) -> str:
    """How fast the simulator itself is."""
    bare = f"{data['simpy_timeouts_per_s']:,.0f} bare timeouts per CPU second"
    setting = f"\n{bare}; batch size {data['batch_size']}, {data['device']}.\n"
    return markdown_table(*tables.speed_table(data)) + setting + origin(data["environment"])


def ties(data: dict[str, Any]) -> str:
    """Verdicts on outputs that differ from the oracle's, and what their numbers mean."""
    legend = (
        "regret: how far a token's logit is below the largest one; 0 means that the two logits are equal, in the "
        "number format of the run. threshold: twice the most that rounding alone moves a logit, the largest regret "
        "that a tie may have; 0 means that it moved none. prefixes: texts that the rounding was measured on."
    )
    return f"{markdown_table(*tables.ties_table(data))}\n{legend}\n{origin(data['meta'])}"


def law(data: dict[str, Any]) -> str:
    """Total variation of every combination of drafter, budget and rule, one column a rule."""
    return measured(data, tables.law_table(data["rows"]))


def scaling(data: dict[str, Any]) -> str:
    """Drafts by size and training, and the law fitted to them."""
    lengths, fits = (markdown_table(*table) for table in (tables.scaling_table(data), tables.scaling_fits(data)))
    return f"{lengths}{tables.scaling_legend(data)}{fits}{origin(data['meta'])}"


MEASURED: dict[str, Callable[[dict[str, Any]], tables.Table]] = {
    "bench": tables.bench_table,
    "anatomy": tables.anatomy_table,
    "bitwise": tables.bitwise_table,
    "residents": tables.residents_table,
    "joining": tables.joining_table,
    "kernels": tables.kernels_table,
}
RENDERERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "brief": brief_demo,
    "demo": demo,
    "verify": verify,
    "drafters": drafters,
    "capacity": capacity,
    "memory": memory,
    "acceptance": acceptance,
    "budgets": budgets,
    "overlap": overlap,
    "latency": latency,
    "law": law,
    "scaling": scaling,
    "speed": speed,
    "ties": ties,
    **{name: lambda data, table=table: measured(data, table(data)) for name, table in MEASURED.items()},
}


SIMULATED: dict[str, Callable[[], str]] = {  # tables of what the simulator ships, and not of a file of results
    "trust": trust,
    "simulator-cpu-tiny": lambda: simulator("cpu/tiny"),
    "simulator-nvidia-h200-vicuna": lambda: simulator("nvidia-h200/vicuna"),
    "recorded-rounds": lambda: recorded(RESULTS / "bench-gpu-length3.json"),
    "roofline-nvidia-h200-vicuna": lambda: roofline("nvidia-h200/vicuna", "h200", "vicuna-7b", "vicuna-68m"),
}


def render(text: str) -> str:
    """Replace every table of a page; a table whose data file is missing says so."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"].removeprefix("brief-")
        path = SHIPPED.get(name, RESULTS / f"{name}.json")
        kind = match["name"].partition("-")[0]
        if match["name"] in SIMULATED:
            return f"{match[1]}\n{SIMULATED[match['name']]()}\n{match[3]}"
        body = RENDERERS[kind](json.loads(path.read_text())) if path.exists() else "Not measured yet.\n"
        return f"{match[1]}\n{body}\n{match[3]}"

    return BLOCK.sub(replace, text)


def pages() -> list[Path]:
    """Pages that have tables, or may have."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> int:
    """Rewrite or check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="report stale pages, change nothing")
    check = parser.parse_args().check
    texts = {page: render(page.read_text()) for page in pages()}
    stale = [page for page, text in texts.items() if text != page.read_text()]
    for page in stale:
        print(f"{page.relative_to(ROOT)} is stale" if check else f"{page.relative_to(ROOT)} rewritten")
        if not check:
            page.write_text(texts[page])
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
