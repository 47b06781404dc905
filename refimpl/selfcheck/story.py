"""Tell a run round by round, so that a failing example can be read."""

from collections.abc import Sequence as Seq
from typing import Any

from refimpl.core.drafting import DraftingConfig
from refimpl.core.engine_settings import SCHEDULERS
from refimpl.core.tokens import first_difference
from refimpl.decoding.trace import RoundRecord
from refimpl.selfcheck.cases import Case, Row


def tell(case: Case, rounds: Seq[RoundRecord], outputs: Seq[Seq[int]], wanted: Seq[Seq[int]] | None = None) -> str:
    """Text of a run: settings, rows, rounds, and where the outputs part from the wanted ones."""
    lines = [_settings(case), *(_row(i, row) for i, row in enumerate(case.rows))]
    for record in rounds:
        lines.append(f"round {record.round} ({record.mode})")
        lines += [f"  {_outcome(outcome)}" for outcome in record.rows]
        lines += [f"  row {row} is cancelled" for after, row in case.cancellations if after == record.round + 1]
    for i, tokens in enumerate(outputs):
        lines += _difference(i, tokens, wanted[i] if wanted is not None else tokens)
    return "\n".join(lines)


def _settings(case: Case) -> str:
    rule = case.acceptance if case.temperature == 0 else f"{case.acceptance} at temperature {case.temperature}"
    window = f", window {case.window_size}" if SCHEDULERS[case.scheduler].windowed else ""
    drafting = f", drafter {case.drafter}, draft budget {case.draft_budget}"
    drafting = "" if case.drafting == DraftingConfig() else drafting
    return f"{case.layout} × {case.scheduler}, batch {case.batch_size}{window}, {rule}{drafting}"


def _row(index: int, row: Row) -> str:
    script = "".join("+" if agrees else "-" for agrees in row.agreements or ()) or "all +"
    script = "without script" if row.agreements is None else script
    stop = f", stop token {row.stop_token_ids[0]}" if row.stop_token_ids else ""
    own = "".join(f", {name} {value}" for name, value in row.own)
    return f"row {index}: prompt {list(row.prompt)}, budget {row.max_new_tokens}, k {row.k}{stop}{own}, draft {script}"


def _outcome(outcome: Any) -> str:
    end = ", finished" if outcome.finished else ""
    return (
        f"row {outcome.sequence} at length {outcome.seq_len}: drafted {outcome.drafted}, accepted {outcome.accepted}, "
        f"kept {list(outcome.tokens)} ({outcome.next_token}){end}"
    )


def _difference(index: int, found: Seq[int], wanted: Seq[int]) -> list[str]:
    at = first_difference(found, wanted)
    if at is None:
        return [f"row {index} generated {list(found)}"]
    return [f"row {index} generated {list(found)}", f"       instead of {list(wanted)}, different from token {at} on"]
