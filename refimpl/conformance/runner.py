"""Open an engine, test it, show and write the report: what the command does."""

from pathlib import Path

from refimpl.conformance.command_engine import CommandEngine
from refimpl.conformance.engine_cases import ENGINE_PROPERTIES, Limits
from refimpl.conformance.kit import check_engine, known_properties
from refimpl.conformance.protocol import EngineUnderTest, load_engine
from refimpl.conformance.report import show, write_json
from refimpl.errors import InputError
from refimpl.files import check_writable


def run_conformance(
    engine: str | None,
    command: str | None,
    *,
    max_examples: int = 20,
    timeout_s: float = 60.0,
    fail_fast: bool = False,
    properties: str | None = None,
    output: Path | None = None,
    limits: Limits | None = None,
) -> bool:
    """Test the engine that one of the first two arguments names; say whether it passed.

    Raises:
        InputError: impossible arguments.
        EngineFailure: a server does not even describe itself.
    """
    chosen = known_properties(properties.split(",") if properties else ENGINE_PROPERTIES)
    if output is not None:
        check_writable(output)
    subject = open_engine(engine, command, timeout_s)
    try:
        report = check_engine(
            subject,
            name=engine or command or "",
            max_examples=max_examples,
            properties=chosen,
            fail_fast=fail_fast,
            limits=limits,
        )
    finally:
        if isinstance(subject, CommandEngine):
            subject.close()
    show(report)
    if output is not None:
        write_json(report, output)
    return report.passed


def open_engine(engine: str | None, command: str | None, timeout_s: float) -> EngineUnderTest:
    """Make the engine that one of the two options names.

    Raises:
        InputError: none or both are given, or there is no such engine.
    """
    if bool(engine) == bool(command):
        raise InputError("give either --engine module:factory or --command 'a server'")
    return load_engine(engine) if engine else CommandEngine(command or "", timeout_s)
