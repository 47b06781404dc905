"""A packed pass: real tokens of several rows side by side in one row, each row's attention on its own K/V."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from jaxtyping import Int
from torch import Tensor

Rows = list[tuple[Tensor, Tensor]]  # of each row: its keys and values ``[1, kv_heads, width, dim]`` of one layer


@dataclass(slots=True)
class PackedBlock:
    """``[1, tokens]`` to feed: the rows' parts one after the other, without pads.

    A row's tokens are the last of what it sees: the first of n tokens in a view of w columns sees w - n + 1 of them.

    Attributes:
        tokens: token ids.
        position_ids: index of each token in its row.
        counts: tokens of each row.
        write: called once per layer with that layer's keys and values ``[1, kv_heads, tokens, dim]``; stores them and
            returns what each row sees.
        seen: what it returned last, for the attention of that layer.
    """

    tokens: Int[Tensor, "1 tokens"]
    position_ids: Int[Tensor, "1 tokens"]
    counts: list[int]
    write: Callable[[int, Tensor, Tensor], Rows]
    seen: Rows = field(default_factory=list)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's entries; what the rows see of it is in `seen`."""
        self.seen = self.write(layer, keys, values)
        return keys, values

    def parts(self, tensor: Tensor) -> Iterator[Tensor]:
        """Each row's part of ``[1, heads, tokens, dim]``."""
        yield from tensor.split(self.counts, dim=2)
