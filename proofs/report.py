"""How every stage reports: one line a claim, and a last line that the driver adds up."""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

# What a run of the engine may raise because it is wrong; an InvariantViolation is a RuntimeError. Anything else says
# that a stage does not fit the code: it ends the stage.
FINDINGS = (IndexError, RuntimeError)


EXPECTED = "expected failure"  # so begins what a stage says of a wrong variant


class FoundError(RuntimeError):
    """What a stage itself finds wrong in the middle of a run."""


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it holds, and why not.

    `raised` says that the engine ended the run with an error, and that nothing of what it did before was wrong.
    """

    name: str
    ok: bool
    detail: str = ""
    raised: bool = False


def ask(program: str, cases: Sequence[Sequence[str]]) -> list[str]:
    """What a program that is extracted from Coq answers to each case, given as lines.

    Raises:
        RuntimeError: it has not answered each.
    """
    text = "".join(f"{line}\n" for lines in cases for line in lines)
    answers = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    if len(answers) != len(cases):
        raise RuntimeError(f"{len(answers)} answers to {len(cases)} cases")
    return answers


def all_valid(name: str, answers: Sequence[str]) -> Verdict:
    """Whether a program finds every case valid, and there are some."""
    wrong = [f"case {i}: {answer}" for i, answer in enumerate(answers) if answer != "valid"]
    return Verdict(name, bool(answers) and not wrong, f"{len(wrong)} are not, first {wrong[:3]}")


def none_valid(name: str, judge: Callable[[list], list[str]], copies: Sequence[tuple[str, Any]]) -> Verdict:
    """An expected failure: whether a program finds no corrupted copy valid, and there are some.

    Args:
        name: of the claim.
        judge: what the program answers to each of some copies.
        copies: each with what is wrong.
    """
    answers = judge([copy for _, copy in copies])
    missed = Counter(what for (what, _), answer in zip(copies, answers, strict=True) if answer == "valid")
    return Verdict(f"{EXPECTED}: {name}", bool(copies) and not missed, f"accepted {missed}")


def ended_by(error: Exception, name: str) -> Verdict:
    """A claim about a run that an error has ended."""
    return Verdict(name, False, f"{type(error).__name__}: {error}", raised=not isinstance(error, FoundError))


def report(stage: str, verdicts: Iterable[Verdict], *, show_details: bool = False) -> int:
    """Print the verdicts and ``stage: N claims checked, M failed``; return an exit status."""
    verdicts = list(verdicts)
    failed = [v for v in verdicts if not v.ok]
    for v in verdicts:
        detail = f"\n         {v.detail}" if v.detail and (show_details or not v.ok) else ""
        print(f"  {'ok  ' if v.ok else 'FAIL'}  {v.name}{detail}")
    print(f"{stage}: {len(verdicts)} claims checked, {len(failed)} failed", flush=True)
    return 1 if failed or not verdicts else 0
