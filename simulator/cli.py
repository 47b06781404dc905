"""The command line of the simulator: `raggedspec sim`, or ``python -m simulator``."""

import typer

from refimpl.core.console import run_application
from simulator.commands import panel, plan, published, studies, traces

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="""Simulate batch speculative decoding: throughput, latency and memory of any layout and scheduler.

    Tables go to stdout. With --json they go to stderr, and stdout gets one line of JSON. Bad input: exit code 2.
    """,
)
for commands in (studies.app, plan.app, panel.app, published.app, traces.app):
    app.add_typer(commands)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_application(app, arguments)
