"""What a run reports beside its tokens: log-probabilities, texts, ends and statistics, recounted with plain sums."""

import math

from refimpl.core.records import TokenLogprobs
from refimpl.results import GeneratedSequence
from refimpl.selfcheck.cases import Run

TOLERANCE = 1e-9  # of a log-probability: the integer model's logits are exact, their logarithms are rounded


def wrong_report(run: Run, wanted: Run) -> str:
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
        if not _same_logprobs(found, right):
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


def _same_logprobs(found: GeneratedSequence, right: GeneratedSequence) -> bool:
    if not right.logprobs:
        return True
    return len(found.logprobs) == len(right.logprobs) and all(map(_same_entry, found.logprobs, right.logprobs))


def _same_entry(found: TokenLogprobs, right: TokenLogprobs) -> bool:
    numbers = zip([found.logprob, *dict(found.top).values()], [right.logprob, *dict(right.top).values()], strict=True)
    same = all(math.isclose(a, b, rel_tol=0, abs_tol=TOLERANCE) for a, b in numbers)
    return found.token_id == right.token_id and list(dict(found.top)) == list(dict(right.top)) and same
