"""`conformance`: test any engine's batch speculative decoding."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command(
    epilog="Example: [bold]python -m refimpl conformance --engine refimpl.conformance.adapters:method:exspec[/bold]"
)
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
    from refimpl.conformance.command import conformance as run

    run(engine, command, max_examples, timeout_s, fail_fast, properties, output)
