"""The engine's passes through a model of transformers as it is, module by module."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.store import Block
from refimpl.models import attention
from refimpl.models.block_cache import BlockCache, call_with_cache
from refimpl.models.cached_layers import CachedLayers


class ModuleLayers:
    """Runs blocks through transformers' own forward, with explicit positions and an explicit 4-D mask.

    Args:
        model: whose attention is set.
        layers: what they cache and see.
        groups: query heads that share keys, where attention folds them, of the layer where most do; else 1.
    """

    copied_bytes = maskless_queries = 0  # see `refimpl.models.lean.LeanLayers`

    def __init__(self, model: PreTrainedModel, layers: CachedLayers, groups: int):
        self.model, self.layers, self.groups = model, layers, groups

    def __call__(self, block: Block | PackedBlock, num_logits: int) -> Float[Tensor, "batch num_logits vocab"]:
        """Logits of the last `num_logits` tokens of each row."""
        with self._noting(block):
            logits: Tensor = call_with_cache(
                self.model,
                BlockCache(self.layers, block),
                input_ids=block.tokens,
                position_ids=block.position_ids,
                logits_to_keep=num_logits,
                **self._seen(block),
            ).logits
        return logits

    def _seen(self, block: Block | PackedBlock) -> dict[str, Any]:
        """What says which slots queries see: one mask, or one for each kind of layers.

        A packed block says it by itself, and its mask is ignored. Where no layer attends, there is none.
        """
        shape = self.layers.shape
        if isinstance(block, PackedBlock):
            none = torch.zeros(1, 1, 1, 1, dtype=shape.dtype, device=shape.device)
            return {"attention_mask": none, "packed": block}
        if not self.layers.entries:
            return {}
        masks = {
            kind: span and attention.additive_mask(block.seen_by(span), shape.dtype, self.groups)
            for kind, span in self.layers.spans.items()
        }
        return {"attention_mask": masks if len(masks) > 1 else next(iter(masks.values()))}

    @contextmanager
    def _noting(self, block: Block | PackedBlock) -> Iterator[None]:
        """Hand hidden states of this thread's pass to a block that asks for them."""
        if block.note_hidden is None:
            yield
            return
        decoder: Any = self.model.get_decoder()
        layers, thread, states = block.note_hidden.layers, get_ident(), list[Tensor]()

        def keep_own(_: Any, __: Any, result: Any) -> None:
            if get_ident() == thread:
                states.append(result if isinstance(result, Tensor) else result[0])

        read = [decoder.layers[number - 1] for number in layers] or [decoder]
        hooks = [module.register_forward_hook(keep_own) for module in read]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        block.note_hidden.note(torch.cat(states, dim=-1))
