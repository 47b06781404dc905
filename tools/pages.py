"""Tables for the pages that tools write."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any


def markdown_table(headings: Iterable[str], rows: Iterable[Sequence[str]], texts: Collection[str] = ()) -> str:
    """A table whose first column is flush left, and those named in `texts`; the others are flush right."""
    heads = list(headings)
    rule = ["---" if at == 0 or head in texts else "---:" for at, head in enumerate(heads)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [heads, rule, *rows])


def line_of(lines: Iterable[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The first line with these values."""
    return next(line for line in lines if all(line[name] == value for name, value in wanted.items()))


def origin(meta: dict[str, Any]) -> str:
    """One line that says where a table's numbers come from, and what was computed anew since."""
    revised = f" · {meta['revised']}" if "revised" in meta else ""
    libraries = ", ".join(f"{name} {version}" for name, version in meta["libraries"].items())
    machine = f"{meta['device']}, {meta['torch_threads']} torch threads" if "device" in meta else "simulated"
    return f"\n`{meta['command']}` · {machine} · {libraries} · commit {meta['commit']} · {meta['utc_time']}{revised}\n"
