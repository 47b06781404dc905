"""A language model that remembers exactly: its K/V are (token, position), its answer a table entry for what it sees.

It has two layers of two heads, with keys and values of their own. They must tell the same, or the answer is another.

Attention is replaced by reading: a query collects the slots that its mask shows, puts them in order of position and
looks the text up. A slot missing, seen twice, stale, of another row or of a wrong position changes the text, and so
the answer. Probabilities are multiples of 1/16, exact in floating point; they are returned in place of logits.
"""

import random
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from refimpl.layouts.packed import PackedBlock, Rectangle
from refimpl.layouts.spans import FULL
from refimpl.layouts.store import Block, KVShape
from refimpl.models.adapter import Pair

Text = tuple[int, ...]
Table = Callable[[Text], tuple[float | Fraction, ...]]
Write = Callable[[int, Tensor, Tensor], list[tuple[Tensor, Tensor]]]
LAYERS = HEADS = 2
JUNK = -1  # first token of the text of a query that does not see one whole prefix, or whose mask is of another width


def random_table(role: str, vocab_size: int, *, zeros: bool, denominator: int = 16) -> Table:
    """Fixed probabilities for every text, positive unless `zeros` are wanted."""
    least = 0 if zeros else 1

    def lookup(text: Text) -> tuple[float, ...]:
        rng = random.Random(repr((role, vocab_size, text)))
        free = denominator - least * vocab_size
        edges = [0, *sorted(rng.randint(0, free) for _ in range(vocab_size - 1)), free]
        return tuple((b - a + least) / denominator for a, b in pairwise(edges))

    return lookup


def halving_table(role: str, vocab_size: int) -> Table:
    """Fixed probabilities 1/2, 1/4 and so on for every text, in an order of its own; dividing by them is exact."""
    shares = [2.0 ** -min(i, vocab_size - 1) for i in range(1, vocab_size + 1)]

    def lookup(text: Text) -> tuple[float, ...]:
        return tuple(random.Random(repr((role, vocab_size, text))).sample(shares, vocab_size))

    return lookup


class PerfectMemory:
    """A `CausalLM` over a table."""

    max_positions = 1 << 10
    recordable, mixes_rows, maskless_queries = True, False, 0
    forward_packed: Any = None

    def __init__(self, table: Table, vocab_size: int):
        self.table, self.vocab_size = table, vocab_size
        self.kv_shape = KVShape(LAYERS, HEADS, 2, torch.float64, torch.device("cpu"))

    def forward(self, block: Block, num_logits: int) -> Tensor:
        (told,) = self._remember(block.tokens, block.position_ids, lambda *entries: [block.append(*entries)])
        batch, q = block.tokens.shape
        answers = [
            [
                self._answer(told[i], block.mask[i, 0, j], int(block.position_ids[i, j]))
                for j in range(q - num_logits, q)
            ]
            for i in range(batch)
        ]
        return torch.tensor(answers, dtype=torch.float64)

    def fresh_row(self) -> Callable[[list[int]], Tensor]:
        text: list[int] = []

        def feed(tokens: list[int]) -> Tensor:
            text.extend(tokens)
            return torch.tensor(self.table(tuple(text)), dtype=torch.float64)

        return feed

    def _remember(self, tokens: Tensor, positions: Tensor, write: Write) -> list[Tensor]:
        """Write to all layers, heads and planes; what the slots of each part tell ``[rows, width, 3]``.

        Token and position, and 1 where all layers, heads and planes tell the same.
        """
        entries = torch.stack([tokens, positions], dim=-1).double()[:, None]
        marks = torch.arange(HEADS, dtype=torch.float64)[:, None, None]
        planes: list[list[Tensor]] = []  # of each layer and part
        for layer in range(LAYERS):
            own = 1000.0 * (layer + 1) + 100 * marks
            parts = write(layer, entries + own, -entries - own)
            planes.append([torch.cat([keys - own, -values - own], dim=1) for keys, values in parts])
        told = [torch.cat(part, dim=1) for part in zip(*planes, strict=True)]
        agree = [(part == part[:, :1]).all(dim=-1).all(dim=1, keepdim=True).double() for part in told]
        return [torch.cat([part[:, 0], each.transpose(1, 2)], dim=-1) for part, each in zip(told, agree, strict=True)]

    def _answer(self, slots: Tensor, visible: Tensor, position: int) -> tuple[float, ...]:
        if len(slots) != len(visible):
            return self.table((JUNK,))
        seen = sorted((int(p), int(token), bool(agree)) for token, p, agree in slots[visible].tolist())
        text = tuple(token for _, token, _ in seen)
        whole = [p for p, _, _ in seen] == list(range(position + 1)) and all(agree for *_, agree in seen)
        return self.table(text if whole else (JUNK, *text))


class PackingMemory(PerfectMemory):
    """The same, for blocks of real tokens alone, too."""

    def forward_packed(self, block: PackedBlock, num_logits: int) -> Tensor:
        """Part by part: a row sees all that is stored of it up to its query, a rectangle what its mask shows."""
        told = self._remember(block.tokens, block.position_ids, block.write)
        positions, answers = iter(block.position_ids[0].tolist()), []
        for part, (count, rows) in enumerate(zip(block.counts, _rectangles(block), strict=True)):
            for at in range(count):
                row, visible = _query(rows, at, count, told[part].shape[1])
                answers.append(self._answer(told[part][row], visible, next(positions)))
        return torch.tensor(answers[-num_logits:], dtype=torch.float64)


def _rectangles(block: PackedBlock) -> list[Rectangle | None]:
    """Of each part; a block without tokens has no part."""
    return [*[None] * len(block.counts), block.rectangle][-len(block.counts) :] if block.counts else []


def _query(rows: Rectangle | None, at: int, count: int, width: int) -> tuple[int, Tensor]:
    """Row and visible slots of a part's token: the last of `count` sees all."""
    if rows is None:
        return 0, torch.arange(width) < width - count + 1 + at
    row, column = divmod(int(rows.places[at]), rows.index.shape[1])
    return row, rows.seen_by(FULL)[row, 0, column]


def pair_of(target: Table, draft: Table, vocab_size: int, kind: type[PerfectMemory] = PerfectMemory) -> Pair:
    """A pair of such models that share a vocabulary."""
    return Pair(kind(target, vocab_size), kind(draft, vocab_size), vocab_size=vocab_size)
