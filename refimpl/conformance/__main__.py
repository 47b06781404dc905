"""``python -m refimpl.conformance``: the same as `raggedspec conformance`."""

import sys

from refimpl.conformance.command import app
from refimpl.core.console import run_application

if __name__ == "__main__":
    sys.exit(run_application(app))
