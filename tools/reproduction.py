"""docs/reproduction.md and its figures, from docs/reproduction.json.

Run from the repository root: ``python tools/reproduction.py`` renders them, ``--check`` only reports what is stale
(exit code 1), ``--run`` simulates everything anew first and writes the data (minutes), ``--run STUDY …`` parts of it.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import reproduction_figures as figures
from reproduction_page import page
from reproduction_studies import COUNTS, STUDIES

from refimpl.core import provenance

ROOT = Path(__file__).parent.parent
DATA, PAGE = ROOT / "docs" / "reproduction.json", ROOT / "docs" / "reproduction.md"


def renewed(data: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The data with these studies run again, or with all of them if none is named."""
    from simulator.studies.published import load_constants

    if names and data["meta"]["replications"] != COUNTS:
        raise SystemExit("the numbers of replications have changed: run all studies")
    constants, stamp = load_constants(), provenance.stamp("numpy", "scipy", "simpy")
    found = {name: STUDIES[name](constants) for name in names or STUDIES}
    if not names:
        return {"meta": {"command": "python tools/reproduction.py --run", "replications": COUNTS} | stamp} | found
    stamped = {name: {"commit": stamp["commit"], "utc_time": stamp["utc_time"]} for name in names}
    return data | found | {"again": data.get("again", {}) | stamped}


def stale(data: dict[str, Any]) -> list[str]:
    """What differs from the data."""
    same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page(data)
    return ([] if same else [PAGE.name]) + [name for name in figures.FIGURES if not figures.is_fresh(name, data)]


def main(arguments: list[str] | None = None) -> int:
    """Render, check or run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="report what is stale")
    parser.add_argument(
        "--run", nargs="*", choices=[*STUDIES], metavar="STUDY", help="simulate all or some parts first"
    )
    options = parser.parse_args(arguments)
    data = json.loads(DATA.read_text(encoding="utf-8"))
    if options.run is not None:
        data = renewed(data, options.run)
        DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if options.check:
        print(*stale(data) or ["nothing is stale"], sep="\n")
        return 1 if stale(data) else 0
    PAGE.write_text(page(data), encoding="utf-8")
    for name in figures.FIGURES:
        figures.write(name, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
