"""A language model that remembers exactly: its K/V are (token, position), its answer a table entry for what it sees.

It has two layers of two heads, with keys and values of their own. They must tell the same, or the answer is another.

Attention is replaced by reading: a query collects the slots that its mask shows, puts them in order of position and
looks the text up. A slot missing, seen twice, stale, of another row or of a wrong position changes the text, and so
the answer. Probabilities are multiples of 1/16, exact in floating point; they are returned in place of logits.
"""

import random
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from refimpl.layouts.store import Block, KVShape
from refimpl.models.adapter import Pair

Text = tuple[int, ...]
Table = Callable[[Text], tuple[float, ...]]
LAYERS = HEADS = 2
JUNK = -1  # first token of the text that a query reads when what it sees is not one whole prefix


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
    recordable = True
    forward_packed = None

    def __init__(self, table: Table, vocab_size: int):
        self.table, self.vocab_size = table, vocab_size
        self.kv_shape = KVShape(LAYERS, HEADS, 2, torch.float64, torch.device("cpu"))

    def forward(self, block: Block, num_logits: int) -> Tensor:
        told, agree = self._remember(block)
        batch, q = block.tokens.shape
        answers = [
            [
                self._answer(told[i], agree[i], block.mask[i, 0, j], int(block.position_ids[i, j]))
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

    def _remember(self, block: Block) -> tuple[Tensor, Tensor]:
        """Write to all layers, heads and planes; what the slots tell ``[batch, width, 2]``, and whether all agree."""
        entries = torch.stack([block.tokens, block.position_ids], dim=-1).double()[:, None]
        marks = torch.arange(HEADS, dtype=torch.float64)[:, None, None]
        planes = []
        for layer in range(LAYERS):
            own = 1000.0 * (layer + 1) + 100 * marks
            keys, values = block.append(layer, entries + own, -entries - own)
            planes += [keys - own, -values - own]
        told = torch.cat(planes, dim=1)
        return told[:, 0], (told == told[:, :1]).all(dim=-1).all(dim=1)

    def _answer(self, slots: Tensor, agree: Tensor, visible: Tensor, position: int) -> tuple[float, ...]:
        seen = sorted((int(p), int(token)) for token, p in slots[visible].tolist())
        text = tuple(token for _, token in seen)
        whole = [p for p, _ in seen] == list(range(position + 1)) and bool(agree[visible].all())
        return self.table(text if whole else (JUNK, *text))


def pair_of(target: Table, draft: Table, vocab_size: int) -> Pair:
    """A pair of such models that share a vocabulary."""
    return Pair(PerfectMemory(target, vocab_size), PerfectMemory(draft, vocab_size), vocab_size=vocab_size)
