"""Random numbers are checked to be the same in the batch and alone."""

import pytest
import torch

from refimpl.core.invariants import InvariantViolation
from refimpl.decoding.checked_source import CheckedSource
from refimpl.decoding.sampling import Purpose, RandomSource, RowKeys
from refimpl.faults import FAULTS

WEIGHTS = torch.full((3, 2, 64), 1 / 64, dtype=torch.float64)
POSITION = torch.tensor([[4, 5], [7, 8], [4, 5]])


@pytest.mark.parametrize("start", [None, torch.tensor([3, 6, 3])])
def test_it_answers_as_the_source(start):
    keys, source = RowKeys(torch.tensor([1, 1, 2]), torch.tensor([0, 5, 0]), start), RandomSource()
    checked = CheckedSource(source)
    drawn = source.draw(WEIGHTS, keys, POSITION, Purpose.DRAFT)
    assert torch.equal(checked.draw(WEIGHTS, keys, POSITION, Purpose.DRAFT), drawn)
    p, q = torch.full((2, 3, 2), 0.5, dtype=torch.float64).mul_(torch.tensor([1.0, 1.5])[:, None, None]).unbind()
    assert torch.equal(checked.accepts(p, q, keys, POSITION), source.accepts(p, q, keys, POSITION))


@pytest.mark.parametrize("fault", ["shared-random-stream", "noise-keyed-by-batch-row"])
def test_numbers_that_depend_on_the_batch_are_noticed(fault):
    keys = RowKeys(torch.zeros(3, dtype=torch.long), torch.tensor([4, 5, 6]))
    with FAULTS[fault].injected(), pytest.raises(InvariantViolation, match="INV-12 in row"):
        CheckedSource(RandomSource()).draw(WEIGHTS, keys, POSITION, Purpose.COUPLED)
