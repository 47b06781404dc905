"""What is stated more than once must say the same.

The layouts' formulas stand in Coq and in `refimpl/core/kernels.py`, how many blocks a row has in Coq and in
`room_spec`, block verification in Coq and in its rule (`block_formulas`), overlapped cohorts in Coq and in their
scheduler: both are evaluated on a grid. The scheduler stands in Coq, in `scheduler_spec` and in the Spin model.
Traces of the engine link the first two (`traces`, `schedulers`); here simulated rounds of the Spin model are judged by
`scheduler_spec`.
"""

import itertools
import math
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from proofs.conformance import block_formulas, cohorts, room_spec
from proofs.conformance import scheduler_spec as spec
from proofs.report import Verdict, ask
from refimpl.core import kernels
from refimpl.scheduling import OverlappedScheduler

MODEL = Path(__file__).parents[1] / "spin" / "exspec.pml"
SMALL, BATCH, WINDOW, CAP = range(-2, 4), 2, 4, 9  # CAP: the model counts waits no further
STEPS, SEEDS = 40_000, 2  # of a simulation, and how many
Row = tuple[int, int, int, int, int]  # tokens, lag, wait, begun, runs


def formulas() -> Iterator[tuple[str, int | Fraction]]:
    """Questions to Coq, and what the engine or the specification of rooms answers."""
    yield from layouts_and_rooms()
    yield from block_formulas.questions()
    yield from chosen_cohorts()


def layouts_and_rooms() -> Iterator[tuple[str, int]]:
    """Columns and slots of positions, blocks of lengths."""
    for pad, column in itertools.product(SMALL, repeat=2):
        yield f"padded {pad} {column}", kernels.left_padded_position(column, pad)
    for claimed, cached in itertools.product(SMALL, repeat=2):
        yield f"kill {claimed} {cached}", kernels.masked_slot_position(claimed, 0, cached)
    for claimed, cached, start, first, size, column in itertools.product(*[range(-1, 3)] * 6):
        position = first + column - start
        fresh = kernels.masked_slot_position(position, cached, position + 1)
        inside = start <= column < start + size
        yield f"append {claimed} {cached} {start} {first} {size} {column}", fresh if inside else claimed
    for size, span, tokens, most in itertools.product((1, 2, 3), (0, 1, 3), range(1, 7), range(1, 7)):
        blocks = room_spec.Blocks(total=0, size=size, span=span, limit=most)
        yield f"held {size} {tokens}", blocks.held(tokens)
        yield f"wanted {size} {span} {tokens} {most}", blocks.wanted(tokens)


def chosen_cohorts() -> Iterator[tuple[str, int]]:
    """Who runs and for whom is drafted, for every choice of rows with drafts in small windows."""
    for size in cohorts.SIZES:
        for drafted in itertools.product((False, True), repeat=size):
            _, plan = cohorts.plan_of(tuple((there, 0) for there in drafted), size)
            flags = " ".join(str(int(there)) for there in drafted)
            for word, rows in (("runs", plan.members), ("ahead", plan.ahead)):
                yield f"{word} {flags}", int("0" + "".join(str(row.ticket + 1) for row in rows))


def formulas_verdict(program: str, name: str = "the formulas of Coq and those of Python") -> Verdict:
    """Whether both give the same numbers."""
    cases = list(formulas())
    answers = ask(program, [[question] for question, _ in cases])
    differ = [f"{q}: {a}, {wanted}" for (q, wanted), a in zip(cases, answers, strict=True) if Fraction(a) != wanted]
    return Verdict(f"{name}: {len(cases)} cases", not differ, f"{len(differ)} differ, first {differ[:1]}")


@cache
def simulated(aging: int | None, seed: int) -> list[tuple[str, list[Row]]]:
    """Rounds of the Spin model, before and after."""
    flags = ["-DTRACE", *([] if aging is None else [f"-DAGING={aging}"])]
    with tempfile.TemporaryDirectory() as folder:
        command = ["spin", "-T", f"-n{seed}", f"-u{STEPS}", *flags, str(MODEL)]
        said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout.splitlines()
    lines = [line.split() for line in said if re.fullmatch(r"(BEFORE|AFTER)( [\d,]+){4}", line)]  # the last is cut
    return [(word, [tuple(map(int, row.split(","))) for row in rows]) for word, *rows in lines]


def round_fault(before: list[Row], after: list[Row], rules: spec.Rules) -> str | None:
    """Why the relation does not allow a round of the model."""
    tickets = range(len(before))
    state = spec.State(
        (), tuple((t, before[t][2]) for t in tickets), begun=frozenset(t for t in tickets if before[t][3])
    )
    keys = {t: before[t][:2] for t in tickets}
    members = tuple(t for t in tickets if before[t][4])
    group = spec.first_full_group(state, keys, rules.batch)
    due = max(row[2] for row in before) >= rules.aging
    mode = "aged" if due else "grouped" if group else "fallback"
    if fault := spec.choice_fault(state, keys, mode, members, rules):
        return fault
    waits = [min(CAP, wait) for _, wait in spec.played(state, members, frozenset(), rules).window]
    found = [row[2] for row in after]
    return None if waits == found else f"waits {found}, expected {waits}"


def scheduler_verdict(aging: int | None, rules: spec.Rules) -> Verdict:
    """Whether simulated rounds of the model are rounds of the relation."""
    rounds, faults = 0, []
    for seed in range(SEEDS):
        lines = simulated(aging, seed)
        for (_, before), (_, after) in zip(lines[::2], lines[1::2], strict=False):
            rounds += 1
            faults += filter(None, [round_fault(before, after, rules)])
    name = f"rounds of the Spin model are rounds of the relation, A = {rules.aging}: {rounds}"
    return Verdict(name, rounds > 300 and not faults, f"{len(faults)} are not, first {faults[:1]}")


DRIFTED: dict[str, tuple[Any, str, Callable]] = {
    "a kernel that has drifted": (kernels, "left_padded_position", lambda column, pads: column - pads + 1),
    "a room that has drifted": (room_spec.Blocks, "held", lambda self, seq_len: -(-seq_len // self.size)),
    "block verification that has drifted": (kernels, "block_total", lambda mass, rest: rest + mass),
    "cohorts that have drifted": (OverlappedScheduler, "select", cohorts.youngest_first),
}


def check(program: str) -> Iterator[Verdict]:
    """Both links, and that each can break."""
    yield formulas_verdict(program)
    for name, wrong in DRIFTED.items():
        with patch.object(*wrong):
            found = formulas_verdict(program)
        yield Verdict(f"expected failure: {name}: {found.detail}", not found.ok)
    rules = spec.Rules("grouped", BATCH, WINDOW, 2)
    yield scheduler_verdict(2, rules)
    yield scheduler_verdict(None, replace(rules, aging=math.inf))
    found = scheduler_verdict(2, replace(rules, aging=3))
    yield Verdict(f"expected failure: a relation that has drifted: {found.detail[:80]}", not found.ok)
