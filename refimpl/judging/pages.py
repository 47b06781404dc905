"""Reports of `verify` and `tie-or-bug` as pages."""

from collections.abc import Mapping

from refimpl.core.provenance import command_line
from refimpl.core.shown import counted
from refimpl.judging.equivalence import MethodReport, VerifyReport
from refimpl.judging.tie_or_bug import Judgement
from refimpl.viz.page import Check, Page, Status

MOST_LINES = 10
AGAINST = "one-at-a-time decoding"


def verify_page(report: VerifyReport, *, must_be_exact: bool) -> Page:
    """The page of a `verify` run.

    Args:
        report: what was found.
        must_be_exact: whether tokens that differ are a failure, which they are not in 16 bit.
    """
    checks = tuple(_run(row, report.prompts, must_be_exact) for row in report.results)
    exact = sum(row.exact for row in report.results)
    verdict = f"{exact} of {counted(len(checks), 'run')} exact"
    title = f"{counted(report.prompts, 'prompt')} against {AGAINST}"
    columns = ("exact", "mean acceptance length")
    return Page("verify", title, verdict, _worst(checks), columns, checks, (), (command_line(),))


def _run(row: MethodReport, prompts: int, must_be_exact: bool) -> Check:
    found, entry = row.comparison, row.as_dict()
    failed = bool(row.violations) or (must_be_exact and not row.exact)
    parted = [
        f"prompt {d.index} differs from token {d.at} on: {d.found} instead of {d.expected}"
        for d in (found.divergences if found else ())
    ]
    return Check(
        f"{row.method}, batch {row.batch_size}",
        "fail" if failed else "pass",
        "broken invariant" if row.violations else "exact" if row.exact else "not exact",
        (f"{entry['exact']}/{prompts}", f"{entry['mean_acceptance_length']:.2f}"),
        (*row.violations, *parted[:MOST_LINES]),
        row.drawn,
        (f"{command_line()} --methods {row.method} --batch-sizes {row.batch_size}",),
    )


def ties_page(judgements: Mapping[str, Judgement]) -> Page:
    """The page of a `tie-or-bug` run."""
    checks = tuple(_judged(name, judgement) for name, judgement in judgements.items())
    bugs = sum(check.status == "fail" for check in checks)
    verdict = f"{counted(bugs, 'bug')} in {counted(len(checks), 'run')}" if bugs else "no bug: rounding explains all"
    columns = ("exact", "tie", "bug", "largest regret", "threshold")
    title = f"greedy output against {AGAINST}"
    return Page("tie-or-bug", title, verdict, _worst(checks), columns, checks, (), (command_line(),))


def _judged(name: str, judgement: Judgement) -> Check:
    sizes = f"{judgement.largest_regret:.4g}", f"{judgement.threshold:.4g}"
    lines = [
        f"row {row.index}: largest regret {max(row.regrets):.4g}" + ", ends where it should not" * (not row.ends_right)
        for row in judgement.rows
        if row.verdict == "bug"
    ]
    return Check(
        name,
        "fail" if judgement.verdict == "bug" else "pass",
        judgement.verdict,
        (*map(str, judgement.counts.values()), *sizes),
        tuple(lines[:MOST_LINES]),
        judgement.drawn,
        (command_line(),),
    )


def _worst(checks: tuple[Check, ...]) -> Status:
    return "fail" if any(check.status == "fail" for check in checks) else "pass"
