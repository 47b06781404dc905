"""Command line: ``python -m raggedspec --help``, and the command `raggedspec`."""

from refimpl.core.interrupts import quiet_interrupts


def main() -> None:
    """Load the commands and run one; exit codes are those of `refimpl.cli.main`, also while they are loaded.

    Raises:
        SystemExit: always.
    """
    with quiet_interrupts():
        from raggedspec.cli import main as run

        run()


if __name__ == "__main__":
    main()
