"""``conformance``: test an engine from the command line."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from refimpl.conformance.command_engine import CommandEngine
from refimpl.conformance.kit import check_engine
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
    output: Annotated[Path | None, typer.Option(help="write the report as JSON")] = None,
) -> None:
    """Test any engine's batch speculative decoding against autoregressive decoding."""
    torch.set_num_threads(1)
    try:
        passed = run(engine, command, max_examples, timeout_s, fail_fast, output)
    except (InputError, EngineFailure) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(0 if passed else 1)


def run(
    engine: str | None, command: str | None, max_examples: int, timeout_s: float, fail_fast: bool, output: Path | None
) -> bool:
    """Test the engine named by either option; show and write the report; say whether it passed."""
    if (engine is None) == (command is None):
        raise InputError("give either --engine module:factory or --command 'a server'")
    if output is not None:
        check_writable(output)
    subject: EngineUnderTest = load_engine(engine) if engine else CommandEngine(command or "", timeout_s)
    try:
        report = check_engine(subject, name=engine or command or "", max_examples=max_examples, fail_fast=fail_fast)
    finally:
        if isinstance(subject, CommandEngine):
            subject.close()
    show(report)
    if output is not None:
        write_json(report, output)
    return report.passed
