"""Realignment row by row and layer by layer, as published code does it: for comparison, never for decoding.

For every row of every layer, four numbers are read back from the device, one slice of the keys and one of the values
is taken and padded, and the rows are stacked again: (6 · rows + 2) operations a layer, each of which the host waits for
or launches by itself. The bytes are those of one fused gather.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from refimpl.layouts.store import KVShape

READS_PER_ROW, OPERATIONS_PER_ROW, OPERATIONS_PER_LAYER = 4, 6, 2


def num_operations(num_layers: int, batch_size: int) -> int:
    """Host operations of one realignment: reads, slices with their pads, and stacks."""
    return (OPERATIONS_PER_ROW * batch_size + OPERATIONS_PER_LAYER) * num_layers


def layers_of(shape: KVShape, batch_size: int, width: int) -> list[tuple[Tensor, Tensor]]:
    """Keys and values ``[batch, kv_heads, width, dim]`` of every layer, in random numbers."""
    sizes = [(batch_size, shape.num_kv_heads, width, dim) for dim in (shape.key_dim, shape.value_width)]
    layers = [
        [torch.randn(size, device=shape.device).to(shape.dtype) for size in sizes] for _ in range(shape.num_layers)
    ]
    return [(keys, values) for keys, values in layers]


def realign_row_by_row(layers: list[tuple[Tensor, Tensor]], plan: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Move each row's real columns to their new place.

    Args:
        layers: keys and values ``[batch, kv_heads, width, dim]``.
        plan: ``[batch, 4]`` on the device: first real column, one past the last one, new left pads, new width.
    """
    return [_stack(keys, values, plan) for keys, values in layers]


def _stack(keys: Tensor, values: Tensor, plan: Tensor) -> tuple[Tensor, Tensor]:
    moved_keys, moved_values = [], []
    for row in range(len(plan)):
        first, stop, pads, width = (int(plan[row, column].item()) for column in range(READS_PER_ROW))
        right = width - pads - (stop - first)
        moved_keys.append(pad(keys[row : row + 1, :, first:stop], (0, 0, pads, right)))
        moved_values.append(pad(values[row : row + 1, :, first:stop], (0, 0, pads, right)))
    return torch.cat(moved_keys), torch.cat(moved_values)


def ragged_plan(kept: list[int], width: int, device: torch.device) -> Tensor:
    """Plan of a realignment after rows of `width` columns have kept these numbers of new tokens.

    Rows were full; each loses what the longest keeps more than it does from its end, and gets as many pads.
    """
    most = max(kept)
    return torch.tensor([[0, width - (most - n), most - n, width] for n in kept], device=device)
