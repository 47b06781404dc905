"""``python -m proofs.register [LOGS]``: write the register of README.md from register.toml.

Also which faults of the engine's zoo are given to which stage, and who must see how many planted errors. With LOGS, a
folder of what stages have printed, each in NAME.out: whether every claim that the register names has been made there,
and held.
"""

import importlib
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from proofs.conformance import books, laws, reach, renamed, scheduler_faults
from proofs.report import EXPECTED, Verdict, report
from refimpl.core import kernels
from refimpl.core.files import write_whole
from refimpl.core.invariants import STATEMENTS
from refimpl.faults import FAULTS
from tools.pages import filled, markdown_table

HERE = Path(__file__).parent
README = HERE / "README.md"
HEAD = [
    "id", "statement", "theorem", "solver and search", "run-time check", "test", "counterexample", "assumptions",
    "not covered",
]  # fmt: skip
ISSUES = "https://github.com/{}/issues/{}"


@dataclass(frozen=True)
class Entry:
    """What stands behind one invariant; see the head of register.toml."""

    id: str
    theorems: list[str]
    claims: list[str]
    checks: list[str]
    tests: list[str]
    faults: list[str]
    variants: list[str]
    assumptions: str
    not_covered: str


def entries() -> list[Entry]:
    """In the order of the file."""
    return [Entry(**fields) for fields in tomllib.loads((HERE / "register.toml").read_text())["invariant"]]


def problems(register: list[Entry]) -> list[str]:
    """Every name that is not in the code, and every invariant without an entry or without a check, test or fault."""
    found = [f"{id} has no entry" for id in STATEMENTS if id not in {entry.id for entry in register}]
    theorems = set(re.findall(r"^  @(\w+)[,)]", (HERE / "coq" / "Audit.v").read_text(), re.MULTILINE))
    for entry in register:
        missing = [
            *(name for name in entry.theorems if name not in theorems),
            *(name for name in entry.claims + entry.variants if name.split(": ")[0] not in stage_names()),
            *(name for name in entry.checks if not _exists(name)),
            *(name for name in entry.tests if not _is_test(name)),
            *(name for name in entry.faults if name not in FAULTS),
            *(kind for kind in ("checks", "tests", "faults") if not getattr(entry, kind)),
            *([] if entry.id in STATEMENTS else [entry.id]),
        ]
        found += [f"{entry.id}: {name}" for name in missing]
    return found


def stage_names() -> set[str]:
    """Of proofs/check.sh."""
    return set(re.findall(r"^ +stage ([a-z0-9-]+) ", (HERE / "check.sh").read_text(), re.MULTILINE))


def not_claimed(register: list[Entry], logs: Path) -> list[str]:
    """Claims and variants that their stage did not make, or that did not hold; those of stages without a log apart.

    What a stage says of a wrong variant often quotes the claim that it breaks. That does not stand for the claim.
    """
    held = {path.stem: re.findall(r"^  ok    (.*)", path.read_text(), re.MULTILINE) for path in logs.glob("*.out")}
    return [
        f"{id}: {stage}: {text}"
        for id, stage, text, variant in _named(register)
        if stage in held and not any(text in line for line in held[stage] if variant or not line.startswith(EXPECTED))
    ]


def not_run(register: list[Entry], logs: Path) -> int:
    """How many claims and variants are of stages without a log."""
    return sum(not (logs / f"{stage}.out").exists() for _, stage, *_ in _named(register))


def _named(register: list[Entry]) -> Iterator[tuple[str, str, str, bool]]:
    """Invariant, stage and text of every claim and variant, and whether it is a variant."""
    for entry in register:
        for variant, names in ((False, entry.claims), (True, entry.variants)):
            for name in names:
                stage, text = name.split(": ", 1)
                yield entry.id, stage, text, variant


def _is_test(name: str) -> bool:
    file, _, function = name.partition("::")
    path = HERE.parent / file
    return path.exists() and f"def {function}(" in path.read_text()


def _exists(dotted: str) -> bool:
    """Whether a module has the name, or a class in a module."""
    parts = dotted.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)
        return found is not None
    return False


def table(register: list[Entry]) -> str:
    """The register as Markdown."""
    return markdown_table(HEAD, [[*_cells(entry)] for entry in register], texts=HEAD)


def _cells(entry: Entry) -> Iterator[str]:
    yield entry.id
    yield STATEMENTS[entry.id]
    yield ", ".join(f"`{name}`" for name in entry.theorems) or "–"
    yield "; ".join(map(_quoted, entry.claims)) or "–"
    yield ", ".join(f"`{'.'.join(name.split('.')[-2:])}`" for name in entry.checks)
    yield ", ".join(f"[{name.partition('::')[2]}](../{name.partition('::')[0]})" for name in entry.tests)
    yield "; ".join([*map(_fault, entry.faults), *map(_quoted, entry.variants)])
    yield entry.assumptions
    yield entry.not_covered


def _quoted(name: str) -> str:
    stage, text = name.split(": ", 1)
    return f"“{text}”, {stage}"


def _fault(name: str) -> str:
    links = [f"[{source}]({ISSUES.format(*source.split('#'))})" for source in FAULTS[name].sources]
    return f"`{name}`" + f" ({', '.join(links)})" * bool(links)


def stages() -> dict[str, list[str]]:
    """Faults of the zoo that a stage is given, and must notice."""
    return {
        "the Z3 claims": [name for name, fault in FAULTS.items() if fault.owner is kernels],
        "the search": [fault.name for fault in scheduler_faults.zoo()],
        "the enumeration": list(laws.ZOO),
        "the runs": [*reach.SHORT_ZOO, *reach.LONGER_ZOO, *renamed.ZOO],
        "the replayed books": list(books.ZOO),
    }


def faults() -> str:
    """How many faults each stage is given, and which none is."""
    given = stages()
    met = {name for names in given.values() for name in names}
    left = ", ".join(f"`{name}`" for name in FAULTS if name not in met)
    lines = [(stage, str(len(names))) for stage, names in given.items()]
    return markdown_table(("given to", "faults"), [*lines, (f"no stage: {left}", str(len(FAULTS) - len(met)))])


def planted() -> str:
    """Who must see how many of the planted errors."""
    by_file = tomllib.loads((HERE.parent / "tools" / "planted.toml").read_text())
    errors = [error for some in by_file.values() for error in some]
    seen = Counter({"at least one of these": len(errors), "tests": sum("tests" in error for error in errors)})
    seen.update(stage for error in errors for stage in error.get("seen_by", ()))
    return markdown_table(("must be seen by", "planted errors"), [(who, str(number)) for who, number in seen.items()])


def page(register: list[Entry]) -> str:
    """README.md with the table and the counts of today."""
    parts = {"register": table(register), "faults": faults(), "planted": planted()}
    return filled(README.read_text(), "register", parts)


def main(logs: str = "") -> int:
    """See the head of this file."""
    if logs:
        missing, left = not_claimed(entries(), Path(logs)), not_run(entries(), Path(logs))
        name = (
            "every claim of the register was made and held"
            + f", but for {left} of stages that were left out" * bool(left)
        )
        return report("register", [Verdict(name, not missing, f"{missing}")])
    write_whole(README, page(entries()).removesuffix("\n").split("\n"))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
