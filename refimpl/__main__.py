"""Command line: ``python -m refimpl generate|verify|demo``."""

from refimpl.cli import main

if __name__ == "__main__":
    main()
