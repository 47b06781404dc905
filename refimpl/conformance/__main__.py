"""``python -m refimpl.conformance --engine module:factory | --command "…"``."""

import sys

from refimpl.conformance.command import app
from refimpl.core.console import run_application

if __name__ == "__main__":
    sys.exit(run_application(app))
