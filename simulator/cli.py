"""The command line: gathers the commands and turns errors into one line and an exit code."""

import sys

import typer

from refimpl.core.console import BAD_INPUT, one_line_errors
from simulator.commands import studies, traces

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="""Simulate batch speculative decoding: throughput, latency and memory of any layout and scheduler.

    Tables go to stdout; with --json they go to stderr, and stdout holds one line of JSON. Bad input exits with 2.
    """,
)
for commands in (studies.app, traces.app):
    app.add_typer(commands)
INTERRUPTED = 130  # exit code


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        with one_line_errors():
            code = app(arguments, standalone_mode=False)  # what `typer.Exit` says, or what the command returns
    except SystemExit as end:
        code = end.code
    except Exception as error:
        code = _usage_error(error)
    if code == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _usage_error(error: Exception) -> int:
    """Errors of the option parser become one line; anything else is a bug and keeps its traceback."""
    kinds = {kind.__name__ for kind in type(error).__mro__}  # typer may carry its own copy of click
    if "NoArgsIsHelpError" in kinds:
        print(error.format_message())  # type: ignore[attr-defined]
        return BAD_INPUT
    if "ClickException" in kinds:
        print(f"error: {error.format_message()}", file=sys.stderr)  # type: ignore[attr-defined]
        return BAD_INPUT
    if "Abort" in kinds:  # other versions of typer return the code
        return INTERRUPTED
    raise error
