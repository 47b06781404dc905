"""Build the reference of the public names of `refimpl` and `simulator` as HTML, with pdoc.

``python tools/reference.py FOLDER``, or ``make docs`` for build/reference. Public names are loaded on first use; pdoc
looks at what a package holds, so they are put there first.
"""

import argparse
import warnings
from pathlib import Path

import pdoc

import refimpl
import simulator

PACKAGES = (refimpl, simulator)


def build(folder: Path) -> None:
    """Write one page a package, an index and a search."""
    for package in PACKAGES:
        vars(package).update({name: getattr(package, name) for name in package.__all__})
    warnings.filterwarnings("ignore", "Cannot determine where")  # pdoc knows no inherited keys of a TypedDict
    pdoc.render.configure(docformat="google", footer_text=f"raggedspec {refimpl.__version__}")
    pdoc.pdoc(*(package.__name__ for package in PACKAGES), output_directory=folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the pages go")
    build(parser.parse_args().folder)
