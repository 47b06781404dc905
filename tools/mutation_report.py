"""Results of mutation testing: data for machines, a page for readers."""

import json
from pathlib import Path
from typing import Any

from mutants import digest

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "results" / "mutation.json"
PAGE = ROOT / "docs" / "mutation.md"
REASONS = ROOT / "tools" / "survivors.json"  # written by hand: mutant → kind and reason
SCHEMA = "raggedspec.mutation/1"
KINDS = {
    "equivalent": "no input shows a difference from the original",
    "cost": "the output is the same; only time or memory differs",
    "device": "only a device that the tests do not run on could show it",
    "gap": "a test could show it, and none does",
}
KILLED = ("killed", "timeout")


def write_report(mutants: list[Any], judged: dict[str, Any], meta: dict[str, Any], seed: int) -> None:
    """Write data and page.

    Args:
        mutants: all that there are.
        judged: outcomes by key.
        meta: provenance.
        seed: of the order in which mutants were judged.
    """
    data = {"schema": SCHEMA, "meta": meta, "seed": seed, **results(mutants, judged)}
    rows = data.pop("outcomes")
    head = json.dumps(data, indent=1, ensure_ascii=False)
    body = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    DATA.write_text(f'{head[:-2]},\n "outcomes": [\n{body}\n ]\n}}\n')
    PAGE.write_text(as_markdown(json.loads(DATA.read_text()), read_reasons()))


def results(mutants: list[Any], judged: dict[str, Any]) -> dict[str, Any]:
    """Counts by file, and one entry a judged mutant; a survivor's shows its line."""
    counts: dict[str, int] = {}
    outcomes = []
    for mutant in sorted(mutants, key=lambda m: (m.file, m.line, m.change, m.number)):
        counts[mutant.file] = counts.get(mutant.file, 0) + 1
        if mutant.key not in judged:
            continue
        outcome = judged[mutant.key]
        row = outcome.as_row()
        if outcome.fate not in KILLED:
            row["code"] = (ROOT / mutant.file).read_text().splitlines()[mutant.line - 1].strip()
        outcomes.append(row)
    return {"mutants": counts, "outcomes": outcomes}


def reported() -> list[dict[str, Any]]:
    """Outcomes of the last report."""
    return json.loads(DATA.read_text())["outcomes"] if DATA.exists() else []


def read_reasons() -> dict[str, dict[str, str]]:
    """Why each survivor survives."""
    return json.loads(REASONS.read_text()) if REASONS.exists() else {}


def survivors(data: dict[str, Any]) -> list[dict[str, str]]:
    """Outcomes of the mutants that no test noticed."""
    return [row for row in data["outcomes"] if row["fate"] not in KILLED]


def stale(data: dict[str, Any]) -> list[dict[str, str]]:
    """Outcomes of files that have changed since."""
    now = {file: digest(file) for file in data["mutants"]}
    return [row for row in data["outcomes"] if now[row["mutant"].partition(":")[0]] != row["file"]]


def told_stale(data: dict[str, Any]) -> str:
    """How many, and of which files."""
    some = stale(data)
    files = ", ".join(dict.fromkeys(row["mutant"].partition(":")[0] for row in some)) or "none"
    return f"{len(some)} of {len(data['outcomes'])} mutants were judged in files that have changed since: {files}"


def share_killed(data: dict[str, Any]) -> float:
    """Killed among the judged; equivalent mutants count as survivors here."""
    return 1 - len(survivors(data)) / len(data["outcomes"])


def as_markdown(data: dict[str, Any], reasons: dict[str, dict[str, str]]) -> str:
    """The page."""
    rows, left = data["outcomes"], survivors(data)
    equivalent = sum(reasons.get(row["mutant"], {}).get("kind") == "equivalent" for row in left)
    killed = len(rows) - len(left)
    lines = [
        "# Mutation testing",
        "",
        "Written by `python tools/mutate.py --report` from `docs/results/mutation.json`, with the reasons of",
        "`tools/survivors.json`. A mutant is a file with one changed operator, constant, condition or call",
        "(`tools/mutants.py` lists the changes; annotations, decorators, the wording of errors, `strict=True` stay).",
        "It is *killed* if a quick test that executes the changed statement fails, or takes far more processor time",
        "than it should. It has *survived* when such tests have passed that take 20 seconds on the healthy code, the",
        "quickest and others: more would kill some of those, so that the share is a lower bound. Quick tests are",
        "`TESTS` in `tools/mutate.py`, as they were at the commits named below: unit tests of the files judged;",
        "stateful, property, statistical and sampling tests, with 25 examples per property. The slower tests and the",
        "proofs do not take part.",
        "",
        "Files are listed as they were at the commits named at the end of this page, with the lines of that time. A",
        "file that has changed since is judged anew by `make nightly`; until then its row says what was, not what is:",
        "`python tools/mutate.py --stale` counts those mutants.",
        *([data["meta"]["revised"]] if "revised" in data["meta"] else []),
        "",
        f"**{killed} of {len(rows)} judged mutants are killed ({_percent(killed, len(rows))})**; there were "
        f"{sum(data['mutants'].values())} mutants. {equivalent} of the {len(left)} survivors are equivalent to "
        f"the original; without them the share is {_percent(killed, len(rows) - equivalent)}.",
        "",
        "| file | mutants | judged | killed | survived | share |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(_file_row(file, number, rows) for file, number in data["mutants"].items()),
        "",
        "## Survivors",
        "",
        "| mutant | change | line | kind | why no test fails |",
        "| --- | --- | --- | --- | --- |",
        *(_survivor_row(row, reasons.get(row["mutant"], {})) for row in left),
        "",
        "; ".join(f"*{kind}*: {meaning}" for kind, meaning in KINDS.items()) + ".",
        "",
        _origin(data),
    ]
    return "\n".join(lines) + "\n"


def _file_row(file: str, number: int, rows: list[dict[str, str]]) -> str:
    mine = [row for row in rows if row["mutant"].startswith(f"{file}:")]
    killed = sum(row["fate"] in KILLED for row in mine)
    share = _percent(killed, len(mine)) if mine else "–"
    return f"| `{file}` | {number} | {len(mine)} | {killed} | {len(mine) - killed} | {share} |"


def _survivor_row(row: dict[str, str], reason: dict[str, str]) -> str:
    place, _, change = row["mutant"].partition(" ")
    change = change.removesuffix(" #1")
    code = row["code"].replace("|", "\\|")
    return f"| `{place}` | {change} | `{code}` | {reason.get('kind', '')} | {reason.get('reason', '')} |"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"


def _origin(data: dict[str, Any]) -> str:
    meta = data["meta"]
    libraries = ", ".join(f"{name} {version}" for name, version in meta["libraries"].items())
    commits = ", ".join(dict.fromkeys(row["commit"] for row in data["outcomes"]))
    return (
        f"`{meta['command']}`, seed {data['seed']} · {meta['device']} · {libraries} · judged at commit {commits} · "
        f"{meta['utc_time']}"
    )
