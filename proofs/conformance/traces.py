"""Traces of the real engine before the checker extracted from Coq.

Every run of `proofs.conformance.runs` with the scheduler `static`, `fifo` or `grouped` must be judged valid, every
corrupted copy invalid. The runs of `continuous` are only compared with plain decoding, as the relation that is checked
has no chunks.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from proofs.conformance import runs
from proofs.conformance.runs import Run
from proofs.report import Verdict, ask
from refimpl.decoding.trace import RoundRecord

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


def corrupted(run: Run, rng: random.Random) -> Iterator[Run]:
    """Copies with one thing wrong each."""
    at = rng.randrange(len(run.rounds))
    record = run.rounds[at]
    row = rng.randrange(len(record.rows))
    for field in ("seq_len", "draft_lag", "k", "drafted"):
        yield with_round(run, at, with_row(record, row, field, getattr(record.rows[row], field) + 1))
    yield with_round(run, at, with_row(record, row, "accepted", record.rows[row].drafted + 1))
    yield with_round(run, at, with_row(record, row, "kept", 0))
    yield with_round(run, at, with_row(record, row, "kept", record.rows[row].accepted + 2))
    yield with_round(run, at, with_row(record, row, "finished", not record.rows[row].finished))
    yield with_round(run, at, replace(record, rows=record.rows + record.rows[row : row + 1]))
    yield with_round(run, at, replace(record, mode=next(m for m in MODES if m != record.mode)))
    yield replace(run, rounds=run.rounds[:-1])
    yield replace(run, rounds=[*run.rounds[:at], record, *run.rounds[at:]])


def with_round(run: Run, at: int, record: RoundRecord) -> Run:
    return replace(run, rounds=[*run.rounds[:at], record, *run.rounds[at + 1 :]])


def with_row(record: RoundRecord, row: int, field: str, value: int) -> RoundRecord:
    rows = list(record.rows)
    rows[row] = replace(rows[row], **{field: value})
    return replace(record, rows=tuple(rows))


def judge(checker: str, some_runs: list[Run]) -> list[str]:
    """What the checker says of each trace."""
    return ask(checker, [[*lines(run)] for run in some_runs])


def judge_valid(checker: str, method: str, mine: list[Run]) -> Verdict:
    """All traces of a method are valid."""
    faults = [answer for answer in judge(checker, mine) if answer != "valid"]
    ok = bool(mine) and not faults
    return Verdict(f"{method}: {len(mine)} traces are valid", ok, f"{len(faults)} faults {faults[:3]}")


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
        yield judge_valid(checker, method, mine)
        bad = [copy for run in mine[::4] for copy in corrupted(run, rng)]
        missed = [i for i, a in enumerate(judge(checker, bad)) if a == "valid"]
        name = f"expected failure: {method}: {len(bad)} corrupted traces are rejected"
        yield Verdict(name, bool(bad) and not missed, f"accepted {missed[:5]}")
