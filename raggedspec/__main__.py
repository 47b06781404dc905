"""Command line: ``python -m raggedspec --help``."""

from raggedspec.cli import main

if __name__ == "__main__":
    main()
