"""``conformance``: test an engine from the command line."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from refimpl.conformance.command_engine import CommandEngine
from refimpl.conformance.engine_cases import ENGINE_PROPERTIES
from refimpl.conformance.kit import check_engine, known_properties
from refimpl.conformance.protocol import EngineFailure, EngineUnderTest, load_engine
from refimpl.conformance.report import show, write_json
from refimpl.errors import InputError
from refimpl.files import check_writable


def conformance(
    engine: Annotated[str | None, typer.Option(help="module:factory or module:factory:argument")] = None,
    command: Annotated[str | None, typer.Option(help="command of a server that speaks JSON lines")] = None,
    max_examples: Annotated[int, typer.Option(min=1, help="cases per property")] = 20,
    timeout_s: Annotated[float, typer.Option(min=0.01, help="seconds a server may take for an answer")] = 60.0,
    fail_fast: Annotated[bool, typer.Option(help="stop after the first property that fails")] = False,
    properties: Annotated[str | None, typer.Option(help="names, separated by commas; all by default")] = None,
    output: Annotated[Path | None, typer.Option(help="write the report as JSON")] = None,
) -> None:
    """Test any engine's batch speculative decoding against autoregressive decoding."""
    torch.set_num_threads(1)
    try:
        chosen = known_properties(properties.split(",") if properties else ENGINE_PROPERTIES)
        if output is not None:
            check_writable(output)
        subject = open_engine(engine, command, timeout_s)
        passed = run(subject, engine or command or "", output, max_examples, chosen, fail_fast)
    except (InputError, EngineFailure) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(0 if passed else 1)


def open_engine(engine: str | None, command: str | None, timeout_s: float) -> EngineUnderTest:
    """Make the engine that one of the two options names.

    Raises:
        InputError: none or both are given, or there is no such engine.
    """
    if (engine is None) == (command is None):
        raise InputError("give either --engine module:factory or --command 'a server'")
    return load_engine(engine) if engine else CommandEngine(command or "", timeout_s)


def run(
    subject: EngineUnderTest,
    name: str,
    output: Path | None,
    max_examples: int,
    properties: list[str],
    fail_fast: bool,
) -> bool:
    """Test the engine, show and write the report; say whether it passed."""
    try:
        report = check_engine(subject, name=name, max_examples=max_examples, properties=properties, fail_fast=fail_fast)
    finally:
        if isinstance(subject, CommandEngine):
            subject.close()
    show(report)
    if output is not None:
        write_json(report, output)
    return report.passed
