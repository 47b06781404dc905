"""``python -m simulator``: run, compare, sweep, attribute, trace, parity, validate, fit, bench."""

import sys

from simulator.cli import main

if __name__ == "__main__":
    sys.exit(main())
