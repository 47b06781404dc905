"""How far back the layers of a model look."""

from typing import Literal, NamedTuple

from jaxtyping import Bool, Int
from torch import Tensor

from refimpl.core import kernels


class Span(NamedTuple):
    """What a layer's queries see of their row, up to their own position.

    Attributes:
        kind: ``full`` for all of it, ``window`` for the last `size` positions, ``chunk`` for those of their own chunk
            of `size` positions.
        size: in tokens; 0 for ``full``.
    """

    kind: Literal["full", "window", "chunk"] = "full"
    size: int = 0

    def reaches(self, slot: Int[Tensor, "*slots"], query: Int[Tensor, "*queries"]) -> Bool[Tensor, "*both"]:
        """Whether a query looks back as far as a slot, by their positions."""
        if self.kind == "full":
            return slot >= 0
        near = kernels.in_window if self.kind == "window" else kernels.in_chunk
        return near(slot, query, self.size)

    def start(self, query: int) -> int:
        """First position that queries from this one on may see; it may lie before the row."""
        if self.kind == "full":
            return 0
        start = kernels.window_start if self.kind == "window" else kernels.chunk_start
        return start(query, self.size)


FULL = Span()
