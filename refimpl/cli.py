"""The command line: gathers the commands and turns errors into one line and an exit code."""

import sys

import typer

from refimpl.commands import calibrate, decode, judge, law, measure, memory, serving
from refimpl.conformance import command as conformance
from refimpl.core.console import BAD_INPUT, run_application
from refimpl.core.errors import is_out_of_memory
from refimpl.core.interrupts import tell
from refimpl.core.invariants import InvariantViolation

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Exact batch speculative decoding: decode prompts, verify every method against plain decoding, measure.",
)
for commands in (decode, judge, law, memory, measure, serving, calibrate, conformance):
    app.add_typer(commands.app)


def main(application: typer.Typer = app) -> None:
    """Run a command and exit: with 2 for bad input, 3 for a broken invariant, 130 if interrupted, 1 without a reader.

    Raises:
        SystemExit: always.
    """
    try:
        sys.exit(run_application(application))
    except InvariantViolation as violation:
        tell(f"invariant violated: {violation}")
        sys.exit(3)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        advice = "take fewer rows, shorter prompts or a smaller kv_memory_gib (see `raggedspec memory-plan`)"
        first_line, _, _ = str(error).partition("\n")
        tell(f"error: out of memory: {first_line}: {advice}")
        sys.exit(BAD_INPUT)
