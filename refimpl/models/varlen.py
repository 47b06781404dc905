"""Attention of a packed pass in one call a layer: `varlen_attn` of PyTorch, on K/V where the pool holds them.

`refimpl.models.attention` answers a packed pass part by part, in a loop, on K/V that a paged pool has gathered first.
Where PyTorch has a kernel for ragged rows, one call takes the place of the loop. There are three ways to give it keys:

| way         | keys                                                      | serves                                 |
|-------------|-----------------------------------------------------------|----------------------------------------|
| `in_blocks` | the pool as pages, with a table of each row's             | pools with pages that the kernel takes |
| `in_rows`   | the pool as one row of slots, each row's start and length | pool rows, in the order of the pool    |
| `gathered`  | a copy of what the rows see, one after the other          | all pools                              |

Which of them work depends on the version of PyTorch, the device, the number format, the heads and the size of a page.
So each is tried when a model is loaded: a tiny pass of ragged rows is compared with the loop. A way that fails or
differs is not used, and without `gathered` the loop stays.

The kernel's window (-1, 0) is causal attention with the last query at the last key, as packed passes need it. Two rows
of the trial have fewer queries than keys, so that a kernel which aligns the first ones differs.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from refimpl.core import kernels
from refimpl.core.engine_settings import BLOCK_SIZES
from refimpl.layouts import make_layout
from refimpl.layouts.packed import PackedBlock, Seen
from refimpl.layouts.store import KVShape, PooledRows, RowState
from refimpl.models.attention import packed_attention
from refimpl.models.checks import LONGEST_REASON
from refimpl.models.probe import close
from refimpl.placement import PoolSize

CAUSAL = (-1, 0)
TRIAL = ((60, 67), (0, 5), (3, 4), (0, 70))  # tokens of each row: cached before its last pass, and in all

VarlenAttention = Callable[..., Any]  # torch.nn.attention.varlen.varlen_attn


class NotOfferedError(Exception):
    """There is no faster way for this device, this model or these numbers."""


class _Numbers:
    """What a kernel is told of the rows of a pass, on the device and in 32 bits.

    Attributes:
        store: the pool.
        counts, lengths: tokens that each row feeds, and has in all ``[rows]``.
        table: pages of each row, then any ``[rows, pages]``.
    """

    def __init__(self, pooled: PooledRows):
        self.store, self.rows = pooled.store, pooled.rows
        pages = [row.pages[: -(-row.length // pooled.store.columns)] for row in self.rows]
        width = max(map(len, pages))
        known = zip(self.rows, pages, strict=True)
        numbers = [[row.count, row.length, *mine, *[0] * (width - len(mine))] for row, mine in known]
        on_device = torch.tensor(numbers, dtype=torch.int32, device=pooled.store.shape.device)
        self.counts, self.lengths = on_device[:, :2].t().contiguous().unbind()
        self.table = on_device[:, 2:].contiguous()

    @property
    def queries(self) -> dict[str, Any]:
        """Arguments that describe the queries."""
        most = {"max_q": max(row.count for row in self.rows), "max_k": max(row.length for row in self.rows)}
        return {"cu_seq_q": _sums(self.counts), **most}

    def fed(self) -> Int[Tensor, " tokens"]:
        """Slots of the pool for the tokens that are fed."""
        return self._slots(self.lengths - self.counts, self.counts, sum(row.count for row in self.rows))

    def seen(self) -> Int[Tensor, " keys"]:
        """Slots of the pool that the rows see."""
        return self._slots(torch.zeros_like(self.lengths), self.lengths, sum(row.length for row in self.rows))

    def _slots(self, first: Tensor, counts: Tensor, total: int) -> Int[Tensor, " total"]:
        """Slots of `counts` positions of each row from its `first` one on."""
        row = torch.repeat_interleave(counts, output_size=total)
        position = torch.arange(total, device=row.device) - (_sums(counts)[:-1] - first)[row]
        size = self.store.columns
        return kernels.paged_slot(self.table[row, position // size].long(), position, size)


def _sums(counts: Int[Tensor, " rows"]) -> Int[Tensor, " rows_and_one"]:
    """0, and where each row ends."""
    return pad(counts.cumsum(0, dtype=torch.int32), (1, 0))


Pick = Callable[[Float[Tensor, "pages size kv_heads dim"]], Tensor]


def in_blocks(numbers: _Numbers) -> tuple[Pick, dict[str, Any]]:
    """Keys stay where they are, the kernel reads the table."""
    return lambda pages: pages, {"cu_seq_k": None, "seqused_k": numbers.lengths, "block_table": numbers.table}


def in_rows(numbers: _Numbers) -> tuple[Pick, dict[str, Any]]:
    """Keys stay where they are, the kernel skips what lies between the end of a row and the next one."""
    size, end = numbers.store.columns, numbers.store.rows * numbers.store.columns
    starts = pad(numbers.table[:, 0] * size, (0, 1), value=end)
    return lambda pages: pages.flatten(0, 1), {"cu_seq_k": starts, "seqused_k": numbers.lengths}


def gathered(numbers: _Numbers) -> tuple[Pick, dict[str, Any]]:
    """Keys are copied."""
    seen = numbers.seen()
    return lambda pages: pages.flatten(0, 1).index_select(0, seen), {"cu_seq_k": _sums(numbers.lengths)}


Way = Callable[[_Numbers], tuple[Pick, dict[str, Any]]]


class _Pass:
    """Writes and attends a packed pass, layer by layer."""

    def __init__(self, call: VarlenAttention, pooled: PooledRows, way: Way):
        numbers = _Numbers(pooled)
        self._store, self._fed = pooled.store, numbers.fed()
        self._pick, keys = way(numbers)
        self._call, self._layer = partial(call, **numbers.queries, **keys), 0

    def write(self, layer: int, keys: Tensor, values: Tensor) -> Seen:
        """Store a layer's entries; nothing is looked up."""
        self._store.write_slots(layer, self._fed, keys, values)
        self._layer = layer
        return []

    def attend(
        self, query: Float[Tensor, "1 heads tokens dim"], scaling: float | None
    ) -> Float[Tensor, "1 tokens heads value_dim"]:
        """Attention of that layer."""
        keys, values = map(self._pick, self._store.pages(self._layer))
        output: Tensor = self._call(query[0].transpose(0, 1), keys, values, scale=scaling)
        return output[None]


