"""What must hold for every case; each property raises `PropertyFailure` with the run told as a story."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from refimpl.core.config import LAYOUTS, SCHEDULERS
from refimpl.models.adapter import Pair
from refimpl.selfcheck.cases import Case, Run, expected_accepted, oracle_outputs, run_case
from refimpl.selfcheck.reported import wrong_counts
from refimpl.selfcheck.story import tell


class PropertyFailure(AssertionError):  # noqa: N818 (pytest shows it as a failed assertion)
    """A property does not hold for a case."""

    def __init__(self, name: str, reason: str, story: str):
        self.name, self.reason, self.story = name, reason, story
        super().__init__(f"{name}: {reason}\n{story}")


def failure_of(check: Callable[..., None], *arguments: Any, **options: Any) -> PropertyFailure | None:
    """Run a check; return how it failed, None if it holds. A broken invariant is raised."""
    try:
        check(*arguments, **options)
    except PropertyFailure as failure:
        return failure
    return None


def _require(holds: bool, name: str, reason: str, case: Case, run: Run, wanted: list[list[int]] | None = None) -> None:
    if not holds:
        raise PropertyFailure(name, reason, tell(case, run.rounds, run.outputs, wanted))


def output_equals_oracle(case: Case, checks: str = "off", pair: Pair | None = None) -> None:
    """Token for token what autoregressive decoding generates; a cancelled row has generated a prefix of it."""
    run, wanted = run_case(case, checks=checks, pair=pair), oracle_outputs(case, pair)
    cancelled = [reason == "cancelled" for reason in run.stop_reasons]
    wanted = [w[: len(o)] if c else w for w, o, c in zip(wanted, run.outputs, cancelled, strict=True)]
    _require(run.outputs == wanted, "output equals oracle", "the outputs differ", case, run, wanted)


def schedule_does_not_matter(case: Case) -> None:
    """Any layout, scheduler and batch size, and the reverse order, give the same outputs."""
    case = replace(case, cancellations=())
    run = run_case(case)
    for layout in LAYOUTS:
        for scheduler in SCHEDULERS:
            other = replace(case, layout=layout, scheduler=scheduler, batch_size=len(case.rows) + 1 - case.batch_size)
            other = replace(other, batch_size=max(1, other.batch_size))
            outputs = run_case(other).outputs
            _require(outputs == run.outputs, "schedule", f"{layout} × {scheduler} differs", case, run, outputs)


def order_does_not_matter(case: Case) -> None:
    """Prompts handed in in reverse give the outputs in reverse."""
    case = replace(case, cancellations=())
    run, back = run_case(case), list(range(len(case.rows)))[::-1]
    outputs = run_case(case.permuted(back)).outputs[::-1]
    _require(outputs == run.outputs, "order", "the reverse order gives other outputs", case, run, outputs)


def invariants_hold(case: Case) -> None:
    """No check of the highest level fails in any round."""
    run_case(case, checks="oracle")


def acceptance_follows_script(case: Case) -> None:
    """Every row-round accepts exactly the leading drafts of the model that the script lets agree (greedy only).

    Some layer sees the row's first token, which the script goes by.
    """
    case = replace(case, drafter="model", draft_budget="fixed", windowed_layers=1)
    run = run_case(case)
    for record in run.rounds:
        for row in record.rows:
            first = case.rows[row.sequence].prompt[0]
            wanted = expected_accepted(case, first, row.seq_len, row.drafted)
            reason = f"round {record.round}, row {row.sequence}: accepted {row.accepted}, the script says {wanted}"
            _require(row.accepted == wanted, "acceptance", reason, case, run)


def statistics_add_up(case: Case) -> None:
    """The records of the rounds, the outputs and the statistics tell the same numbers."""
    case = replace(case, cancellations=())
    run = run_case(case)
    rows = [row for record in run.rounds for row in record.rows]
    generated = [[t for row in rows if row.sequence == i for t in row.tokens] for i in range(len(case.rows))]
    _require(generated == run.outputs, "statistics", "the rounds' tokens are not the outputs", case, run, generated)
    _require(run.stats.num_rounds == len(run.rounds), "statistics", "rounds are miscounted", case, run)
    _require(not wrong_counts(run), "statistics", wrong_counts(run), case, run)
    ends = [[row.finished for row in rows if row.sequence == i] for i in range(len(case.rows))]
    once = all(e.count(True) == 1 and e[-1] for e in ends)
    _require(once, "statistics", "a row does not finish exactly once, in its last round", case, run)


def stop_and_budget_are_exact(case: Case) -> None:
    """Nothing after the first stop token; the whole budget unless stopped; the reason says which."""
    case = replace(case, cancellations=())
    run = run_case(case)
    for row, tokens, reason in zip(case.rows, run.outputs, run.stop_reasons, strict=True):
        stopped = tokens[-1] in row.stop_token_ids
        clean = not any(token in row.stop_token_ids for token in tokens[:-1])
        full = len(tokens) == row.max_new_tokens or (stopped and len(tokens) < row.max_new_tokens)
        right = reason == ("stop" if stopped else "length")
        _require(clean and full and right, "stop and budget", f"{tokens} ended by {reason!r}", case, run)


PROPERTIES: dict[str, Callable[[Case], None]] = {
    p.__name__: p
    for p in (
        output_equals_oracle,
        schedule_does_not_matter,
        order_does_not_matter,
        invariants_hold,
        acceptance_follows_script,
        statistics_add_up,
        stop_and_budget_are_exact,
    )
}
