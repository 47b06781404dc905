"""Engines ready to be tested: our methods, `model.generate` in batches, and assisted `generate` for one prompt.

Each factory takes one text argument, see `refimpl.conformance.python_engine.load_engine`.
"""

import random
import warnings
from typing import Any

import torch

from refimpl.conformance.protocol import BLOCK_SIZE, EngineSettings, NotSupported
from refimpl.conformance.service import serve
from refimpl.core.config import AcceptanceName, CheckLevel, DecodeConfig, make_config, resolve_method
from refimpl.core.request import Request
from refimpl.core.stats import AcceptanceCollapseWarning
from refimpl.core.tokens import until_stop
from refimpl.generation import generate
from refimpl.models.adapter import HuggingFaceLM, Pair
from refimpl.models.table_model import VOCAB_SIZE, table_pair, unrelated_pair
from refimpl.pairs.loading import load_pair
from refimpl.pairs.random_pairs import LEARNED_POSITIONS, random_pair

SERVED = ("batch_size", "num_speculative_tokens", "max_new_tokens", "stop_token_ids", "temperature", "seed")


class MethodEngine:
    """One of our methods on a pair; `settings` are further fields of DecodeConfig.

    Under `law_rule`, samples keep the reference's law but are not its very tokens.
    """

    def __init__(
        self,
        method: str,
        pair: Pair,
        *,
        checks: CheckLevel = "oracle",
        law_rule: AcceptanceName | None = None,
        **settings: Any,
    ):
        self.method, self.pair, self.checks, self.settings = resolve_method(method).name, pair, checks, settings
        self.vocab_size, self.law_rule = pair.vocab_size, law_rule
        self.supports = frozenset({"serving", "sampling"} if law_rule else {"serving", "sampling", "keyed_sampling"})
        self.block_size = settings.get("block_size", BLOCK_SIZE)

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
        """Run the method with the checks on: a broken invariant is an engine failure."""
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", AcceptanceCollapseWarning
            )  # cases with drafts that are never right are wanted
            if settings.submit_at:
                return serve(self.pair, self.config(settings), prompts, settings)
            return self._decode(self.method, prompts, settings)

    def config(self, settings: EngineSettings) -> DecodeConfig:
        """Settings of a run that serves."""
        return make_config(method=self.method, **self._keywords(settings))

    def _keywords(self, settings: EngineSettings) -> dict[str, Any]:
        return self.settings | {name: getattr(settings, name) for name in SERVED} | {"checks": self.checks}

    def reference(self, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
        """Run the oracle."""
        return self._decode("autoregressive", prompts, settings)

    def _decode(self, method: str, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
        sampled: dict[str, Any] = {"acceptance": self.law_rule} if self.law_rule and settings.temperature else {}
        requests = [Request(tuple(prompt)) for prompt in prompts]
        result = generate(self.pair, requests, method=method, **self._keywords(settings) | sampled)
        return [s.token_ids for s in result.sequences]


def mixed_script() -> dict[int, list[bool]]:
    """Script the draft of the table pair: a different mixture of agreement for every first token."""
    rng = random.Random(0)
    return {first: [rng.random() < rate for _ in range(100)] for first, rate in enumerate(_rates())}


def _rates() -> list[float]:
    return [(0.9, 0.3, 0.6, 1.0, 0.0)[i % 5] for i in range(VOCAB_SIZE)]


def method(name: str = "inplace") -> MethodEngine:
    """Test one of our methods on the integer model; `name` is a method or ``layout+scheduler``."""
    return MethodEngine(name, table_pair(mixed_script()))


def rejection(name: str = "inplace") -> MethodEngine:
    """Test one of our methods on the integer model, sampling under the rejection rule."""
    return MethodEngine(name, unrelated_pair(), checks="device", law_rule="rejection")


def method_on_learned_positions(name: str = "inplace") -> MethodEngine:
    """Test one of our methods on a tiny random pair with learned positions, where a constant shift shows."""
    return MethodEngine(name, random_pair(LEARNED_POSITIONS[0]), checks="device")


class GenerateEngine:
    """Plain `model.generate` of transformers, left-padded batches, no speculation."""

    supports: frozenset[str] = frozenset()

    def __init__(self, target: Any, draft: Any = None):
        self.target, self.draft = target, draft
        self.vocab_size = target.config.vocab_size

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
        """Generate batch by batch."""
        if settings.temperature:
            raise NotSupported("sampling with a keyed seed")
        size = settings.batch_size
        return [row for i in range(0, len(prompts), size) for row in self._batch(prompts[i : i + size], settings)]

    def _batch(self, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
        width, pad = max(map(len, prompts)), 0
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        extra: dict[str, Any] = {}
        if self.draft is not None and settings.num_speculative_tokens:
            self.draft.generation_config.num_assistant_tokens = settings.num_speculative_tokens
            self.draft.generation_config.num_assistant_tokens_schedule = "constant"
            extra["assistant_model"] = self.draft
        with torch.inference_mode():
            output = self.target.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=settings.max_new_tokens,
                do_sample=False,
                eos_token_id=list(settings.stop_token_ids) or None,
                pad_token_id=pad,
                **extra,
            )
        return [until_stop(row[width:].tolist(), settings.stop_token_ids) for row in output]


class AssistedEngine(GenerateEngine):
    """Assisted `generate` of transformers, which takes one prompt at a time."""

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
        """Generate for one row at a time; larger batches are refused, as transformers does."""
        if settings.batch_size > 1 and len(prompts) > 1:
            raise NotSupported("assisted generation at batch sizes above 1")
        return super().__call__(prompts, settings)


def _transformers_models(kind: str) -> list[Any]:
    pair = load_pair("tiny", dtype="float64") if kind == "tiny" else random_pair(kind)
    models = []
    for adapter in (pair.target, pair.draft):
        assert isinstance(adapter, HuggingFaceLM)
        adapter.model.generation_config.eos_token_id = None
        models.append(adapter.model)
    return models


def hf_generate(kind: str = "llama") -> GenerateEngine:
    """Test batched `model.generate` of a tiny random architecture, or of the bundled pair's target (``tiny``)."""
    return GenerateEngine(_transformers_models(kind)[0])


def hf_assisted(kind: str = "llama") -> AssistedEngine:
    """Test assisted `generate`, batch 1."""
    return AssistedEngine(*_transformers_models(kind))
