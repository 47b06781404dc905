"""Fill pages: prose stays in Markdown, and what tools compute stands between markers."""

import re
from collections.abc import Iterable, Mapping, Sequence


def filled(text: str, owner: str, parts: Mapping[str, str]) -> str:
    """A page whose every ``<!-- owner:NAME -->`` … ``<!-- /owner -->`` has its part; white space at markers stays.

    Raises:
        KeyError: the page has a name that is not among the parts.
    """
    marked = re.compile(rf"(<!-- {owner}:([\w-]+) -->\s*).*?(\s*<!-- /{owner} -->)", re.DOTALL)
    return marked.sub(lambda found: found[1] + parts[found[2]].strip() + found[3], text)


def markdown_table(headings: Sequence[str], lines: Iterable[Sequence[str]], texts: Sequence[str] = ()) -> str:
    """A table whose first column is flush left, and those named in `texts`; the others are flush right."""
    rule = ["---" if at == 0 or head in texts else "---:" for at, head in enumerate(headings)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [headings, rule, *lines])
