"""Layers for multi-token prediction (MTP), which checkpoints contain beside those of the target."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from refimpl.models.attending_head import AttendingHead
from refimpl.models.block_cache import cache_argument
from refimpl.models.head_rows import HeadRows


class MtpHead(AttendingHead):
    """transformers' MTP layers, each a module.

    Args:
        mtp: a `MtpModel`, which shares embedding, LM head and rotary embedding with its target.
    """

    def __init__(self, mtp: Any):
        super().__init__(depth=len(mtp.layers))
        self._mtp = mtp.eval()

    def advance(
        self,
        index: int,
        tokens: Int[Tensor, "batch q"],
        positions: Int[Tensor, "batch q"],
        states: Float[Tensor, "batch q hidden"],
        rows: HeadRows,
    ) -> Float[Tensor, "batch q hidden"]:
        """One layer."""
        layer, embedded = self._mtp.layers[index], self._mtp.embed_tokens(tokens)
        width = rows.cache.get_seq_length(index) + tokens.shape[1]
        behind: Tensor = layer(
            embedded,
            states,
            position_embeddings=self._mtp.rotary_emb(embedded, position_ids=positions),
            position_ids=positions,
            attention_mask=rows.mask(width, tokens.shape[1], embedded.dtype),
            **{cache_argument(layer): rows.cache},
        )
        return behind

    def logits(self, states: Float[Tensor, "batch 1 hidden"]) -> Float[Tensor, "batch 1 vocab"]:
        """Those of the target's LM head."""
        found: Tensor = self._mtp.shared_head(states)
        return found
