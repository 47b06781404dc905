"""A stand-in for `varlen_attn`: a plain reference of what PyTorch documents, and how it is offered on a CPU."""

import inspect

import torch

from refimpl.layouts.store import KVShape
from refimpl.models.varlen import variants

EXACT = KVShape(1, 2, 8, torch.float64, torch.device("cpu"))
HEADS = 4


def of_format(dtype):
    return KVShape(3, 2, 8, dtype, torch.device("cpu"))


def reference(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *,
    scale=None, window_size=(-1, -1), enable_gqa=False, seqused_k=None, block_table=None, num_splits=None,
):  # fmt: skip
    """Row by row, as the documentation of PyTorch 2.13 says: causal from the last query and the last key backwards.

    Its kernel for CUDA takes sums and lengths without gaps alone, and tables whose rows have none.
    """
    assert all(t.dtype == torch.int32 for t in (cu_seq_q, cu_seq_k, seqused_k, block_table) if t is not None)
    assert all(t.is_contiguous() for t in (cu_seq_q, cu_seq_k, seqused_k) if t is not None)
    assert block_table is None or block_table.stride(-1) == 1
    assert enable_gqa or query.shape[1] == key.shape[-2]
    outputs = []
    for row, (start, end) in enumerate(zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True)):
        if block_table is not None:
            keys, values = (each[block_table[row].long()].flatten(0, 1) for each in (key, value))
        else:
            first, last = cu_seq_k[row : row + 2].tolist()
            assert 0 <= first < last <= len(key)
            keys, values = key[first:last], value[first:last]
        n = len(keys) if seqused_k is None else int(seqused_k[row])
        assert end - start <= max_q
        assert n <= min(max_k, len(keys))
        keys, values = (each[:n].repeat_interleave(query.shape[1] // key.shape[-2], dim=1) for each in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query[start:end], keys) * (scale or query.shape[2] ** -0.5)
        if window_size == (-1, 0):
            scores += torch.full(scores.shape[1:], float("-inf"), dtype=scores.dtype).triu(1 + n - (end - start))
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), values))
    return torch.cat(outputs)


def offering(kernel):
    """What stands in for `varlen.offered`: offers a kernel on the CPU and in every number format."""
    return lambda shape, heads: variants(kernel, grouped=heads != shape.num_kv_heads)


def signed(kernel):
    """A kernel that shows the signature of the reference."""
    kernel.__signature__ = inspect.signature(reference)
    return kernel


class Noted:
    """The reference, and the arguments that describe the keys of each call."""

    __signature__ = inspect.signature(reference)

    def __init__(self):
        self.calls = []

    def __call__(self, *args, **settings):
        self.calls.append(settings)
        return reference(*args, **settings)

    @property
    def ways(self):
        """In which ways keys were given."""
        tables = [settings.get("block_table") is not None for settings in self.calls]
        used = [settings.get("seqused_k") is not None for settings in self.calls]
        return {"blocks" if a else "rows" if b else "gathered" for a, b in zip(tables, used, strict=True)}


def shifted(sums):
    """Each row's queries but the first row's begin one too late."""
    return torch.cat([sums[:1], sums[1:-1] + 1, sums[-1:]])
