"""Render the tables of README.md and docs/ from committed data files.

Run from the repository root: ``python tools/readme.py`` rewrites what is stale, ``--check`` only reports (exit code 1).
A table is between ``<!-- table:NAME -->`` and ``<!-- /table -->``. `readme_tables` says for each kind, the first word
of a name, what the columns are; the data are in docs/results/NAME.json. ``brief-NAME`` is a short form of NAME.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from readme_simulated import SIMULATED
from readme_tables import KINDS, render_table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
SHIPPED = {"scaling": ROOT / "simulator" / "data" / "scaling" / "tiny.json"}  # results that the simulator reads
BLOCK = re.compile(r"(<!-- table:(?P<name>[\w-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def body(name: str) -> str:
    """A table with what is said below it; a table whose data file is missing says so."""
    if name in SIMULATED:
        return SIMULATED[name]()
    path = SHIPPED.get(name, RESULTS / f"{name.removeprefix('brief-')}.json")
    if not path.exists():
        return "Not measured yet.\n"
    return render_table(KINDS[name.partition("-")[0]], json.loads(path.read_text()))


def render(text: str) -> str:
    """Replace every table of a page."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{body(match['name'])}\n{match[3]}", text)


def main() -> int:
    """Rewrite or check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="report stale pages, change nothing")
    check = parser.parse_args().check
    texts = {page: page.read_text() for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
    stale = {page: new for page, text in texts.items() if (new := render(text)) != text}
    for page, new in stale.items():
        print(f"{page.relative_to(ROOT)} is stale" if check else f"{page.relative_to(ROOT)} rewritten")
        if not check:
            page.write_text(new)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
