"""What a run reports beside its tokens: log-probabilities, texts, ends and statistics, recounted with plain sums."""

import math

from refimpl.core.records import TokenLogprobs
from refimpl.results import GeneratedSequence
from refimpl.selfcheck.cases import Run

EXACT = 1e-9  # of a log-probability: the integer model's logits are exact, their logarithms are rounded
ROUNDED = 1e-5  # where attention is float32 in any format


def wrong_report(run: Run, wanted: Run, tolerance: float = EXACT) -> str:
    """Name what a whole run reports otherwise than its tokens, its rounds and the oracle's run say; empty if nothing.

    Log-probabilities are compared where the oracle's run has them.
    """
    assert run.result is not None
    assert wanted.result is not None
    if wrong := wrong_counts(run):
        return wrong
    for found, right in zip(run.result.sequences, wanted.result.sequences, strict=True):
        if (found.text, found.stop_reason) != (right.text, right.stop_reason):
            return f"text {found.text!r}, ended by {found.stop_reason}, not {right.text!r}, {right.stop_reason}"
        if not _same_logprobs(found, right, tolerance):
            return f"log-probabilities {found.logprobs}, not {right.logprobs}"
    return ""


def wrong_counts(run: Run) -> str:
    """Compare the statistics of the run, and of each sequence, with sums over rounds and tokens."""
    assert run.result is not None
    pairs = [(run.result.stats.acceptance, _counts(run, range(len(run.outputs))))]
    pairs += [(s.stats, _counts(run, [s.index])) for s in run.result.sequences]
    for stats, counts in pairs:
        reported = {name: getattr(stats, name) for name in counts}
        if reported != counts:
            return f"statistics {reported}, not {counts}"
    return ""


def _counts(run: Run, sequences: range | list[int]) -> dict[str, int]:
    rows = [row for record in run.rounds for row in record.rows if row.sequence in sequences]
    return {
        "row_rounds": len(rows),
        "drafted": sum(row.drafted for row in rows),
        "accepted": sum(row.accepted for row in rows),
        "generated": sum(len(run.outputs[i]) for i in sequences),
    }


def _same_logprobs(found: GeneratedSequence, right: GeneratedSequence, tolerance: float) -> bool:
    if not right.logprobs:
        return True
    entries = zip(found.logprobs, right.logprobs, strict=False)
    return len(found.logprobs) == len(right.logprobs) and all(_same_entry(*each, tolerance) for each in entries)


def _same_entry(found: TokenLogprobs, right: TokenLogprobs, tolerance: float) -> bool:
    numbers = zip([found.logprob, *dict(found.top).values()], [right.logprob, *dict(right.top).values()], strict=True)
    same = all(math.isclose(a, b, rel_tol=0, abs_tol=tolerance) for a, b in numbers)
    return found.token_id == right.token_id and list(dict(found.top)) == list(dict(right.top)) and same
