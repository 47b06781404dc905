"""Render the tables of README.md and docs/ from committed data files.

Run from the repository root: ``python tools/readme.py`` rewrites what is stale, ``--check`` only reports (exit code 1).
A table stands between ``<!-- table:NAME -->`` and ``<!-- /table -->``; `readme_tables` and `readme_bugs` have the
columns of each.
"""

import argparse
import sys
from pathlib import Path

from pages import filled
from readme_bugs import BUG_TABLES
from readme_tables import DATA_TABLES

ROOT = Path(__file__).parent.parent
TABLES = DATA_TABLES | BUG_TABLES


def main() -> int:
    """Rewrite or check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="report stale pages, change nothing")
    check = parser.parse_args().check
    texts = {page: page.read_text() for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
    tables = {name: table() for name, table in TABLES.items()}
    stale = {page: new for page, text in texts.items() if (new := filled(text, "table", tables)) != text}
    for page, new in stale.items():
        print(f"{page.relative_to(ROOT)} is stale" if check else f"{page.relative_to(ROOT)} rewritten")
        if not check:
            page.write_text(new)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
