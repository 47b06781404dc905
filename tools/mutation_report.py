"""Results of mutation testing: data for machines, a page for readers."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from mutants import Mutant, digest
from pages import filled, markdown_table

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "results" / "mutation.json"
PAGE = ROOT / "docs" / "mutation.md"
REASONS = ROOT / "tools" / "survivors.json"  # written by hand: mutant → "kind: reason"
SCHEMA = "raggedspec.mutation/2"
KINDS = ("equivalent", "cost", "device", "gap")  # as the page says
NO_REASON = ("", "")  # of a survivor that nobody has looked at yet
KILLED = ("killed", "timeout")


def read_report() -> dict[str, Any]:
    """The last report."""
    return json.loads(DATA.read_text())


def read_reasons() -> dict[str, tuple[str, str]]:
    """Kind and reason of each survivor."""
    return {mutant: tuple(why.split(": ", 1)) for mutant, why in json.loads(REASONS.read_text()).items()}


def write_report(files: list[str], mutants: list[Mutant], fates: dict[str, str], meta: dict[str, Any]) -> None:
    """Write data and page. Files of which not every mutant is judged keep what was said of them.

    Args:
        files: all that are to be judged.
        mutants: those that there are now, of some of the files.
        fates: what became of them, by key.
        meta: provenance.
    """
    told = {file: entry for file, entry in read_report()["files"].items() if file in files}
    by_file: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_file[mutant.file].append(mutant)
    judged = {file: some for file, some in by_file.items() if all(mutant.key in fates for mutant in some)}
    new = {file: entry(file, some, fates) for file, some in judged.items()}
    for file, each in new.items():
        before = told.get(file, {})
        each["commit"] = before["commit"] if before.get("digest") == each["digest"] else meta["commit"]
    data = {"schema": SCHEMA, "meta": meta, "files": dict(sorted((told | new).items()))}
    DATA.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(as_markdown(data, read_reasons()))


def entry(file: str, mutants: list[Mutant], fates: dict[str, str]) -> dict[str, Any]:
    """Of one file: its text's digest, how many mutants there are, and the lines of those that survive."""
    lines = (ROOT / file).read_text().splitlines()
    left = {m.key.partition(":")[2]: lines[m.line - 1].strip() for m in mutants if fates[m.key] not in KILLED}
    return {"digest": digest(file), "mutants": len(mutants), "survivors": left}


def survivors(data: dict[str, Any]) -> dict[str, str]:
    """Mutants that no test noticed, and their lines."""
    return {f"{file}:{key}": code for file, entry in data["files"].items() for key, code in entry["survivors"].items()}


def share_killed(data: dict[str, Any]) -> float:
    """Killed among all mutants; equivalent ones count as survivors here."""
    return 1 - len(survivors(data)) / sum(entry["mutants"] for entry in data["files"].values())


def as_markdown(data: dict[str, Any], reasons: dict[str, tuple[str, str]]) -> str:
    """The page, with tables of the data."""
    parts = {"counts": _counts(data, reasons), "survivors": _survivors(data, reasons)}
    return filled(PAGE.read_text(), "mutants", parts)


def _counts(data: dict[str, Any], reasons: dict[str, tuple[str, str]]) -> str:
    """A row for each folder, and one for all; the share leaves equivalent mutants out."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for file, each in data["files"].items():
        kinds = [reasons.get(f"{file}:{key}", NO_REASON)[0] for key in each["survivors"]]
        row = {"mutants": each["mutants"], "survived": len(kinds), "equivalent": kinds.count("equivalent")}
        for folder in (str(Path(file).parent), "all"):
            counts[folder] += Counter(row)
    heads = ["folder", "mutants", "survived", "equivalent"]
    shares = {name: (n["mutants"] - n["survived"]) / (n["mutants"] - n["equivalent"]) for name, n in counts.items()}
    rows = [[name, *(str(n[head]) for head in heads[1:]), f"{shares[name]:.1%}"] for name, n in sorted(counts.items())]
    meta = data["meta"]
    libraries = ", ".join(f"{name} {version}" for name, version in meta["libraries"].items())
    told = f"\n`{meta['command']}` · {meta['device']} · {libraries} · {meta['utc_time']}\n"
    return markdown_table([*heads, "killed of the others"], rows) + told


def _survivors(data: dict[str, Any], reasons: dict[str, tuple[str, str]]) -> str:
    """A row for each survivor whose output may differ."""
    left = [(*mutant.split(" ", 1), code, *reasons.get(mutant, NO_REASON)) for mutant, code in survivors(data).items()]
    heads = ["mutant", "change", "line", "kind", "why no test fails"]
    rows = [
        [f"`{place.removeprefix('refimpl/')}`", change.removesuffix(" #1"), f"`{code.split('  #')[0]}`", kind, reason]
        for place, change, code, kind, reason in left
        if kind not in ("equivalent", "cost")
    ]
    return markdown_table(heads, rows, texts=heads)
