"""The one argument of a script that measures: the file it writes, looked at before any work is done."""

import argparse
from pathlib import Path

from refimpl.core.errors import InputError
from refimpl.core.files import check_writable


def output_argument(description: str) -> Path:
    """Where the script writes; it ends with one line, and exit code 2, where that cannot be."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    try:
        check_writable(output)
    except InputError as error:
        parser.error(str(error))
    return output
