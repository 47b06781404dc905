"""Command line: ``python -m raggedspec --help``, and the command `raggedspec`."""

import sys

INTERRUPTED = 130  # as `refimpl.core.console`, which is not loaded yet


def main() -> None:
    """Load the commands and run one; exit codes are those of `refimpl.cli.main`, also while they are loaded.

    Raises:
        SystemExit: always.
    """
    try:
        from raggedspec.cli import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
