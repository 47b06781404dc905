"""Prompts that enter together, cached by themselves: their real tokens alone, and padded to the longest."""

from collections.abc import Sequence as Seq
from dataclasses import fields

import torch

from refimpl.core.config import make_config
from refimpl.decoding.cached import CachedModel
from refimpl.decoding.engine import Engine
from refimpl.decoding.prefill import prefill
from refimpl.models.adapter import Pair
from refimpl.requests import prepare


class Padded(CachedModel):
    """Runs rectangles, whatever its model knows."""

    forward_packed = None  # type: ignore[assignment]


class PrefillBench:
    """Prompts that have entered a layout: both models can cache them again and again.

    Args:
        pair: the models.
        layout: where K/V are stored.
        prompts: token ids.
        checks: level of the engine's run-time checks.

    Raises:
        InputError: the K/V do not fit, or a prompt is empty.
    """

    def __init__(self, pair: Pair, layout: str, prompts: Seq[list[int]], *, checks: str):
        config = make_config(
            method=layout, batch_size=len(prompts), num_speculative_tokens=1, max_new_tokens=2, stop_token_ids=[],
            checks=checks, prefix_sharing=False,
        )  # fmt: skip
        self.engine = Engine(pair, prepare(pair, prompts, config), config)
        with torch.inference_mode():
            self.engine.admit()
        models = self.engine.context.models
        names = [field.name for field in fields(CachedModel)]
        self._padded = [Padded(**{name: getattr(model, name) for name in names}) for model in models]

    def packed(self) -> float:
        """Seconds of passes that feed the prompts' tokens and nothing else, where the models run such."""
        return self._cache_all(self.engine.context.models)

    def padded(self) -> float:
        """Seconds of passes as wide as the longest prompt."""
        return self._cache_all(self._padded)

    @torch.inference_mode()
    def _cache_all(self, models: Seq[CachedModel]) -> float:
        sequences, timer = self.engine.sequences, self.engine.timer
        timer.take()
        with timer.stage("prefill"):
            for cached in models:
                for sequence in sequences:
                    cached.note_cached(sequence, 0)
                prefill(cached, sequences)
        return timer.take()["prefill_s"]
