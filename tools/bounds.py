"""Run tests with the lowest versions that pyproject.toml admits, or with the newest there are.

``python tools/bounds.py lowest [pytest arguments]`` makes a virtual environment ``.venv-lowest`` of the interpreter
that runs this, and tests in it. torch stays at the pin of constraints.txt both times: its versions differ by gigabytes.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
PINNED = "torch"
LENIENT = ["-W", "default::DeprecationWarning"]  # what is installed beside the lowest versions is the newest
FLOOR = re.compile(r"^(?P<name>[\w.-]+)(\[[\w,]*\])?>=(?P<version>[\w.]+)$")


def floors(project: dict) -> list[str]:
    """``name==version`` of every lower bound of a project table, extras included, the pinned library left out.

    Raises:
        ValueError: a requirement without a lower bound.
    """
    extras = project.get("optional-dependencies", {}).values()
    found = {}
    for requirement in [*project["dependencies"], *(each for extra in extras for each in extra)]:
        if requirement.startswith(f"{project['name']}["):
            continue
        match = FLOOR.match(requirement)
        if match is None:
            raise ValueError(f"{requirement}: write NAME>=VERSION")
        found[match["name"]] = f"{match['name']}=={match['version']}"
    return [pin for name, pin in found.items() if name != PINNED]


def torch_pin() -> str:
    """The line of constraints.txt that pins torch."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{PINNED}=="))


def install(python: Path, which: str) -> None:
    """Install torch as pinned, then the project with its test extra, at its lowest or newest versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = [torch_pin(), *(floors(project) if which == "lowest" else [])]
    constraints = python.parent.parent / "constraints.txt"
    constraints.write_text("\n".join(pins) + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(constraints)]
    subprocess.run([*pip, PINNED], check=True)
    subprocess.run([*pip, "--upgrade", "-e", f"{ROOT}[test]"], check=True)


def main() -> int:
    """Make the environment if it is missing, test in it; return pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=["lowest", "newest"])
    which, arguments = parser.parse_known_args()
    folder = ROOT / f".venv-{which.which}"
    python = folder / "bin" / "python"
    venv.create(folder, with_pip=True)
    install(python, which.which)
    lenient = LENIENT if which.which == "lowest" else []
    checked = os.environ | {"CHECK_SHAPES": "1"}
    return subprocess.run([python, "-m", "pytest", *lenient, *arguments], cwd=ROOT, env=checked, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
