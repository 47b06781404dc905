"""Set an engine up in an environment of its own, run the conformance kit against it, and record the reports.

python tools/engines/run.py vllm

`engines.toml` has packages and runs. An environment takes gigabytes, a run minutes: this is for the night.
"""

import json
import re
import shlex
import subprocess
import sys
import time
import tomllib
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from refimpl.core.files import write_whole
from refimpl.core.provenance import processor, utc_time

ROOT = Path(__file__).parents[2]
ENGINES = tomllib.loads((Path(__file__).parent / "engines.toml").read_text())
PAIR, URL = "refimpl/pairs/tiny", "http://127.0.0.1:8765/v1"
KEPT = ("property", "status", "reason", "row", "token", "asked", "answered", "requests")  # of a verdict


def words(text: str, work: Path) -> list[str]:
    """The words of a command in the file, with the names in braces filled in."""
    names = {"python": work / "bin" / "python", "work": work, "pair": PAIR, "url": URL}
    return shlex.split(text.format(**names))


def set_up(engine: dict[str, Any], work: Path) -> None:
    """Make the environment, unless it has been made from the same entry."""
    wanted, ready = json.dumps([engine["packages"], engine["prepare"]]), work / "ready.json"
    if ready.exists() and ready.read_text() == wanted:
        return
    python = str(work / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", *engine["packages"]]
    prepare = [words(step, work) for step in engine["prepare"]]
    for step in ([sys.executable, "-m", "venv", "--clear", str(work)], install, *prepare):
        subprocess.run(step, cwd=ROOT, check=True)
    ready.write_text(wanted)


def versions(engine: dict[str, Any], work: Path) -> dict[str, str]:
    """Installed versions of the packages that the entry names."""
    names = [re.split(r"[\[=]", package)[0] for package in engine["packages"]]
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    told = subprocess.check_output([work / "bin" / "python", "-c", code, *names], text=True)
    return dict(zip(names, told.split(), strict=True))


def run_kit(options: list[str]) -> dict[str, Any]:
    """Run the kit's command; its report, without what only it can use.

    Raises:
        CalledProcessError: the engine could not be opened.
    """
    with TemporaryDirectory() as folder:
        output = Path(folder) / "report.json"
        command = [sys.executable, "-m", "raggedspec", "conformance", *options, "--output", str(output)]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if not output.exists():
            done.check_returncode()
        report = json.loads(output.read_text())
    report["properties"] = [{name: verdict[name] for name in KEPT} for verdict in report["properties"]]
    return report


@contextmanager
def started(command: list[str]) -> Iterator[None]:
    """A server that runs, and answers, while the kit asks it; nothing where there is no command."""
    if not command:
        yield
        return
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        while process.poll() is None and not answers():
            time.sleep(1)
        yield
    finally:
        process.terminate()
        process.wait()


def answers() -> bool:
    """Whether a server lists its models."""
    try:
        return urlopen(f"{URL}/models", timeout=10).status == 200
    except OSError:
        return False


def without_paths(text: str, work: Path) -> str:
    """A text without folders of this machine, or of the machine that built the engine."""
    places = {str(work): f".work/engines/{work.name}", sys.executable: "python", f"{ROOT}/": ""}
    for place, name in places.items():
        text = text.replace(place, name)
    return re.sub(r"(?<![\w.:/])/([\w.+-]+/){2,}", "", text)


def record(output: Path, engine: dict[str, Any], run: dict[str, Any]) -> None:
    """Put a run into the file of its engine, in the order of the entry, in place of an earlier one."""
    runs = json.loads(output.read_text()) if output.exists() else []
    runs = {each["name"]: each for each in runs} | {run["name"]: run}
    ordered = [runs[each["name"]] for each in engine["runs"] if each["name"] in runs]
    write_whole(output, json.dumps(ordered, indent=1).splitlines())


def main() -> None:
    """Set up, run, record."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--only", default="", help="runs whose name contains this; others stay as they were recorded")
    parser.add_argument("--work", type=Path, default=ROOT / ".work" / "engines", help="where environments are made")
    parser.add_argument("--output", type=Path, help="default: docs/results/engines/ENGINE.json")
    chosen = parser.parse_args()
    engine, work = ENGINES[chosen.engine], chosen.work.resolve() / chosen.engine
    output = chosen.output or ROOT / "docs" / "results" / "engines" / f"{chosen.engine}.json"
    set_up(engine, work)
    meta = {"device": processor(), "libraries": versions(engine, work)}
    for run in engine["runs"]:
        if chosen.only in run["name"]:
            options = words(f"{run['kit']} {engine['options']}", work)
            with started(words(run.get("server", ""), work)):
                found = {"command": shlex.join(["raggedspec", "conformance", *options])} | run_kit(options)
            text = json.dumps({"name": run["name"], "utc_time": utc_time()} | meta | found)
            record(output, engine, json.loads(without_paths(text, work)))


if __name__ == "__main__":
    main()
