"""A packed pass: real tokens of several rows side by side in one row, each row's attention on its own K/V."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor

from refimpl.layouts.spans import FULL, Span
from refimpl.layouts.store import Block, NoteHidden, PooledRows

Attend = Callable[[Tensor, float | None], Tensor]  # queries ``[1, heads, tokens, dim]``, scale -> as `packed_attention`
Seen = list[tuple[Tensor, Tensor]]  # of each part: keys and values ``[rows, kv_heads, width, dim]`` of one layer


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Rows of a packed pass whose queries are answered together: they are padded inside attention, and there alone.

    Attributes:
        index: which of the rows' tokens each query is; any of them where a row has fewer.
        places: of the tokens in the rectangle, counted row by row.
        seen_by: gives the mask ``[rows, 1, q, width]`` of layers that look back so far, True where a query sees a slot.
        masks: by span, in the form that the model's attention takes.
        orders: by numbers of query heads and of key heads: the order of `fold`, and that of `unfold`; found once.
    """

    index: Int[Tensor, "rows q"]
    places: Int[Tensor, " tokens"]
    seen_by: Callable[[Span], Tensor]
    masks: dict[Span, Tensor] = field(default_factory=dict)
    orders: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def spread(self, entries: Float[Tensor, "heads tokens dim"]) -> Float[Tensor, "rows heads q dim"]:
        """Entries of tokens as a rectangle."""
        return entries.index_select(1, self.index.flatten()).unflatten(1, self.index.shape).transpose(0, 1)

    def fold(
        self, query: Float[Tensor, "1 heads tokens dim"], kv_heads: int
    ) -> Float[Tensor, "rows kv_heads group_q dim"]:
        """Queries as a rectangle, those of heads that share keys side by side."""
        heads, order = query.shape[1], self._order(query.shape[1], kv_heads)[0]
        folded = query[0].transpose(0, 1).flatten(0, 1).index_select(0, order)
        return folded.view(len(self.index), kv_heads, heads // kv_heads * self.index.shape[1], -1)

    def unfold(
        self, output: Float[Tensor, "rows kv_heads group_q dim"], heads: int
    ) -> Float[Tensor, "1 tokens heads dim"]:
        """What `fold` has put side by side, without pads."""
        order = self._order(heads, output.shape[1])[1]
        return output.transpose(1, 2).flatten(0, 2).index_select(0, order).view(1, len(self.places), heads, -1)

    def _order(self, heads: int, kv_heads: int) -> tuple[Tensor, Tensor]:
        if (heads, kv_heads) not in self.orders:
            self.orders[heads, kv_heads] = self._find_order(heads, kv_heads)
        return self.orders[heads, kv_heads]

    def _find_order(self, heads: int, kv_heads: int) -> tuple[Tensor, Tensor]:
        """Of pairs (token, head), those of a rectangle; of its (row, head in a group, query, key head), the tokens'."""
        (rows, q), group, device = self.index.shape, heads // kv_heads, self.index.device
        head = torch.arange(heads, device=device)
        folded = self.index[:, None] * heads + head[:, None]
        at = torch.arange(rows * group * q * kv_heads, device=device).view(rows, group, q, kv_heads)
        unfolded = at.permute(0, 2, 3, 1).reshape(rows * q, heads).index_select(0, self.places)
        return folded.flatten(), unfolded.flatten()


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
        note_hidden: who reads its hidden states; None where nobody asks.
        pooled: all rows, where the pool alone says what they see; None where a mask says more, or is checked.
        attend: answers all queries of the layer that was written last; None where they are answered part by part.
        spans: how far back each layer looks; empty where all look back to the beginning.
        layer: that was written last.
        seen: what `write` returned for it.
    """

    tokens: Int[Tensor, "1 tokens"]
    position_ids: Int[Tensor, "1 tokens"]
    counts: list[int]
    write: Callable[[int, Tensor, Tensor], Seen]
    rectangle: Rectangle | None = None
    note_hidden: NoteHidden | None = None
    pooled: PooledRows | None = None
    attend: Attend | None = None
    spans: Seq[Span] = ()
    layer: int = 0
    seen: Seen = field(default_factory=list)

    @classmethod
    def of_rows(cls, block: Block, counts: Seq[int]) -> "PackedBlock":
        """The first `counts[i]` tokens of row i of a block.

        Where it can only write all of its entries, it stores arbitrary ones in place of the others'.
        """
        rectangle = _rectangle(block, counts)
        append = block.append_of(rectangle.places) if block.append_of else None

        def write(layer: int, keys: Tensor, values: Tensor) -> Seen:
            if append:
                return [append(layer, keys, values)]
            return [block.append(layer, rectangle.spread(keys[0]), rectangle.spread(values[0]))]

        tokens, positions = (each.flatten()[rectangle.places][None] for each in (block.tokens, block.position_ids))
        note = block.note_hidden
        note_rows = replace(note, note=lambda hidden: note.note(hidden[0][rectangle.index])) if note else None
        pooled = block.rows_in_pool(counts) if block.rows_in_pool else None
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
        return cls(tokens, positions, counts, write, last.rectangle, _note_of_all(blocks, sizes), pooled)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's entries; what the parts see of it is in `seen`."""
        self.layer, self.seen = layer, self.write(layer, keys, values)
        return keys, values

    @property
    def span(self) -> Span:
        """How far back the layer looks that was written last."""
        return self.spans[self.layer] if self.spans else FULL

    def parts(self, tensor: Tensor) -> Iterator[tuple[Tensor, Rectangle | None]]:
        """Each part of ``[1, heads, tokens, dim]``, and its rectangle."""
        *single, last = tensor.split(self.counts, dim=2)
        yield from ((part, None) for part in single)
        yield last, self.rectangle


def _note_of_all(blocks: Seq[PackedBlock], sizes: Seq[int]) -> NoteHidden | None:
    """Hand each block that asks for them the hidden states of its tokens."""
    asking = [block.note_hidden for block in blocks]

    def note(hidden: Tensor) -> None:
        for each, part in zip(asking, hidden.split(list(sizes), dim=1), strict=True):
            if each:
                each.note(part)

    return next((replace(each, note=note) for each in asking if each), None)


def _rectangle(block: Block, counts: Seq[int]) -> Rectangle:
    """The rows of a block, each with its first `counts[i]` queries; the others stand for its last one, or for any."""
    q, device, most = block.tokens.shape[1], block.tokens.device, sum(counts) - 1
    rows = zip(accumulate(counts, initial=0), counts, strict=False)
    index = [[min(start + min(j, max(n - 1, 0)), most) for j in range(q)] for start, n in rows]
    places = [i * q + j for i, n in enumerate(counts) for j in range(n)]
    return Rectangle(torch.tensor(index, device=device), torch.tensor(places, device=device), block.seen_by)
