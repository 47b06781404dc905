"""Command line: ``python -m refimpl --help``."""

from refimpl.cli import main

if __name__ == "__main__":
    main()
