"""Everything between the matrix products of a decoder layer, as Triton kernels.

They round where transformers rounds in 16 bit: normed entries before they meet the weight, each product of RoPE, the
activation before it meets the other half. A program of `attend` answers the queries of one row whose heads share keys,
up to each query's own position, so what it computes depends neither on other rows nor on the width of the context.
"""

import triton
import triton.language as tl


@triton.jit
def add_rms(residual, delta, weight, out, eps, HAS_DELTA: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Add `delta` to the residual, in place; `out` is its norm. One program a token."""
    at = tl.program_id(0) * WIDTH
    cols = tl.arange(0, BLOCK)
    real = cols < WIDTH
    entries = tl.load(residual + at + cols, real, other=0.0)
    if HAS_DELTA:
        entries = _sum(entries, tl.load(delta + at + cols, real, other=0.0))
        tl.store(residual + at + cols, entries, real)
    wide = entries.to(tl.float32)
    normed = (wide * tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + eps)).to(entries.dtype)
    tl.store(out + at + cols, _product(tl.load(weight + cols, real, other=0.0), normed), real)


@triton.jit
def silu_mul(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """SiLU of the first half of a token's entries, times the second. One program a block of a token."""
    row, cols = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = cols < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + cols, real, other=0.0)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + cols, real, other=0.0)
    wide = gate.to(tl.float32)
    tl.store(out + row * WIDTH + cols, _product((wide / (1.0 + tl.exp(-wide))).to(gate.dtype), up), real)


@triton.jit
def _product(a, b):
    """Rounded as PyTorch rounds it."""
    return (a.to(tl.float32) * b.to(tl.float32)).to(a.dtype)


@triton.jit
def _sum(a, b, SIGN: tl.constexpr = 1):
    """Rounded as PyTorch rounds it; of b with a sign."""
    return (a.to(tl.float32) + SIGN * b.to(tl.float32)).to(a.dtype)


@triton.jit
def _head(entries, real, place, weight, turns, eps, NORM: tl.constexpr, HALF: tl.constexpr):
    """Both halves of heads, normed, and rotated to their places."""
    half, real = tl.arange(0, HALF)[None, :], real[:, None]
    low = tl.load(entries[:, None] + half, real, other=0.0)
    high = tl.load(entries[:, None] + HALF + half, real, other=0.0)
    if NORM:
        a, b = low.to(tl.float32), high.to(tl.float32)
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + eps)[:, None]
        low = _product(tl.load(weight + half), (a * scale).to(low.dtype))
        high = _product(tl.load(weight + HALF + half), (b * scale).to(high.dtype))
    turn = turns + place[:, None] * 2 * HALF + half
    cos, sin = tl.load(turn), tl.load(turn + HALF)
    return _sum(_product(low, cos), _product(high, sin), SIGN=-1), _sum(_product(high, cos), _product(low, sin))


