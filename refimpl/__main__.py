"""Command line: ``python -m refimpl``, the commands of `raggedspec` without `sim`."""

from refimpl.cli import main

if __name__ == "__main__":
    main()
