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