@dataclass(frozen=True, slots=True)
class PackedKernel:
    """What answers packed passes.

    Attributes:
        call: `varlen_attn` with the arguments of all passes; None for the loop.
        in_rows: whether it reads pool rows where they are.
        block_sizes: tokens of a page, where it reads those by a table.
        reason: why the loop stays; empty if it does not.
        reasons: why keys are copied, by tokens of a page; of pool rows where it is 0.
    """

    call: VarlenAttention | None = None
    in_rows: bool = False
    block_sizes: frozenset[int] = frozenset()
    reason: str = ""
    reasons: Mapping[int, str] = field(default_factory=dict)

    def prepared(self, block: PackedBlock) -> PackedBlock:
        """The block, to be answered by the kernel where there is one and no mask is needed."""
        if self.call is None or block.pooled is None:
            return block
        one = _Pass(self.call, block.pooled, self._way(block.pooled))
        return replace(block, write=one.write, attend=one.attend)

    def _way(self, pooled: PooledRows) -> Way:
        if pooled.store.columns in self.block_sizes:
            return in_blocks
        return in_rows if self.in_rows and _in_order(pooled) else gathered

    def describe(self, block_size: int) -> str:
        """What answers a pass over blocks of that size, or over pool rows where it is 0."""
        if self.call is None:
            return f"loop: {self.reason}"
        if block_size in self.block_sizes or (self.in_rows and not block_size):
            return "varlen_attn"
        copied = "blocks" if block_size else "rows"
        return f"varlen_attn, {copied} gathered: {self.reasons.get(block_size, 'not tried')}"


def _in_order(pooled: PooledRows) -> bool:
    """Whether each row is one row of the pool, behind the one before it."""
    first = [row.pages[0] for row in pooled.rows]
    return all(len(row.pages) == 1 for row in pooled.rows) and all(a < b for a, b in pairwise(first))


def choose_kernel(shape: KVShape, num_heads: int) -> PackedKernel:
    """What answers the packed passes of a model with such a cache and so many query heads, on its device."""
    try:
        calls = offered(shape, num_heads)
    except NotOfferedError as error:
        return PackedKernel(reason=str(error))
    fault, reason = partial(_fault, shape, num_heads), ""
    for call in calls:
        if not (reason := fault(PackedKernel(call), 0)):
            return _with_ways(call, fault)
    return PackedKernel(reason=reason)


