"""Command line: ``python -m refimpl``, the commands of `raggedspec` without `sim`."""

from refimpl.core.interrupts import quiet_interrupts

if __name__ == "__main__":
    with quiet_interrupts():
        from refimpl.cli import main

        main()
