"""Figures of files: their kinds, and writing them."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase

from refimpl.core.errors import require
from refimpl.core.files import check_writable, whole_file


def check_figure(path: str | Path) -> None:
    """Raise InputError, before any work is done, unless a figure can be written to `path`."""
    known = FigureCanvasBase.get_supported_filetypes()
    suffix = Path(path).suffix.removeprefix(".")
    require(suffix in known, f"{path}: a figure ends in one of {', '.join(sorted(known))}, not {suffix!r}")
    check_writable(Path(path))


def save(axes: Axes, path: str | Path, dpi: int = 150) -> None:
    """Write the figure that the axes belong to.

    Raises:
        InputError: unknown kind of file, or it cannot be written.
    """
    check_figure(path)
    with whole_file(path, "wb") as file:
        axes.get_figure(root=True).savefig(file, dpi=dpi, format=Path(path).suffix[1:])  # type: ignore[union-attr]
