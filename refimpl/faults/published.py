"""Two published methods that return wrong texts, rebuilt on transformers' own cache and attention mask: BSP and DSD.

BSP masks: rejected tokens stay in the cache as columns that the 2-D attention mask hides. The published code passes no
position ids, so the model derives them itself: Llama-like models count cache columns, holes included, and go wrong; OPT
sums the attention mask and is right. With explicit positions the method is exact on both.

DSD appends, at the first mismatch, the token of the draft in place of the target's; it passes no attention mask, so
that pads are seen; and it pads rows again without removing the pads that they have.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from refimpl.conformance.protocol import EngineSettings, NotSupported
from refimpl.core.tokens import until_stop
from refimpl.models.adapter import HuggingFaceLM
from refimpl.models.block_cache import call_with_cache
from refimpl.pairs.random_pairs import random_pair

PAD_TOKEN = 0


@dataclass
class _Batch:
    """State of a batch: one cache, one mask over all of its columns, and the rows' tokens."""

    cache: DynamicCache
    mask: Tensor  # [batch, columns]
    rows: list[list[int]]


class MaskingEngine:
    """BSP on a target and a draft of transformers; greedy.

    Args:
        target, draft: models with full attention.
        explicit_positions: pass position ids (the correction) or let the model guess (as shipped).
    """

    supports: frozenset[str] = frozenset()

    def __init__(self, target: Any, draft: Any, *, explicit_positions: bool):
        self.target, self.draft, self.explicit_positions = target, draft, explicit_positions
        self.vocab_size = target.config.vocab_size

    @torch.inference_mode()
    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
        """Decode all prompts as one batch until each has its budget."""
        if settings.temperature or min(map(len, prompts)) < 2:
            raise NotSupported("sampling, and prompts of one token")
        batch, k = self._prefill(prompts), max(1, settings.num_speculative_tokens)
        while min(len(row) - len(p) for row, p in zip(batch.rows, prompts, strict=True)) < settings.max_new_tokens:
            self._round(batch, k)
        return [
            until_stop(row[len(prompt) :][: settings.max_new_tokens], settings.stop_token_ids)
            for row, prompt in zip(batch.rows, prompts, strict=True)
        ]

    def _prefill(self, prompts: list[list[int]]) -> _Batch:
        """Cache all prompt tokens but the last, left-padded."""
        width = max(map(len, prompts)) - 1
        ids = torch.tensor([[PAD_TOKEN] * (width + 1 - len(p)) + p[:-1] for p in prompts])
        mask = torch.tensor([[0] * (width + 1 - len(p)) + [1] * (len(p) - 1) for p in prompts])
        batch = _Batch(DynamicCache(config=self.target.config), mask, [list(p) for p in prompts])
        self._forward(batch, ids)
        return batch

    def _round(self, batch: _Batch, k: int) -> None:
        drafts = [self._draft(row, k) for row in batch.rows]
        ids = torch.tensor([[row[-1], *proposed] for row, proposed in zip(batch.rows, drafts, strict=True)])
        start = batch.mask.shape[1]
        batch.mask = torch.cat([batch.mask, torch.ones_like(ids)], dim=1)
        chosen = self._forward(batch, ids).argmax(dim=-1).tolist()
        for i, proposed in enumerate(drafts):
            accepted = next((j for j in range(k) if proposed[j] != chosen[i][j]), k)
            batch.rows[i] += chosen[i][: accepted + 1]
            batch.mask[i, start + accepted + 1 :] = 0  # rejected entries become holes

    def _forward(self, batch: _Batch, ids: Tensor) -> Tensor:
        extra = {}
        if self.explicit_positions:
            extra["position_ids"] = (batch.mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return call_with_cache(self.target, batch.cache, input_ids=ids, attention_mask=batch.mask, **extra).logits

    def _draft(self, row: list[int], k: int) -> list[int]:
        tokens = list(row)
        for _ in range(k):
            tokens.append(int(self.draft(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
        return tokens[-k:]


class UnmaskedEngine:
    """DSD on a target and a draft of transformers; greedy.

    Args:
        target, draft: models with full attention.
    """

    supports: frozenset[str] = frozenset()

    def __init__(self, target: Any, draft: Any):
        self.target, self.draft = target, draft
        self.vocab_size = target.config.vocab_size

    @torch.inference_mode()
    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
        """Decode all prompts as one batch until each has its budget."""
        if settings.temperature:
            raise NotSupported("sampling")
        rows, made = _padded([list(prompt) for prompt in prompts]), [0] * len(prompts)
        while min(made) < settings.max_new_tokens:
            kept = self._round(torch.tensor(rows), max(1, settings.num_speculative_tokens))
            made = [count + len(tokens) for count, tokens in zip(made, kept, strict=True)]
            rows = _padded([row + tokens for row, tokens in zip(rows, kept, strict=True)])
        outputs = [row[-count:][: settings.max_new_tokens] for row, count in zip(rows, made, strict=True)]
        return [until_stop(tokens, settings.stop_token_ids) for tokens in outputs]

    def _round(self, ids: Tensor, k: int) -> list[list[int]]:
        """Tokens that each row appends: accepted drafts and the draft at the first mismatch."""
        width = ids.shape[1]
        for _ in range(k):
            ids = torch.cat([ids, self.draft(input_ids=ids).logits[:, -1:].argmax(dim=-1)], dim=1)
        chosen = self.target(input_ids=ids).logits[:, width - 1 : -1].argmax(dim=-1)
        drafts = ids[:, width:]
        right = (drafts == chosen).long().cumprod(dim=1).sum(dim=1).tolist()
        return [row[: count + 1] for row, count in zip(drafts.tolist(), right, strict=True)]


def _padded(rows: list[list[int]]) -> list[list[int]]:
    """Rows of one length, with pads before the pads that they have."""
    width = max(map(len, rows))
    return [[PAD_TOKEN] * (width - len(row)) + row for row in rows]


def bsp(kind: str = "llama", *, explicit_positions: bool = True) -> MaskingEngine:
    """Build BSP with explicit positions on a tiny random architecture."""
    pair = random_pair(kind)
    target, draft = pair.target, pair.draft
    assert isinstance(target, HuggingFaceLM)
    assert isinstance(draft, HuggingFaceLM)
    return MaskingEngine(target.model, draft.model, explicit_positions=explicit_positions)


def bsp_as_shipped(kind: str = "llama") -> MaskingEngine:
    """Build BSP as published, positions left to the model."""
    return bsp(kind, explicit_positions=False)
