"""Print how large the project is: lines of Python a folder, words of the pages, commands, flags and settings.

python tools/size.py
"""

import re
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import fields
from pathlib import Path

import typer

from raggedspec.cli import app
from refimpl import DecodeConfig, SamplingConfig

ROOT = Path(__file__).parent.parent
# folder: lines of Python in 0.2.0, most that the tests allow now, aim of 0.3
LINES = {
    "refimpl": (26_872, 32_300, 21_500),
    "simulator": (12_203, 12_620, 9_800),
    "tests": (29_712, 29_700, 21_000),
    "tools": (6_634, 5_795, 3_300),
    "proofs": (5_758, 5_135, 4_500),
}
WORDS = (79_000, 48_600, 45_000)  # of README, CHANGELOG, CONTRIBUTING and the pages of docs, proofs and notebooks
SETTING = "joint_prefill"  # stands for those that concern no more than a scheduler or a layout
NO_WORDS = re.compile(r"<!-- .*? -->|^\|[-:| ]+\|$", re.MULTILINE)
PAGES = ("*.md", "docs/*.md", "proofs/*.md", "notebooks/*.md")


def lines_of(folder: str) -> int:
    """Lines of Python in a folder."""
    return sum(len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py"))


def words() -> int:
    """Words of all pages, without the markers and rules of their tables."""
    return sum(len(NO_WORDS.sub("", path.read_text()).split()) for pattern in PAGES for path in ROOT.glob(pattern))


def commands() -> list[typer.core.TyperCommand]:
    """Every command that runs, those of the simulator included."""
    top = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return [*(each for name, each in top.items() if name != "sim"), *top["sim"].commands.values()]


def flags() -> int:
    """Options of the command that has most."""
    return max(len(command.params) for command in commands())


def settings() -> int:
    """Settings of a run."""
    names = {item.name for cls in (DecodeConfig, SamplingConfig) for item in fields(cls)}
    return len(names - {"sampling"})  # a part, not a setting


def files_that_name(setting: str) -> int:
    """Source files that name a setting, those that are generated left out."""
    files = (path for folder in ("refimpl", "simulator") for path in (ROOT / folder).rglob("*.py"))
    return sum(setting in path.read_text() for path in files if path.name != "keywords.py")


def main() -> None:
    """Print the table."""
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    rows = [(f"{folder}, lines", before, lines_of(folder), aim) for folder, (before, _, aim) in LINES.items()]
    rows += [("pages, words", WORDS[0], words(), WORDS[2]), ("commands", 32, len(commands()), 22)]
    rows += [("flags of one command", 68, flags(), 35), ("settings of a run", 35, settings(), 28)]
    rows += [(f"files that name {SETTING}", 20, files_that_name(SETTING), 5)]
    print(f"{'':30}{'0.2.0':>9}{'now':>9}{'aim':>9}")
    for name, *numbers in rows:
        print(f"{name:30}" + "".join(f"{number:9,}" for number in numbers))


if __name__ == "__main__":
    main()
