"""Show a report: a table for readers, JSON for programs."""

from functools import partial
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from refimpl.conformance.properties import ALL_PROPERTIES
from refimpl.conformance.protocol import Call, EngineSettings, Prompts
from refimpl.conformance.subject import ITSELF
from refimpl.conformance.verdicts import DECIDING, NOT_FINISHED, NOTHING_SUPPORTED, Report, Verdict
from refimpl.core.shown import counted

REFERENCES = {"own": "the engine's own reference()"}  # in words, where the kind is not enough
_COLOURS = {"pass": "green", "fail": "red", "not supported": "yellow", "not run": "dim", "not finished": "yellow"}


def show(report: Report, console: Console | None = None) -> None:
    """Print the table, the failing cases and the raggedness profile."""
    console = console or Console()
    whole = not console.is_terminal  # in a file a line stays one
    tell = partial(console.print, markup=False, highlight=False, emoji=False, soft_wrap=whole)
    table = Table(title=Text(report.engine), title_justify="left")
    for column in ("property", "verdict", "answered", "first different token"):
        table.add_column(column, justify="right" if column == "answered" else "left", no_wrap=column == "property")
    for verdict in report.verdicts:
        status = f"[{_COLOURS[verdict.status]}]{verdict.status}[/]"
        table.add_row(verdict.property, status, answered(verdict), _where(verdict))
    console.print(table)
    not_run = next((verdict for verdict in report.verdicts if verdict.status == "not run"), None)  # one reason for all
    for verdict in report.verdicts:
        if verdict.reason and (verdict.status in ("pass", "fail", "not supported") or verdict is not_run):
            tell(f"{verdict.property}: {_why(verdict)}")
            for line in [*tell_place(verdict), *tell_calls(verdict), *hint(verdict, report.reference)]:
                tell(f"  {line}")
    if report.raggedness.rows:
        tell(_raggedness(report))
    tell(tell_how_made(report))
    tell(tell_not_looked_at(report))
    tell(conclusion(report))


def answered(verdict: Verdict) -> str:
    """Cases that were answered, of those that were asked for."""
    return f"{verdict.answered}/{verdict.asked}" if verdict.asked else ""


def tell_how_made(report: Report) -> str:
    """Calls, seed and reference of a run, in a line."""
    reference = REFERENCES.get(report.reference, report.reference)
    return f"{counted(report.calls, 'call')}; seed {report.seed}; reference: {reference}"


def tell_not_looked_at(report: Report) -> str:
    """What the run says nothing about, in a line."""
    return f"not looked at: {'; '.join(report.not_looked_at)}"


def conclusion(report: Report) -> str:
    """Does the engine conform? One line, with what is missing where nothing has failed."""
    if report.conforms:
        return f"conforms{_how_far(report)}"
    decides = any(v.property == DECIDING for v in report.verdicts)
    if report.passed and decides:
        return f"passes{_how_far(report)}"
    if report.passed:
        return f"passes what was asked; whether it conforms only {DECIDING} can tell"
    if report.exit_code == NOT_FINISHED:
        return f"not finished: the run ended before all was checked of {', '.join(report.unfinished)}"
    if any(v.status == "fail" for v in report.verdicts):
        return "does not conform"
    return f"does not conform: {f'{DECIDING} must pass' if decides else NOTHING_SUPPORTED}"


def _how_far(report: Report) -> str:
    """How many properties were asked for, where not all were, what the limits leave out, and what was refused."""
    checked, of = len({verdict.property for verdict in report.verdicts}), len(ALL_PROPERTIES)
    some = "" if checked == of else f" in the {checked} of {of} properties that were checked"
    one_row = ", one row at a time" * (report.limits.max_batch == 1)
    refused = [
        f"; it answered {verdict.answered} of {verdict.asked} cases of {DECIDING}"
        for verdict in report.verdicts
        if verdict.property == DECIDING and verdict.answered < verdict.asked
    ]
    return "".join([some, one_row, f", at k = {report.limits.k} alone" * bool(report.limits.k), *refused])


def _why(verdict: Verdict) -> str:
    return verdict.reason if verdict.status in ("pass", "fail") else f"{verdict.status} ({verdict.reason})"


def tell_place(verdict: Verdict) -> list[str]:
    """Where the engine raised its error, in a line, if that is known."""
    return [f"at {verdict.place}"] if verdict.place else []


def tell_calls(verdict: Verdict) -> list[str]:
    """What the engine was asked in the failing case, a line for each call."""
    several, case = len(verdict.calls) > 1, "smallest case found" if verdict.shrunk else "failing case"
    return [f"{case}{f', call {i + 1}' if several else ''}: {describe(call)}" for i, call in enumerate(verdict.calls)]


def hint(verdict: Verdict, reference: str) -> list[str]:
    """What else may explain that an engine differs from its own run without drafts."""
    wrong_tokens = (verdict.property, verdict.status) == (DECIDING, "fail") and verdict.token is not None
    if not wrong_tokens or not reference.startswith(ITSELF) or _is_too_long(verdict):
        return []
    return [
        "the engine differs from its own run, one prompt at a time: does it round? In 16 bit, batches change the "
        "tokens of a right engine. Test it in float32 or batch-invariant, or judge it with raggedspec tie-or-bug "
        "(docs/conformance.md, If your engine rounds)"
    ]


def _is_too_long(verdict: Verdict) -> bool:
    """Whether a row is right up to its budget and goes on, which no rounding explains."""
    return verdict.token is not None and verdict.token >= verdict.calls[-1].settings.max_new_tokens


def describe(call: Call) -> str:
    """A call in one line; stop tokens, temperature and seed where they differ from the defaults."""
    settings, usual = call.settings, EngineSettings()
    always = {name: getattr(settings, name) for name in ("max_new_tokens", "batch_size", "num_speculative_tokens")}
    other: dict[str, Any] = {"stop_token_ids": list(settings.stop_token_ids)} if settings.stop_token_ids else {}
    if settings.temperature != usual.temperature:
        other |= {"temperature": settings.temperature, "seed": settings.seed}
    if settings.submit_at:
        other |= {"submit_at": list(settings.submit_at), "cancel_at": list(settings.cancel_at)}
    told = ", ".join(f"{name} {value}" for name, value in (always | other).items())
    return f"prompts {_prompts(call.prompts)}; {told}"


def _prompts(prompts: Prompts) -> str:
    runs = [(list(prompt), len(list(same))) for prompt, same in groupby(prompts)]
    return ", ".join(f"{count} × {prompt}" if count > 3 else ", ".join([str(prompt)] * count) for prompt, count in runs)


def _where(verdict: Verdict) -> str:
    return "" if verdict.token is None else f"row {verdict.row}, token {verdict.token}"


def _raggedness(report: Report) -> str:
    profile = report.raggedness
    cells = [
        f"{wrong}/{rows} at spread {spread}"
        for spread, wrong, rows in zip(profile.spreads, profile.wrong_rows, profile.rows, strict=True)
    ]
    return f"wrong rows by spread of prompt lengths: {', '.join(cells)}: {profile.verdict}"
