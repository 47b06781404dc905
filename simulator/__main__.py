"""Command line: ``python -m simulator``, the commands of `raggedspec sim`."""

import sys

from simulator.cli import main

if __name__ == "__main__":
    sys.exit(main())
