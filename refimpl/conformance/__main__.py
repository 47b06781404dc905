"""``python -m refimpl.conformance --engine module:factory | --command "…"``."""

import typer

from refimpl.conformance.command import conformance

if __name__ == "__main__":
    typer.run(conformance)
