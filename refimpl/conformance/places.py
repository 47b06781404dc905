"""Where in an engine's code an error was raised."""

import sysconfig
import traceback
from pathlib import Path

_NOT_TOLD = (str(Path(__file__).parent), sysconfig.get_path("stdlib"), "<")  # the kit, Python, and generated code
_INSTALLED = "site-packages"


def place_of(error: BaseException) -> str:
    """File, line and function in which an error was raised, see `place_on`."""
    return place_on(traceback.extract_tb(error.__traceback__))


def place_on(stack: traceback.StackSummary) -> str:
    """File, line and function of the innermost call in code that is not installed, else in any but Python's own.

    Calls of the kit itself do not count. Where all are such, as for a module that does not exist, there is no place.
    """
    calls = [call for call in stack if _INSTALLED in call.filename or not call.filename.startswith(_NOT_TOLD)]
    own = [call for call in calls if _INSTALLED not in call.filename] or calls
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}, in {own[-1].name}" if own else ""
