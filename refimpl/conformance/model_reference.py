"""A model's folder as the reference: plain decoding by transformers, one row at a time."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl.conformance.protocol import EngineSettings
from refimpl.pairs.loading import load_pair


class ModelReference:
    """Decodes with the target alone; its draws have nothing in common with another engine's.

    Args:
        folder: of a model that transformers reads; it runs in float32 on the CPU.

    Raises:
        InputError: it cannot be loaded.
    """

    supports = frozenset({"sampling", "logprobs", "penalties"})

    def __init__(self, folder: str):
        self.model = load_pair(folder, drafter="ngram").target
        self.vocab_size = self.model.vocab_size

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> dict[str, Any]:
        """Decode every prompt to the end of its budget, whatever the stop tokens."""
        rows = [self._decode(prompt, settings, row) for row, prompt in enumerate(prompts)]
        return {"outputs": [tokens for tokens, _ in rows], "logprobs": [logprobs for _, logprobs in rows]}

    def law(self, tokens: list[int]) -> list[float]:
        """Log-probabilities of all tokens that may come next."""
        return _log_law(self.model.fresh_row()(tokens)).tolist()

    def _decode(self, prompt: list[int], settings: EngineSettings, row: int) -> tuple[list[int], list[float]]:
        choose = _chooser(settings.temperature, settings.seed * 1_000_003 + row)
        penalty = settings.of_row(row).repetition_penalty
        feed, tokens, logprobs = self.model.fresh_row(), list(prompt), list[float]()
        fed = tokens
        for _ in range(settings.max_new_tokens):
            law = _log_law(_penalized(feed(fed), tokens, penalty))
            fed = [choose(law)]
            tokens, logprobs = tokens + fed, [*logprobs, float(law[fed[0]])]
        return tokens[len(prompt) :], logprobs


def _log_law(logits: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
    return logits.double().log_softmax(-1)


def _penalized(logits: Float[Tensor, " vocab"], tokens: list[int], penalty: float) -> Float[Tensor, " vocab"]:
    changed = torch.where(logits > 0, logits / penalty, logits * penalty)
    return logits.index_copy(0, seen := torch.tensor(sorted(set(tokens))), changed[seen])


def _chooser(temperature: float, seed: int) -> Callable[[Tensor], int]:
    if not temperature:
        return lambda law: int(law.argmax())
    noise = torch.Generator().manual_seed(seed)
    return lambda law: int(torch.multinomial((law / temperature).softmax(-1), 1, generator=noise))
