"""A packed pass: real tokens of several rows side by side in one row, each row's attention on its own K/V."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor

from refimpl.layouts.store import Block, NoteHidden, PooledRows

Attend = Callable[[Tensor, float | None], Tensor]  # queries ``[1, heads, tokens, dim]``, scale -> as `packed_attention`
Seen = list[tuple[Tensor, Tensor]]  # of each part: keys and values ``[rows, kv_heads, width, dim]`` of one layer


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Rows of a packed pass whose queries are answered together: they are padded inside attention, and there alone.

    Attributes:
        index: which of the rows' tokens each query is; any of them where a row has fewer.
        places: of the tokens in the rectangle, counted row by row.
        mask: ``[rows, 1, q, width]``, True where the query sees the slot; a model may put its own form in its place.
    """

    index: Int[Tensor, "rows q"]
    places: Int[Tensor, " tokens"]
    mask: Tensor

    def spread(self, entries: Float[Tensor, "heads tokens dim"]) -> Float[Tensor, "rows heads q dim"]:
        """Entries of tokens as a rectangle."""
        return entries.index_select(1, self.index.flatten()).unflatten(1, self.index.shape).transpose(0, 1)

    def collect(self, entries: Float[Tensor, "rows heads q dim"]) -> Float[Tensor, "heads tokens dim"]:
        """Entries of a rectangle, without its pads."""
        return entries.transpose(0, 1).flatten(1, 2).index_select(1, self.places)


@dataclass(slots=True)
class PackedBlock:
    """``[1, tokens]`` to feed: parts one after the other, without pads.

    A part is one row, whose tokens are the last of what it sees: the first of n tokens in a view of w columns sees
    w - n + 1 of them. The last part may be the rows of a rectangle.

    Attributes:
        tokens: token ids.
        position_ids: index of each token in its row.
        counts: tokens of each part.
        write: called once per layer with that layer's keys and values ``[1, kv_heads, tokens, dim]``; stores them and
            returns what each part sees.
        rectangle: of the last part; None where it is one row.
        note_hidden: called with what the LM head reads ``[1, num_logits, hidden]``; None where nobody asks.
        pooled: all rows, where the pool alone says what they see; None where a mask says more, or is checked.
        attend: answers all queries of the layer that was written last; None where they are answered part by part.
        seen: what `write` returned last, for the attention of that layer.
    """

    tokens: Int[Tensor, "1 tokens"]
    position_ids: Int[Tensor, "1 tokens"]
    counts: list[int]
    write: Callable[[int, Tensor, Tensor], Seen]
    rectangle: Rectangle | None = None
    note_hidden: NoteHidden | None = None
    pooled: PooledRows | None = None
    attend: Attend | None = None
    seen: Seen = field(default_factory=list)

    @classmethod
    def of_rows(cls, block: Block, counts: Seq[int]) -> "PackedBlock":
        """The first `counts[i]` tokens of row i of a block, which stores arbitrary K/V in place of the others'."""
        rectangle = _rectangle(block, counts)

        def write(layer: int, keys: Tensor, values: Tensor) -> Seen:
            return [block.append(layer, rectangle.spread(keys[0]), rectangle.spread(values[0]))]

        tokens, positions = (each.flatten()[rectangle.places][None] for each in (block.tokens, block.position_ids))
        note = block.note_hidden
        note_rows = (lambda hidden: note(hidden[0][rectangle.index])) if note else None
        pooled = block.pooled(counts) if block.pooled else None
        return cls(tokens, positions, [sum(counts)], write, rectangle, note_rows, pooled)

    @classmethod
    def join(cls, blocks: Seq["PackedBlock"]) -> "PackedBlock":
        """All parts of several blocks, of which the last alone may have a rectangle."""
        sizes = [block.tokens.shape[1] for block in blocks]

        def write(layer: int, keys: Tensor, values: Tensor) -> Seen:
            parts = zip(blocks, keys.split(sizes, dim=2), values.split(sizes, dim=2), strict=True)
            return [seen for block, *entries in parts for seen in block.write(layer, *entries)]

        tokens = torch.cat([block.tokens for block in blocks], dim=1)
        positions = torch.cat([block.position_ids for block in blocks], dim=1)
        counts, last = [n for block in blocks for n in block.counts], blocks[-1]
        pooled = PooledRows.join([block.pooled for block in blocks])
        return cls(tokens, positions, counts, write, last.rectangle, last.note_hidden, pooled)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's entries; what the parts see of it is in `seen`."""
        self.seen = self.write(layer, keys, values)
        return keys, values

    def parts(self, tensor: Tensor) -> Iterator[tuple[Tensor, Rectangle | None]]:
        """Each part of ``[1, heads, tokens, dim]``, and its rectangle."""
        *single, last = tensor.split(self.counts, dim=2)
        yield from ((part, None) for part in single)
        yield last, self.rectangle


def _rectangle(block: Block, counts: Seq[int]) -> Rectangle:
    """The rows of a block, each with its first `counts[i]` queries; the others stand for its last one, or for any."""
    q, device, most = block.tokens.shape[1], block.tokens.device, sum(counts) - 1
    rows = zip(accumulate(counts, initial=0), counts, strict=False)
    index = [[min(start + min(j, max(n - 1, 0)), most) for j in range(q)] for start, n in rows]
    places = [i * q + j for i, n in enumerate(counts) for j in range(n)]
    return Rectangle(torch.tensor(index, device=device), torch.tensor(places, device=device), block.mask)
