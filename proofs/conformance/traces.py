"""Traces of the real engine before the checker extracted from Coq.

Every run of `proofs.conformance.runs` with the scheduler `static`, `fifo` or `grouped` must be judged valid, every
corrupted copy invalid. The runs of `continuous` are only compared with plain decoding, as the relation that is checked
has no chunks.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from proofs.conformance import runs
from proofs.conformance.runs import Run
from proofs.report import Verdict, all_valid, ask, none_valid

MODES = {"static": 0, "fifo": 1, "grouped": 2, "fallback": 3, "aged": 4}
NEXT_TOKENS = {"draft": 0, "recovered": 1, "bonus": 2}
POLICIES = {"static": 0, "fifo": 1, "grouped": 2}
NEVER = 10_000  # an aging bound that no small run reaches


def lines(run: Run) -> Iterator[str]:
    """A run in the checker's language."""
    layout, scheduler = run.method.split("+")
    window = run.shape.window if scheduler == "grouped" else run.shape.batch
    aging = NEVER if run.shape.aging == math.inf else run.shape.aging
    yield f"config {POLICIES[scheduler]} {aging} {run.shape.batch} {window} {int(layout == 'rollback')}"
    yield from (f"sequence {len(job.prompt)} {job.budget} {job.k}" for job in run.shape.jobs)
    for record in run.rounds:
        yield f"round {MODES[record.mode]}"
        for row in record.rows:
            fields = (row.sequence, row.seq_len, row.draft_lag, row.k, row.drafted, row.accepted, row.kept)
            yield "row " + " ".join(map(str, (*fields, NEXT_TOKENS[row.next_token], int(row.finished))))
    yield "end"


def corrupted(run: Run, rng: random.Random) -> Iterator[tuple[str, Run]]:
    """Copies with one thing wrong each; what it is."""
    at = rng.randrange(len(run.rounds))
    record = run.rounds[at]
    row = rng.randrange(len(record.rows))
    right = record.rows[row]
    wrong = [(field, getattr(right, field) + 1) for field in ("seq_len", "draft_lag", "k", "drafted")]
    wrong += [
        ("accepted", right.drafted + 1),
        ("kept", 0),
        ("kept", right.accepted + 2),
        ("finished", not right.finished),
    ]
    records = [
        *(
            (field, replace(record, rows=_with(record.rows, row, replace(right, **{field: value}))))
            for field, value in wrong
        ),
        ("a row twice", replace(record, rows=(*record.rows, right))),
        ("mode", replace(record, mode=next(m for m in MODES if m != record.mode))),
    ]
    yield from ((what, replace(run, rounds=[*_with(run.rounds, at, changed)])) for what, changed in records)
    yield "a round less", replace(run, rounds=run.rounds[:-1])
    yield "a round twice", replace(run, rounds=[*run.rounds[:at], record, *run.rounds[at:]])


def _with(items: Sequence[Any], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at + 1 :])


def judge(checker: str, some_runs: list[Run]) -> list[str]:
    """What the checker says of each trace."""
    return ask(checker, [[*lines(run)] for run in some_runs])


def check(checker: str) -> Iterator[Verdict]:
    """The claims of `runs`; that traces are valid, and corrupted ones are not."""
    by_method: dict[str, list[Run]] = defaultdict(list)
    for method, verdict, done in runs.check():
        yield verdict
        by_method[method] += done
    rng = random.Random(0)
    for method, mine in by_method.items():
        if method.split("+")[1] not in POLICIES:
            continue
        yield all_valid(f"{method}: {len(mine)} traces are valid", judge(checker, mine))
        bad = [copy for run in mine[::4] for copy in corrupted(run, rng)]
        yield none_valid(f"{method}: {len(bad)} corrupted traces are rejected", partial(judge, checker), bad)
