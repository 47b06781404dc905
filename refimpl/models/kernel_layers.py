"""Lean layers whose parts between the matrix products are Triton kernels: eight launches a layer.

Attention reads the pool where it is, up to each token's own position. So these layers need no mask and no width: one
recording of a round serves a whole run.
"""

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.activations import SiLUActivation

from refimpl.core.engine_settings import LayersName
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.store import Block
from refimpl.models.checks import ropes_of_batches
from refimpl.models.lean import Layer, LeanLayers, Norm
from refimpl.models.triton_kernels import add_rms, attend, join_spans, silu_mul
from refimpl.models.varlen import NotOfferedError

DIMS = (32, 64, 128, 256)  # of a head
MOST_QUERIES = 128  # of a program: tokens of a row, times heads that share keys
SPAN = 2048  # positions that one program attends; more are split, and joined by one launch more
BLOCK = 64  # positions at a time
WIDE = 1024  # numbers of a program of `silu_mul`


class KernelLayers(LeanLayers):
    """Runs blocks in a pool with kernels, and all other passes as lean layers do.

    Raises:
        NotOfferedError: numbers or layers that the kernels do not know.
    """

    def __init__(self, model: PreTrainedModel, kind: LayersName = "kernels"):
        super().__init__(model, kind)
        missing = [need for need, met in _needs(self).items() if not met]
        if missing:
            raise NotOfferedError(f"kernels need {missing[0]}")
        self.maskless_queries = MOST_QUERIES // self.groups
        self.turns = self._table_of_turns()

    @torch.inference_mode()
    def _table_of_turns(self) -> Float[Tensor, "places 2 half"]:
        """Cosines and sines of every place that the model knows."""
        places = torch.arange(self.model.config.max_position_embeddings, device=self.model.device)
        like = torch.empty(0, dtype=self.model.dtype, device=self.model.device)
        turns = torch.stack([turn[0] for turn in self.model.model.rotary_emb(like, places[None])], dim=1)
        return turns[..., : turns.shape[-1] // 2].contiguous()

    def through(self, block: Block | PackedBlock, x: Float[Tensor, "batch q hidden"]) -> tuple[Tensor, Tensor]:
        """The residual after the last layer, and what that layer adds to it."""
        inner = block.note_hidden and block.note_hidden.layers
        if isinstance(block, PackedBlock) or not block.in_pool or x.shape[1] > self.maskless_queries or inner:
            return super().through(block, x)
        entries, delta = x.flatten(0, 1), None
        with torch.cuda.device_of(x):
            for i, layer in enumerate(self.layers):
                attended = self.attend(layer, layer.qkv(_add_norm(entries, delta, layer.before)), block, i)
                normed = _add_norm(entries, layer.out(attended), layer.before_mlp)
                delta = layer.down(_silu_mul(layer.gate_up(normed)))
        assert delta is not None
        return entries.view_as(x), delta.view_as(x)

    def attend(
        self, layer: Layer, qkv: Float[Tensor, "tokens all_heads"], block: Block, index: int
    ) -> Float[Tensor, "tokens query_heads"]:
        """Write a layer's keys and values to the pool of a block, and attend; heads of a token are side by side."""
        pool = block.in_pool
        assert pool is not None
        (batch, q), (heads, kv, _) = block.tokens.shape, layer.heads
        half, rows, norm = self.turns.shape[-1], batch * q * heads, layer.head_norm
        spans = -(-pool.table.shape[1] * pool.store.columns // SPAN)
        out = qkv.new_empty(batch * q, heads * 2 * half)
        parts = out if spans == 1 else qkv.new_empty(spans, *out.shape, dtype=torch.float32)
        sums = parts if spans == 1 else qkv.new_empty(spans, rows, dtype=torch.float32)
        attend[batch, kv, spans](
            qkv, norm.weight[0] if norm else qkv, norm.weight[heads] if norm else qkv, self.turns,
            pool.position, block.position_ids, pool.slots, pool.table, *pool.store.data[index], parts, sums,
            norm.eps if norm else 0.0, layer.scaling, pool.store.rows * pool.store.columns, pool.store.columns,
            pool.table.shape[1], Q=q, GROUP=self.groups, KV=kv, HALF=half, NORM=norm is not None,
            M=max(16, triton.next_power_of_2(self.groups * q)), N=triton.next_power_of_2(q), BLOCK=BLOCK, SPAN=SPAN,
            SPLITS=spans, num_warps=4 if self.groups * q <= 64 else 8, num_stages=2,
        )  # fmt: skip
        if spans > 1:
            join_spans[rows,](parts, sums, out, rows, spans, triton.next_power_of_2(spans), 2 * half)
        return out


def _add_norm(
    residual: Float[Tensor, "tokens hidden"], delta: Float[Tensor, "tokens hidden"] | None, norm: Norm | None
) -> Float[Tensor, "tokens hidden"]:
    """Norm of a residual, to which `delta` is added in place."""
    assert norm is not None
    (tokens, width), out = residual.shape, torch.empty_like(residual)
    add_rms[tokens,](
        residual, residual if delta is None else delta, norm.weight, out, norm.eps, HAS_DELTA=delta is not None,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=4 if width <= 2048 else 8,
    )  # fmt: skip
    return out


def _silu_mul(gate_up: Float[Tensor, "tokens two_widths"]) -> Float[Tensor, "tokens width"]:
    """SiLU of the first half of each token's numbers, times the other."""
    tokens, width = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, width)
    silu_mul[tokens, triton.cdiv(width, WIDE)](gate_up, out, WIDTH=width, BLOCK=WIDE)
    return out


def _needs(lean: LeanLayers) -> dict[str, bool]:
    """What the kernels need, and whether it is there."""
    model, layers = lean.model, lean.layers
    dim = len(layers[0].qkv.weight) // sum(layers[0].heads)
    fixed = not ropes_of_batches(model.config) and 2 * len(model.model.rotary_emb.inv_freq) == dim
    windows = [getattr(layer, "sliding_window", None) for layer in DynamicCache(config=model.config).layers]
    return {
        "numbers of 16 or 32 bits": model.dtype.itemsize in (2, 4),
        f"heads of {', '.join(map(str, DIMS))} numbers": dim in DIMS,
        "RoPE of fixed frequencies over whole heads": fixed and all(layer.rotary for layer in layers),
        "layers without sliding windows": not any(windows),
        "layers of the kind of Llama's, with SiLU": all(_is_plain(layer) for layer in layers),
    }


def _is_plain(layer: Layer) -> bool:
    others = (layer.q_norm, layer.k_norm, layer.after, layer.after_mlp)
    norms = [norm for norm in (layer.before, layer.before_mlp, layer.head_norm) if norm]
    return (
        not any(others)
        and layer.before is not None
        and layer.before_mlp is not None
        and all(norm.rounds_first and norm.weight.dtype == layer.qkv.weight.dtype for norm in norms)
        and isinstance(layer.act, SiLUActivation)
        and layer.factor == 1
    )
