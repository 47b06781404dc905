"""Command line: ``python -m simulator``, the commands of `raggedspec sim`."""

import sys

from refimpl.core.interrupts import quiet_interrupts

if __name__ == "__main__":
    with quiet_interrupts():
        from simulator.cli import main

        sys.exit(main())
