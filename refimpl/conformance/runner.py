"""Open an engine, test it, show and write the report: what the command does."""

from pathlib import Path
from typing import Any

from refimpl.conformance.command_engine import CommandEngine
from refimpl.conformance.kit import check_engine, known_properties
from refimpl.conformance.protocol import EngineUnderTest
from refimpl.conformance.python_engine import load_engine
from refimpl.conformance.report import show, write_json
from refimpl.conformance.verdicts import Report
from refimpl.conformance.watch import Watch
from refimpl.core.console import ended_by_sigterm
from refimpl.core.errors import InputError
from refimpl.core.files import check_writable
from refimpl.core.progress import progress_bars


def run_conformance(
    engine: str | None,
    command: str | None,
    *,
    reference: str | None = None,
    timeout_s: float = 60.0,
    properties: str | None = None,
    output: Path | None = None,
    total_time_s: float | None = None,
    **options: Any,
) -> Report:
    """Test the engine that one of the first two arguments names, with progress on stderr; show what was found.

    Args:
        engine, command: what to test.
        reference: ``module:factory`` of what plain decoding generates.
        timeout_s: seconds that an answer may take.
        properties: names, separated by commas; None means all.
        output: where to write the report.
        total_time_s: seconds after which the run ends; an answer under way is awaited.
        options: of `refimpl.conformance.kit.check_engine`.

    Raises:
        InputError: impossible arguments, or an engine that cannot be opened.
    """
    chosen = known_properties(properties)
    if output is not None:
        check_writable(output)
    with ended_by_sigterm(KeyboardInterrupt("SIGTERM")), progress_bars() as bars:
        watch = Watch(bars, total_time_s)
        report = _tested(engine, command, timeout_s, reference, properties=chosen, watch=watch, **options)
    show(report)
    if output is not None:
        write_json(report, output)
    return report


def _tested(engine: str | None, command: str | None, timeout_s: float, reference: str | None, **options: Any) -> Report:
    subject = open_engine(engine, command, timeout_s)
    try:
        plain = load_engine(reference, timeout_s) if reference else None
        if plain and plain.vocab_size != subject.vocab_size:
            raise InputError(f"{reference!r} has a vocabulary of {plain.vocab_size}, the engine {subject.vocab_size}")
        return check_engine(subject, name=engine or command or "", reference=plain, **options)
    finally:
        close_engine(subject)


def open_engine(engine: str | None, command: str | None, timeout_s: float) -> EngineUnderTest:
    """Make the engine that one of the two options names.

    Raises:
        InputError: none or both are given, or there is no such engine.
    """
    if bool(engine) == bool(command):
        raise InputError("give either --engine module:factory or --command 'a server'")
    return load_engine(engine, timeout_s) if engine else CommandEngine(command or "", timeout_s)


def close_engine(engine: EngineUnderTest) -> None:
    """End what opening has started."""
    if isinstance(engine, CommandEngine):
        engine.close()
