"""Golden runs: what the engine and the simulator did, to the token and to ten digits, so that a change shows.

    python tools/golden.py --check      compare with tests/golden/*.json; exit code 1 when a case differs
    python tools/golden.py --write      record what the code does now
    python tools/golden.py --write simulator   one of the two files

A golden file does not say that a run is right, only that it is as it was. Every golden has a law beside it: tokens must
equal one-at-a-time decoding (tests/engine/decoding/test_exactness.py, tests/property), moves and widths follow from the
layouts (tests/property/test_moves.py), metrics obey queueing theory and conservation (test_theory.py,
test_metrics.py in tests/simulator/service).

So when a case differs and no behaviour was meant to change, the change is wrong. When it was meant to, as in a repair
of the simulator, run ``--write`` and say in the commit what changed and why; the readable numbers beside each digest
show how far it went. Seconds measured on the machine are left out.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from golden_engine import engine_cases
from golden_simulator import simulator_cases

FOLDER = Path(__file__).parent.parent / "tests" / "golden"
Cases = dict[str, dict[str, Any]]
FILES: dict[str, Callable[[], Cases]] = {"engine": engine_cases, "simulator": simulator_cases}


def as_text(cases: Cases) -> str:
    """JSON with one case a line."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
    return f"{{\n{lines}\n}}\n"


def differences(old: Cases, new: Cases) -> list[str]:
    """One line per case that was added, lost or changed; the readable numbers that differ, else which digest."""
    lines = [f"{name}: lost" for name in old.keys() - new.keys()] + [f"{name}: new" for name in new.keys() - old.keys()]
    for name in sorted(old.keys() & new.keys()):
        if old[name] != new[name]:
            keys = [key for key in {**old[name], **new[name]} if old[name].get(key) != new[name].get(key)]
            lines.append(f"{name}: " + ", ".join(f"{k} {old[name].get(k)} -> {new[name].get(k)}" for k in keys))
    return sorted(lines)


def check(name: str) -> list[str]:
    """Differences between a golden file and what the code does now."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return [f"{path} is missing: run tools/golden.py --write {name}"]
    return differences(json.loads(path.read_text()), json.loads(json.dumps(FILES[name]())))


def main() -> int:
    """Check or write; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Meant to change something? --write, and say so in the commit."
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="compare; change nothing")
    action.add_argument("--write", action="store_true", help="record what the code does now")
    parser.add_argument("files", nargs="*", choices=[[], *FILES], help="engine or simulator; default both")
    arguments = parser.parse_args()
    found = []
    for name in arguments.files or FILES:
        if arguments.write:
            (FOLDER / f"{name}.json").write_text(as_text(FILES[name]()))
        else:
            found += [f"{name}: {line}" for line in check(name)]
    print("\n".join(found) or "golden runs: " + ("written" if arguments.write else "as they were"))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