@triton.jit
def _attended(
    low, high, keys, values, table, page, start, stop, own, scale,
    M: tl.constexpr, BLOCK: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Softmax over the positions [start, stop) of a row, for each query up to its own: mean of values, log-sum-exp."""
    half, dim = tl.arange(0, HALF), tl.arange(0, 2 * HALF)
    most, total = tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32)
    seen = tl.zeros([M, 2 * HALF], tl.float32)
    for block in range(start, stop, BLOCK):
        c = block + tl.arange(0, BLOCK)
        there = c < stop
        of = (tl.load(table + c // page, there, other=0).to(tl.int64) * page + c % page) * 2 * HALF
        k = keys + of[None, :] + half[:, None]
        k_low, k_high = tl.load(k, there[None, :], other=0.0), tl.load(k + HALF, there[None, :], other=0.0)
        score = tl.dot(low, k_low, input_precision="ieee") + tl.dot(high, k_high, input_precision="ieee")
        score = tl.where(c[None, :] <= own[:, None], score * scale, float("-inf"))
        more = tl.maximum(most, tl.max(score, 1))
        finite = tl.where(more == float("-inf"), 0.0, more)
        kept, p = tl.exp(most - finite), tl.exp(score - finite[:, None])
        v = tl.load(values + of[:, None] + dim[None, :], there[:, None], other=0.0)
        seen = seen * kept[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        total, most = total * kept + tl.sum(p, 1), more
    return seen / tl.where(total > 0, total, 1.0)[:, None], most + tl.log(total)


@triton.jit
def attend(
    qkv, q_weight, k_weight, turns, position, place, slots, table, keys, values, out, sums, eps, scale, num_slots, page,
    pages, Q: tl.constexpr, GROUP: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Norm and rotate queries and keys, write keys and values to their slots, attend.

    One program a row, head of keys and span of positions. Every span of a row writes all that is new, the same numbers,
    so that none waits for another. With several spans, `out` and `sums` (log-sum-exp) have one more axis in front.

    Args:
        qkv: ``[tokens, heads of queries, keys and values, dim]``.
        turns: cosines and sines of every place ``[places, 2, dim / 2]``. Computed here, a large angle would take a slow
            path, with memory of its own.
        position, place: of each token, in its row (below 0 it sees nothing) and in `turns`.
        slots, table: see `refimpl.layouts.store.InPool`.
        keys, values: of the layer ``[KV, num_slots, dim]``, in pages of `page` slots.
    """
    b, h, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    DIM: tl.constexpr = 2 * HALF
    STRIDE: tl.constexpr = (GROUP + 2) * KV * DIM
    half, dim = tl.arange(0, HALF)[None, :], tl.arange(0, DIM)[None, :]
    keys, values = keys + h.to(tl.int64) * num_slots * DIM, values + h.to(tl.int64) * num_slots * DIM
    n = tl.arange(0, N)
    token, new = b * Q + n, n < Q
    mine = qkv + token * STRIDE + (GROUP * KV + h) * DIM
    low, high = _head(mine, new, tl.load(place + token, new, other=0), k_weight, turns, eps, NORM, HALF)
    to, new = tl.load(slots + token, new, other=0)[:, None] * DIM, new[:, None]
    tl.store(keys + to + half, low, new)
    tl.store(keys + to + HALF + half, high, new)
    tl.store(values + to + dim, tl.load(mine[:, None] + KV * DIM + dim, new, other=0.0), new)
    m = tl.arange(0, M)  # query m % Q of head m // Q of the group
    token, head, asked = b * Q + m % Q, h * GROUP + m // Q, m < GROUP * Q
    at = tl.load(place + token, asked, other=0)
    low, high = _head(qkv + token * STRIDE + head * DIM, asked, at, q_weight, turns, eps, NORM, HALF)
    own = tl.load(position + token, asked, other=-1)
    start, stop = split * SPAN, tl.minimum(split * SPAN + SPAN, tl.max(own, 0).to(tl.int32) + 1)
    tl.debug_barrier()  # what this program has written is read below, by other threads of it
    seen, log_sum = _attended(low, high, keys, values, table + b * pages, page, start, stop, own, scale, M, BLOCK, HALF)
    to = (split * tl.num_programs(0) * Q + token) * GROUP * KV + head
    tl.store(out + to[:, None] * DIM + dim, seen.to(out.dtype.element_ty), asked[:, None])
    if SPLITS > 1:
        tl.store(sums + to, log_sum, asked)


@triton.jit
def join_spans(parts, sums, out, rows, SPLITS: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr):
    """Attention of spans ``[spans, rows, dim]`` together. One program a query of a head."""
    row, dim = tl.program_id(0), tl.arange(0, DIM)
    of = tl.arange(0, BLOCK)
    log_sum = tl.load(sums + of * rows + row, of < SPLITS, other=float("-inf"))
    most = tl.max(log_sum, 0)
    weight = tl.exp(log_sum - tl.where(most == float("-inf"), 0.0, most))[:, None]
    seen = tl.load(parts + (of * rows + row)[:, None] * DIM + dim[None, :], (of < SPLITS)[:, None], other=0.0)
    total = tl.sum(weight, 0)
    tl.store(
        out + row * DIM + dim, (tl.sum(seen * weight, 0) / tl.where(total > 0, total, 1.0)).to(out.dtype.element_ty)
    )
