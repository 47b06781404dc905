"""The law of the keyed numbers, at the borders of equal shares of the bits that they are made of.

Which stream belongs to which key is checked where numbers are replaced (`proofs.conformance.branches`). Here the bits
are replaced: those of every border of `SHARES` equal parts of all patterns. A uniform number must lie in its share; an
exponential one must be exceeded with the probability that its share says.
"""

from collections.abc import Iterator
from unittest.mock import patch

import torch
from torch import Tensor

from proofs.report import Verdict
from refimpl.decoding import sampling
from refimpl.decoding.sampling import Purpose, RowKeys

BITS = 12
SHARES = 1 << BITS
LAST = (1 << (64 - BITS)) - 1  # pattern of a share, after its first


def patterns() -> Tensor:
    """First and last pattern of 64 bits of every share, as signed integers ``[SHARES, 2]``."""
    first = torch.arange(-SHARES // 2, SHARES // 2) << (64 - BITS)
    first = first.roll(SHARES // 2)  # the lower half of the unsigned numbers has no sign
    return torch.stack([first, first + LAST], dim=1)


def shares() -> tuple[Tensor, Tensor]:
    """Lower and upper end of each share of [0, 1] ``[SHARES, 1]``."""
    at = torch.arange(SHARES, dtype=torch.float64)[:, None]
    return at / SHARES, (at + 1) / SHARES


def found(purpose: Purpose) -> Tensor:
    """The engine's numbers ``[SHARES, 2]``, of these patterns."""
    keys = RowKeys(torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    bits = patterns().reshape(1, 1, -1)

    def mixed(state: Tensor) -> Tensor:
        return bits.clone().reshape(state.shape) if state.numel() == bits.numel() and state.dim() > 1 else state

    with patch.object(sampling, "_mix_", mixed):
        if purpose is Purpose.ACCEPT:
            numbers = sampling.uniform(keys, torch.zeros(1, bits.numel(), dtype=torch.long), purpose)
        else:
            numbers = sampling.exponentials(keys, torch.zeros(1, 1, dtype=torch.long), purpose, bits.numel())
    return numbers.reshape(SHARES, 2)


def check() -> Iterator[Verdict]:
    """Both kinds of number."""
    low, high = shares()
    uniform = found(Purpose.ACCEPT)
    name = f"uniform numbers have their law at the borders of {SHARES} shares"
    yield Verdict(name, bool(((low <= uniform) & (uniform < high)).all()))
    exceeded = torch.exp(-found(Purpose.DRAFT))  # P(E > e) = exp(-e)
    name = f"exponential numbers have their law at the borders of {SHARES} shares"
    yield Verdict(name, bool(((low <= exceeded) & (exceeded <= high)).all()))
