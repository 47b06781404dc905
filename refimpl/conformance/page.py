"""A report as a page for people and as JUnit: verdicts, failing batches, how to ask for them again."""

from refimpl.conformance.report import (
    answered,
    conclusion,
    hint,
    tell_calls,
    tell_how_made,
    tell_not_looked_at,
    tell_place,
)
from refimpl.conformance.verdicts import Report, Verdict
from refimpl.core.provenance import command_line
from refimpl.viz.batch import DrawnBatch, compared_batch
from refimpl.viz.page import Check, Page, Status

STATUSES: dict[str, Status] = {"pass": "pass", "fail": "fail"}  # others say nothing of the engine
MOST_REPEATED = 2000  # characters of a request that a page shows; a report of --output has all


def page_of(report: Report) -> Page:
    """The page of a report."""
    status: Status = "pass" if report.passed else "fail" if report.exit_code == 1 else "skipped"
    checks = tuple(_check(verdict, report.reference) for verdict in report.verdicts)
    notes = (tell_how_made(report), tell_not_looked_at(report))
    return Page(
        "conformance", report.engine, conclusion(report), status, ("answered",), checks, notes, (command_line(),)
    )


def _check(verdict: Verdict, reference: str) -> Check:
    told = [verdict.reason] * bool(verdict.reason)
    if verdict.status == "fail":
        told += [*tell_place(verdict), *tell_calls(verdict), *hint(verdict, reference)]
    requests = tuple(request[:MOST_REPEATED] for request in verdict.as_dict()["requests"])
    status = STATUSES.get(verdict.status, "skipped")
    return Check(verdict.property, status, verdict.status, (answered(verdict),), tuple(told), _drawn(verdict), requests)


def _drawn(verdict: Verdict) -> DrawnBatch | None:
    """The rows of the last call, which the tokens that were compared belong to."""
    prompts = verdict.calls[-1].prompts if verdict.calls else ()
    return compared_batch([*map(len, prompts)], verdict.found, verdict.expected) if verdict.found else None