def _with_ways(call: VarlenAttention, fault: Callable[[PackedKernel, int], str]) -> PackedKernel:
    """A kernel that takes gathered keys, and the other ways that it takes."""
    faults = {0: fault(PackedKernel(call, in_rows=True), 0)}
    faults |= {size: fault(PackedKernel(call, block_sizes=frozenset([size])), size) for size in BLOCK_SIZES}
    reasons = {size: reason for size, reason in faults.items() if reason}
    return PackedKernel(call, 0 not in reasons, frozenset(BLOCK_SIZES).difference(reasons), reasons=reasons)


def offered(shape: KVShape, num_heads: int) -> list[VarlenAttention]:
    """`varlen_attn` with the arguments of all passes, the best first.

    A kernel that splits the keys of a row adds in an order that depends on the rows beside it, so one that can be told
    not to is. Not all that know the argument take it.

    Raises:
        NotOfferedError: the message says why.
    """
    if shape.device.type != "cuda":
        raise NotOfferedError("varlen_attn needs a CUDA device")
    if shape.dtype.itemsize != 2:
        raise NotOfferedError(f"varlen_attn needs numbers of 16 bits, not {str(shape.dtype).removeprefix('torch.')}")
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        raise NotOfferedError("this version of PyTorch has no varlen_attn") from None
    return variants(varlen_attn, grouped=num_heads != shape.num_kv_heads)


def variants(kernel: VarlenAttention, *, grouped: bool) -> list[VarlenAttention]:
    """A kernel with the arguments of all passes, by the names that its signature has for them."""
    known = inspect.signature(kernel).parameters
    common: dict[str, Any] = {"window_size": CAUSAL} if "window_size" in known else {"is_causal": True}
    if grouped and "enable_gqa" in known:
        common["enable_gqa"] = True
    unsplit = [partial(kernel, num_splits=1, **common)] if "num_splits" in known else []
    return [*unsplit, partial(kernel, **common)]


def _fault(shape: KVShape, num_heads: int, kernel: PackedKernel, block_size: int) -> str:
    """What is wrong with a kernel on a pool of such blocks, or of rows where it is 0; empty for nothing."""
    try:
        found, wanted = (trial(shape, num_heads, block_size, each) for each in (kernel, PackedKernel()))
        return "" if close(shape.dtype, found, wanted) else "varlen_attn differs from the loop"
    except Exception as error:  # whatever a kernel makes of a device, a shape or an argument that it does not know
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return f"varlen_attn fails, {text[:LONGEST_REASON]}"


@torch.inference_mode()
def trial(
    shape: KVShape, num_heads: int, block_size: int, kernel: PackedKernel
) -> Float[Tensor, "tokens heads value_dim"]:
    """Attention of random rows in two passes, of which the second looks back at the first."""
    ends, generator = [end for _, end in TRIAL], torch.Generator().manual_seed(0)
    size = PoolSize.of_run(ends, window_size=len(ends), batch_size=len(ends), span=1, block_size=block_size or 1)
    name, one_layer = "paged" if block_size else "inplace", replace(shape, num_layers=1)
    layout = make_layout(name, one_layer, size, max_positions=max(ends), tagged=False)
    layout.pool.data.fill_(1)  # so that a slot too many is seen
    free = list(range(size.num_blocks))
    tables = [[free.pop() for _ in range(0, end, block_size or 1)] for end in ends]
    tokens, heads = torch.zeros(len(ends), max(ends), dtype=torch.long, device=shape.device), shape.num_kv_heads
    outputs = []
    for spans in ([(0, cached) for cached, _ in TRIAL], TRIAL):
        rows = [RowState(i, i, end, cached, blocks=tables[i]) for i, (cached, end) in enumerate(spans)]
        block = kernel.prepared(layout.packed_prefill(rows, tokens, 0))
        sizes = ((num_heads, shape.key_dim), (heads, shape.key_dim), (heads, shape.value_width))
        drawn = (torch.randn(1, n, block.tokens.shape[1], dim, generator=generator) for n, dim in sizes)
        query, keys, values = (each.to(shape.device, shape.dtype) for each in drawn)
        block.append(0, keys, values)
        outputs.append(packed_attention(block, query, None)[0])
    return torch.cat(outputs)
