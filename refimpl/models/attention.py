"""Attention of a block of queries on keys and values that are shared by groups of heads, without expanding them.

transformers expands keys and values to all query heads as soon as an explicit mask is given, which multiplies the bytes
of the cache that a pass reads by the group size. Here the queries of a group's heads are laid side by side instead: a
group of g heads with q queries each is one head with g · q queries, on the keys and values as they are stored.
"""

import sys
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from refimpl.core.errors import UnsupportedModelError
from refimpl.layouts.packed import PackedBlock, Rectangle
from refimpl.layouts.spans import FULL, Span

NAME = "grouped_heads"
OWN_SETTINGS = {"softcap", "s_aux"}  # of an attention layer: its model's own function knows them
PLAIN_SETTINGS = {  # of an attention layer: they are None, or change nothing once positions and mask are explicit
    "dropout", "is_causal", "sliding_window", "position_ids", "cache_position", "use_cache", "output_attentions",
    "output_hidden_states", "output_router_logits", "return_dict",
}  # fmt: skip


def additive_mask(
    mask: Bool[Tensor, "batch 1 q width"], dtype: torch.dtype, groups: int
) -> Float[Tensor, "batch 1 groups_q width"]:
    """Zero where a query sees a slot and -inf elsewhere, once for each of the `groups` heads that share keys.

    Built once a pass, so that the layers need not convert a boolean mask each.
    """
    hidden = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))
    return torch.cat([hidden] * groups, dim=2) if groups > 1 else hidden


def grouped_attention(
    module: nn.Module,
    query: Float[Tensor, "batch heads q dim"],
    key: Float[Tensor, "batch kv_heads width dim"],
    value: Float[Tensor, "batch kv_heads width value_dim"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    packed: PackedBlock | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Fold the queries of a group into one head where the mask is that of `additive_mask`; else transformers' own.

    A model may have expanded keys and values by itself; then the mask of one query head serves all. In a `packed` pass
    each row's queries are answered by themselves; the mask is ignored.

    Softcaps and sinks, which SDPA does not know, are left to the model's own function.

    Returns the output ``[batch, q, heads, dim]``, as transformers' attention functions do.

    Raises:
        UnsupportedModelError: the layer asks for more than that: biases, or chosen keys.
    """
    more = {name for name, value in kwargs.items() if value is not None} - PLAIN_SETTINGS
    if more - OWN_SETTINGS or (more and packed):
        raise UnsupportedModelError(f"has attention that is more than a masked softmax ({', '.join(sorted(more))})")
    if packed is not None:
        return packed_attention(packed, query, scaling), None
    if more:
        return own_attention(module, query, key, value, attention_mask, scaling, **kwargs), None
    (heads, q), kv_heads = query.shape[1:3], key.shape[1]
    groups = heads // kv_heads
    if attention_mask is None or groups == 1 or attention_mask.shape[2] < q * groups:
        mask = None if attention_mask is None else attention_mask[:, :, :q]
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)
    return folded_attention(query, key, value, attention_mask[:, :, : q * groups], scaling), None


def own_attention(
    module: nn.Module,
    query: Float[Tensor, "batch heads q dim"],
    key: Float[Tensor, "batch kv_heads width dim"],
    value: Float[Tensor, "batch kv_heads width value_dim"],
    mask: Tensor | None,
    scaling: float | None,
    **kwargs: Any,
) -> Float[Tensor, "batch q heads value_dim"]:
    """What the model's own file computes from keys and values: the definition of its softcap and sinks.

    It adds its mask to the scores, so that a boolean one is made additive, and none is that of the last queries.
    """
    q, width = query.shape[2], key.shape[2]
    if mask is None:
        mask = torch.ones(1, 1, q, width, dtype=torch.bool, device=query.device).tril(width - q)
    if mask.dtype == torch.bool:
        mask = additive_mask(mask, query.dtype, 1)
    forward = sys.modules[type(module).__module__].eager_attention_forward
    output: Tensor = forward(module, query, key, value, mask[:, :, :q], scaling=scaling, **kwargs)[0]
    return output


def packed_attention(
    block: PackedBlock, query: Float[Tensor, "1 heads tokens dim"], scaling: float | None
) -> Float[Tensor, "1 tokens heads value_dim"]:
    """Attention of a packed pass: the queries of each part on what it sees, up to their own position.

    One call answers them all where the block has one for it (see `refimpl.models.varlen`).
    """
    if block.attend:
        return block.attend(query, scaling)
    parts = zip(block.parts(query), block.seen, strict=True)
    outputs = [_of_part(mine, rectangle, *seen, scaling, block.span) for (mine, rectangle), seen in parts]
    return torch.cat(outputs, dim=1) if len(outputs) > 1 else outputs[0]


def _of_part(
    query: Float[Tensor, "1 heads tokens dim"],
    rectangle: Rectangle | None,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    span: Span,
) -> Float[Tensor, "1 tokens heads value_dim"]:
    """Attention of one row, or of the rows of a rectangle with the mask of `additive_mask`."""
    if rectangle is None:
        return _causal(query, key, value, scaling, span).transpose(1, 2).contiguous()
    folded, heads = rectangle.fold(query, key.shape[1]), query.shape[1]
    output = _attend(folded, key, value, rectangle.masks[span][:, :, : folded.shape[2]], scaling)
    return rectangle.unfold(output, heads)


def folded_attention(
    query: Float[Tensor, "batch heads q dim"],
    key: Float[Tensor, "batch kv_heads width dim"],
    value: Float[Tensor, "batch kv_heads width value_dim"],
    mask: Float[Tensor, "batch 1 groups_q width"],
    scaling: float | None,
) -> Float[Tensor, "batch q heads value_dim"]:
    """Attention with the queries of heads that share keys laid side by side, behind the mask of `additive_mask`."""
    (batch, heads, q, dim), kv_heads = query.shape, key.shape[1]
    folded = query.reshape(batch, kv_heads, heads // kv_heads * q, dim)
    output = _attend(folded, key, value, mask, scaling)
    return output.unflatten(2, (-1, q)).permute(0, 3, 1, 2, 4).reshape(batch, q, heads, -1).contiguous()


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)


def _causal(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, span: Span) -> Tensor:
    """Attention of the last positions of a row on all of them ``[1, heads, q, value_dim]``."""
    (heads, q), width, device = query.shape[1:3], key.shape[2], query.device
    mask = None
    if q < width or span != FULL:
        slot = torch.arange(width, device=device)
        mask = (slot <= slot[width - q :, None]) & span.reaches(slot, slot[width - q :, None])
    return nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=heads != key.shape[1]
    )


def leave_out_cudnn() -> None:
    """Take cuDNN out of PyTorch's choice of attention kernels, for the whole process.

    PyTorch asks it first on recent data-center GPUs. It builds a plan for every shape that it has not seen, which takes
    tenths of a second, and nearly every round, as every step of plain generation, has a context of another width.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


# at import, so that a process that is handed a model knows the function, too
AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
