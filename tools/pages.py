"""Tables for the pages that tools write."""

from collections.abc import Iterable, Sequence


def markdown_table(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is flush left, the others flush right."""
    heads = list(headings)
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [heads, rule, *rows])
