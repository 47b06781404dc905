"""Random numbers that are asked for twice: in the batch, and for each row alone (INV-12)."""

import torch
from torch import Tensor

from refimpl.core.invariants import require_invariant
from refimpl.decoding.sampling import Purpose, RandomSource, RowKeys, rows_of


class CheckedSource(RandomSource):
    """Demands that what a row draws is what it draws without the other rows, again.

    Args:
        source: draws.
    """

    def __init__(self, source: RandomSource):
        self.source = source

    def draw(self, weights: Tensor, keys: RowKeys, position: Tensor, purpose: Purpose) -> Tensor:
        """What the source draws, for all rows and for each alone, compared."""
        found = self.source.draw(weights, keys, position, purpose)
        for i, row in enumerate(_rows(keys)):
            one = slice(i, i + 1)
            _require_same(i, found[i], self.source.draw(weights[one], row, position[one], purpose)[0])
        return found

    def accepts(self, target_probability: Tensor, draft_probability: Tensor, keys: RowKeys, position: Tensor) -> Tensor:
        """What the source accepts, for all rows and for each alone, compared."""
        found = self.source.accepts(target_probability, draft_probability, keys, position)
        for i, row in enumerate(_rows(keys)):
            one = slice(i, i + 1)
            alone = self.source.accepts(target_probability[one], draft_probability[one], row, position[one])
            _require_same(i, found[i], alone[0])
        return found


def _rows(keys: RowKeys) -> list[RowKeys]:
    return [rows_of(keys, [row]) for row in range(len(keys.seed))]


def _require_same(row: int, found: Tensor, alone: Tensor) -> None:
    require_invariant(torch.equal(found, alone), "INV-12", row=row, expected=alone.tolist(), found=found.tolist())
