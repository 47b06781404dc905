"""The command line: gathers the commands and turns errors into one line and an exit code."""

import io
import sys

import typer

from refimpl.commands import calibrate, decode, judge, measure
from refimpl.conformance.command import conformance
from refimpl.core.console import one_line_errors
from refimpl.core.errors import InvariantViolation

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="Exact batch speculative decoding: decode prompts, verify every method against plain decoding, measure.",
)
for commands in (decode.app, judge.app, measure.app, calibrate.app):
    app.add_typer(commands)
app.command(
    epilog="Example: [bold]python -m refimpl conformance --engine refimpl.conformance.adapters:method:exspec[/bold]"
)(conformance)


def main(application: typer.Typer = app) -> None:
    """Run a command; bad input is one line on stderr and exit code 2, a broken invariant exit code 3.

    Typer ends an interrupted command with 130, and one whose output nobody reads with 1. Characters that the terminal's
    encoding lacks become question marks.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with one_line_errors():
        try:
            application()
        except InvariantViolation as violation:
            print(f"invariant violated: {violation}", file=sys.stderr)
            sys.exit(3)
