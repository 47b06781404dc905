"""`verify` on parts of a prompt file, each in a process of its own, and their results as one.

A pass of a small model keeps a GPU waiting for the host, and the oracle decodes one prompt at a time: a dozen processes
on one device take a dozenth of the time. Part i of n has the prompts i, i + n, i + 2n, … of the file.

``python tools/sharded.py --parts 14 --prompts FILE --output FILE -- --bitwise --dtype bfloat16 --device cuda`` hands
what follows ``--`` to every process. The exit code is the largest of theirs; nothing is written unless all have
results.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refimpl.core.console import ended_by_signals
from refimpl.core.errors import InputError
from refimpl.core.files import check_writable, write_whole
from refimpl.core.provenance import command_line
from refimpl.pairs.names import TINY

TAIL = 1200  # characters of a failed process's output
ADDED = ("prompts", "exact", "bitwise", "num_rounds", "num_preemptions")
Report = dict[str, Any]


def arguments() -> argparse.Namespace:
    """Read the command line; what cannot be done is one line, and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=int, required=True, help="processes")
    parser.add_argument("--prompts", type=Path, default=TINY / "prompts.jsonl", help="file with one prompt per line")
    parser.add_argument("--limit", type=int, help="take only the first prompts, this many")
    parser.add_argument("--output", type=Path, required=True, help="file for the results")
    parser.add_argument("options", nargs="+", metavar="-- OPTION", help="for verify")
    given = parser.parse_args()
    try:
        check_writable(given.output)
        given.lines = [line for line in given.prompts.read_text(encoding="utf-8").splitlines() if line][: given.limit]
    except (InputError, OSError) as error:
        parser.error(str(error))
    if not 1 <= given.parts <= len(given.lines):
        parser.error(f"--parts must be from 1 to the number of prompts, {len(given.lines)}, not {given.parts}")
    return given


def run_parts(
    lines: Sequence[str], parts: int, options: Sequence[str], folder: Path, suffix: str
) -> tuple[list[Report], int]:
    """What every process has written, and the largest of their exit codes; `suffix` is that of the prompt file.

    Raises:
        SystemExit: one has written nothing; its output is shown, and the others are ended.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(parts):
            prompts = folder / f"{number}-prompts{suffix}"
            prompts.write_text("\n".join(lines[number::parts]) + "\n", encoding="utf-8")
            words = [sys.executable, "-m", "refimpl", "verify", *options]
            words += ["--prompts", str(prompts), "--output", str(folder / f"{number}.json")]
            with (folder / f"{number}.log").open("w", encoding="utf-8") as log:
                environment = os.environ | {"OMP_NUM_THREADS": "1"}
                started.append(subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=environment))
        codes = [_finished(process, number, folder) for number, process in enumerate(started)]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(parts)], max(codes)


def _finished(process: "subprocess.Popen[bytes]", number: int, folder: Path) -> int:
    code = process.wait()
    if not (folder / f"{number}.json").exists():
        print((folder / f"{number}.log").read_text(encoding="utf-8", errors="replace")[-TAIL:], file=sys.stderr)
        print(f"error: part {number} wrote nothing", file=sys.stderr)
        raise SystemExit(code or 1)
    return code


def merged(reports: Sequence[Report], **meta: Any) -> Report:
    """One report of them all; lengths are means over prompts or rounds, bytes and rows the most of any part."""
    rows = [
        _merged_rows([{"prompts": report["prompts"], **row} for report, row in zip(reports, rows, strict=True)])
        for rows in zip(*(report["results"] for report in reports), strict=True)
    ]
    prompts = sum(report["prompts"] for report in reports)
    results = [{name: value for name, value in row.items() if name != "prompts"} for row in rows]
    return {"prompts": prompts, "results": results, "meta": reports[0]["meta"] | {"parts": len(reports), **meta}}


def _merged_rows(rows: Sequence[Report]) -> Report:
    prompts, rounds = ([row[name] for row in rows] for name in ("prompts", "num_rounds"))
    return {name: _merged(name, [row[name] for row in rows], prompts, rounds) for name in rows[0]}


def _merged(name: str, values: list[Any], prompts: list[int], rounds: list[int]) -> Any:
    if name in ("method", "batch_size"):
        return values[0]
    if name in ADDED:
        return sum(values)
    if name == "violations":
        return sorted({violation for each in values for violation in each})
    if name == "divergences":
        found = [d | {"index": d["index"] * len(values) + part} for part, each in enumerate(values) for d in each]
        return sorted(found, key=lambda d: d["index"])
    if name.endswith("_bytes") or name == "most_residents":
        return max(values)
    weights = prompts if name == "partial" else rounds
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / max(1, sum(weights))


def main() -> int:
    """Run, merge and write."""
    given = arguments()
    with ended_by_signals(SystemExit), tempfile.TemporaryDirectory() as folder:
        reports, code = run_parts(given.lines, given.parts, given.options, Path(folder), given.prompts.suffix)
    write_whole(given.output, [json.dumps(merged(reports, command=command_line()), indent=1)])
    return code


if __name__ == "__main__":
    sys.exit(main())
