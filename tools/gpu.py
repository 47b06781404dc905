"""What needs a GPU, in the order of its value: a list of commands, each useful alone and stopped after its minutes.

Results go to the folder $OUT, or to build/gpu; copy those that a page shows to docs/results, and run `make readme`.

  .ci/gpu                        everything
  .ci/gpu --only first,tests     these
  .ci/gpu --dry-run              print the commands
"""

import argparse
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent
TIMED_OUT = 124
QWEN3 = "--pair qwen3 --random-weights --device cuda --dtype bfloat16"
SHORT = "--prompts-per-row 4 --max-new-tokens 96 --repeats 1 --no-eager --no-assisted"
ENGINE = "--methods inplace --batch-sizes 8,1,32"
SMOKE = "--device cuda --limit 8 --max-new-tokens 24"
BITWISE = "verify --bitwise --dtype bfloat16 --device cuda --limit 48 --batch-sizes 8 --max-new-tokens 32"


@dataclass(frozen=True)
class Command:
    """A process: its name, the minutes after which it is stopped, and the words after the interpreter."""

    name: str
    minutes: float
    words: str

    def argv(self, out: Path) -> list[str]:
        """Words, with the folder of the results in place of ``{out}``."""
        return [word.replace("{out}", str(out)) for word in self.words.split()]


def refimpl(name: str, minutes: float, words: str) -> Command:
    """A command of the engine that writes a report of its own name."""
    return Command(name, minutes, f"-m refimpl {words} --output {{out}}/{name}.json")


def bench(name: str, minutes: float, words: str) -> Command:
    """A benchmark of the shapes of Qwen3 8B and 0.6B, cut short before its minutes are over."""
    return refimpl(name, minutes, f"bench {QWEN3} {words} --max-minutes {minutes - 2:g}")


def commands() -> list[Command]:
    """All of them, the most valuable first."""
    workers = "-n 6 " if importlib.util.find_spec("xdist") else ""  # the tests mostly wait for the host
    return [
        Command("first", 3, f"tools/step_times.py {{out}}/first-gpu.json {QWEN3} --only gap,equal,attention"),
        Command("steps", 5, f"tools/step_times.py {{out}}/steps-gpu.json {QWEN3} --only steps"),
        Command("tests", 6, f"-m pytest -q -p no:cacheprovider -o addopts= -W default --maxfail=5 {workers}tests/gpu"),
        bench("bench-gpu-k5", 5, f"--acceptance forced:rate:0.4 {ENGINE} {SHORT}"),
        bench("bench-gpu-k3", 5, f"-k 3 --acceptance forced:iid:0.709 {ENGINE} {SHORT}"),
        bench("bench-gpu-k3-kernels", 5, f"-k 3 --acceptance forced:iid:0.709 --layers kernels {ENGINE} {SHORT}"),
        refimpl("verify-gpu-smoke", 4, f"verify --dtype float32 --batch-sizes 4 {SMOKE}"),
        refimpl(
            "verify-gpu-smoke-recorded", 3,
            f"verify --dtype float32 --batch-sizes 4 {SMOKE} --methods inplace --set cuda_graphs=true --checks host",
        ),
        refimpl(
            "verify-gpu-smoke-overlapped", 3,
            f"verify --dtype float32 --batch-sizes 4,8 {SMOKE} --methods inplace,paged --set execution=overlapped",
        ),
        refimpl(
            "ties-gpu-smoke", 4,
            f"tie-or-bug --dtype bfloat16 --batch-sizes 4,8 {SMOKE} --methods inplace,paged,paged+continuous "
            "--checks host",
        ),
        refimpl("bitwise-gpu-greedy", 8, f"{BITWISE} --methods inplace,paged"),
        refimpl("bitwise-gpu-coupled", 8, f"{BITWISE} --methods inplace,paged --temperature 0.8"),
        bench("bench-gpu-published", 8, f"--acceptance forced:rate:0.228 --methods all --batch-sizes 8,4 {SHORT}"),
        refimpl("anatomy-gpu", 8, f"anatomy {QWEN3} --acceptance rate:0.228 --contexts 128,1024 --rounds 12"),
        *(
            Command(
                f"calibrate-{pair}", 9,
                f"-m refimpl calibrate {QWEN3.replace('qwen3', pair)} --minutes 7.5 --out {{out}}/simulator-data",
            )
            for pair in ("vicuna", "qwen3")
        ),
    ]  # fmt: skip


def run(command: Command, out: Path) -> int:
    """Run a command with its output in a log beside the results, stop it when it takes too long; the exit code."""
    with (out / f"{command.name}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *command.argv(out)], stdout=log, stderr=log, cwd=CHECKOUT, start_new_session=True
        )
        try:
            return process.wait(timeout=60 * command.minutes)
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def name_commit(path: Path, commit: str) -> None:
    """Say in a report which commit ran, where there was no git."""
    report = json.loads(path.read_text())
    if report.get("meta", {}).get("commit") == "unknown":
        report["meta"]["commit"] = commit
        path.write_text(json.dumps(report, indent=1) + "\n")


def main() -> int:
    """Run what is asked for; exit code 1 when a command failed or took too long."""
    parser = argparse.ArgumentParser(
        prog=".ci/gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [command.name for command in commands()]
    parser.add_argument("--only", metavar="NAME,…", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--commit", help="of the code, for reports from a machine without git")
    given = parser.parse_args()
    wanted = given.only.split(",")
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"no command is named {unknown[0]}")
    out, failed = Path(os.environ.get("OUT") or CHECKOUT / "build" / "gpu").resolve(), False
    for command in (command for command in commands() if command.name in wanted):
        if given.dry_run:
            print(f"{command.name}, {command.minutes:g} min: python {shlex.join(command.argv(out))}")
            continue
        out.mkdir(parents=True, exist_ok=True)
        begun, code = time.monotonic(), run(command, out)
        print(f"{command.name}: exit code {code} after {time.monotonic() - begun:.0f} s", flush=True)
        failed |= code != 0
        for path in out.glob("*.json") if given.commit else ():
            name_commit(path, given.commit)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
