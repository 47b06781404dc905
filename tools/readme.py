"""Render the tables of README.md and docs/ from committed data files.

Run from the repository root: ``python tools/readme.py`` rewrites what is stale, ``--check`` only reports (exit code 1).
A table stands between ``<!-- table:NAME -->`` and ``<!-- /table -->``.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from refimpl.demo import DEMO_HEADINGS, demo_cells

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
BLOCK = re.compile(r"(<!-- table:(?P<name>[\w-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def markdown_table(headings: Iterator[str] | tuple[str, ...] | list[str], rows: list[list[str]]) -> str:
    """A table whose first column is flush left, the others flush right."""
    heads = list(headings)
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [heads, rule, *rows])


def origin(meta: dict[str, Any]) -> str:
    """One line that says where a table's numbers come from."""
    libraries = ", ".join(f"{name} {version}" for name, version in meta["libraries"].items())
    return (
        f"\n`{meta['command']}` · {meta['device']}, {meta['torch_threads']} torch threads · {libraries} · "
        f"commit {meta['commit']} · {meta['utc_time']}\n"
    )


def demo(data: dict[str, Any]) -> str:
    """The demonstration's table."""
    return markdown_table(DEMO_HEADINGS, [demo_cells(row) for row in data["rows"]]) + origin(data["meta"])


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


def bench(data: dict[str, Any]) -> str:
    """Throughput of every engine, as a ratio to plain batched generation in the same interleaved run."""
    rows = [
        [
            row["engine"],
            str(row["batch_size"]),
            f"{row['tokens_per_s']:.0f}",
            f"{row['ratio_to_hf_generate']:.2f}×",
            f"{row['ms_per_round']:.1f}" if row["ms_per_round"] else "",
            *(
                f"{100 * row[f'share_{stage}']:.0f} %" if row["ms_per_round"] else ""
                for stage in ("draft", "verify", "realign", "host")
            ),
            f"{100 * row['share_outside_forward']:.1f} %" if row["ms_per_round"] else "",
        ]
        for row in data["rows"]
    ]
    headings = ["engine", "batch", "tokens/s", "against plain", "ms/round", "draft", "verify", "realign", "host"]
    return markdown_table([*headings, "outside forward"], rows) + origin(data["meta"])


RENDERERS: dict[str, Callable[[dict[str, Any]], str]] = {"demo": demo, "verify": verify, "bench": bench}


def render(text: str) -> str:
    """Replace every table of a page; a table whose data file is missing says so."""

    def replace(match: re.Match[str]) -> str:
        path = RESULTS / f"{match['name']}.json"
        kind = match["name"].partition("-")[0]
        body = RENDERERS[kind](json.loads(path.read_text())) if path.exists() else "Not measured yet.\n"
        return f"{match[1]}\n{body}\n{match[3]}"

    return BLOCK.sub(replace, text)


def pages() -> list[Path]:
    """Pages that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> int:
    """Rewrite or check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="report stale pages, change nothing")
    check = parser.parse_args().check
    stale = [page for page in pages() if render(page.read_text()) != page.read_text()]
    for page in stale:
        print(f"{page.relative_to(ROOT)} is stale" if check else f"{page.relative_to(ROOT)} rewritten")
        if not check:
            page.write_text(render(page.read_text()))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
