"""``python -m simulator``: run, compare, sweep, attribute, validate, trace, plot, bench."""

import sys

from simulator.cli import main

if __name__ == "__main__":
    sys.exit(main())
