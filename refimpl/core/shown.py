"""How results show themselves: one line in a terminal, a table in a notebook, a pandas frame on request."""

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 60  # of a table in a notebook
MAX_TEXT = 60  # characters of a text in one line


class Shown:
    """A result with a frame; its `repr` is one line, which stands above the table in a notebook."""

    __slots__ = ()

    def to_frame(self) -> "pd.DataFrame":
        """The result as a table."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        line = f"<p>{html.escape(repr(self))}</p>"
        try:
            frame = self.to_frame()
        except ModuleNotFoundError:  # pandas comes with an extra
            return line
        return f"{line}\n" + frame.to_html(max_rows=MAX_ROWS, float_format="{:.4g}".format, na_rep="–", border=0)


def counted(number: int, noun: str) -> str:
    """A number of things, for example ``1 row`` or ``2 rows``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shortened(text: str, limit: int = MAX_TEXT) -> str:
    """A text cut to so many characters, and in quotes."""
    return repr(text if len(text) <= limit else text[:limit] + "…")
