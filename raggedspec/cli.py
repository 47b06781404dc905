"""One command for engine and simulator. Neither a tensor library nor pandas is loaded before a command needs it."""

from typing import Annotated

import typer

import refimpl
import refimpl.cli

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Exact batch speculative decoding: decode, verify, measure, test any engine, simulate.",
)
app.add_typer(refimpl.cli.app)


def _simulator() -> typer.Typer:
    """Commands of the simulator; where what it needs is not installed, one that says so."""
    try:
        from simulator.cli import app as commands
    except ModuleNotFoundError as error:
        return _missing(error)
    return commands


def _missing(error: ModuleNotFoundError) -> typer.Typer:
    commands = typer.Typer(help="Simulate; not installed.")

    @commands.callback(invoke_without_command=True, context_settings={"ignore_unknown_options": True})
    def refuse(words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        raise error

    return commands


app.add_typer(_simulator(), name="sim")


def _version(asked: bool) -> None:
    if asked:
        print(f"raggedspec {refimpl.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command as a whole."""


def main() -> None:
    """Run a command; exit codes are those of `refimpl.cli.main`."""
    refimpl.cli.main(app)
