"""Axes, colours and captions that all pictures share. matplotlib is loaded on first use."""

import io
import re
import textwrap
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY, PALE = "#0072b2", "#d55e00", "#8c8c8c", "#d9d9d9"
SERIES = (BLUE, ORANGE, "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DASHES = ("-", "--", "-.", ":")
LEGEND_ROWS = 16
DPI = 110
CHARACTERS_PER_INCH = 13  # of a title
UNIT = re.compile(r"(?<=\d) (?=[%×]|[mµ]?s\b)")  # the blank before it


def new_axes(width: float = 6.0, height: float = 3.6) -> "Axes":
    """Fresh axes without a display; sizes in inches."""
    return panels(1, width, height)[0]


def panels(count: int, width: float = 6.0, height: float = 2.4) -> "list[Axes]":
    """Axes below each other in one figure; `height` is that of each, in inches."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9}):
        figure = Figure(figsize=(width, height * count), layout="constrained")
        axes = figure.subplots(count, squeeze=False)[:, 0].tolist()
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return axes


def series_styles(count: int) -> list[dict[str, Any]]:
    """Colour and line style of each of `count` series: six colours, or a colour map with dashes that take turns."""
    import matplotlib as mpl

    if count <= len(SERIES):
        return [{"color": color, "linestyle": "-"} for color in SERIES[:count]]
    colors = mpl.colormaps["viridis"]([0.92 * i / (count - 1) for i in range(count)])
    return [{"color": color, "linestyle": DASHES[i % len(DASHES)]} for i, color in enumerate(colors)]


def add_legend(axes: "Axes", count: int) -> None:
    """Within the axes, or beside them where many series would be hidden below it."""
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1), "ncols": -(-count // LEGEND_ROWS)}
    beside |= {"fontsize": 7, "handlelength": 4}  # long enough to tell dashes apart
    axes.legend(frameon=False, **(beside if count > len(SERIES) else {}))


def draw_heat_map(
    axes: "Axes", values: Seq[Seq[float]], columns: Seq[Any], rows: Seq[Any], *, numbers: str = "{:.3g}", **image: Any
) -> None:
    """A number in every cell, on its colour.

    Args:
        axes: where to draw.
        values: ``[rows][columns]``; NaN stays empty.
        columns, rows: what the cells are labelled with.
        numbers: their format; empty for none.
        **image: passed on to `imshow`, for example ``cmap="RdBu_r"``.
    """
    drawn = axes.imshow(values, aspect="auto", interpolation="nearest", **{"cmap": "viridis"} | image)
    axes.set_xticks(range(len(columns)), [str(label) for label in columns])
    axes.set_yticks(range(len(rows)), [str(label) for label in rows])
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            if numbers and value == value:
                light = drawn.to_rgba(np.array([value]))[0, :3].sum() > 1.5
                color = "black" if light else "white"
                axes.text(j, i, numbers.format(value), ha="center", va="center", fontsize=8, color=color)


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """A figure with the sentence that says what it shows; a notebook shows both.

    Attributes:
        figure: of matplotlib.
        sentence: what it shows, with the numbers in it.
    """

    figure: "Figure"
    sentence: str

    def __repr__(self) -> str:
        return self.sentence

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.figure.savefig(file, dpi=DPI, format="png")
        return file.getvalue()


def captioned(axes: "Axes", sentence: str) -> Picture:
    """Give a figure its title: one sentence that says what it shows.

    Args:
        axes: any axes of the figure.
        sentence: with the numbers that the figure shows.

    Example::

        captioned(timeline(result.rounds), f"{len(result.rounds)} rounds")
    """
    figure: Any = axes.get_figure(root=True)
    together = UNIT.sub("\u00a0", sentence)
    wrapped = textwrap.fill(together, int(CHARACTERS_PER_INCH * figure.get_figwidth()))
    axes.set_title("")  # the sentence takes its place
    figure.suptitle(wrapped, fontsize=10)
    return Picture(figure, sentence)
