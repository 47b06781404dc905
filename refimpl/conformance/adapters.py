"""Our methods as engines to be tested; each factory takes a text, see `refimpl.conformance.python_engine`."""

import random
import warnings
from dataclasses import asdict
from itertools import repeat
from typing import Any

from refimpl.conformance.protocol import BLOCK_SIZE, EngineSettings
from refimpl.conformance.service import serve
from refimpl.core.config import AcceptanceName, CheckLevel, make_config, resolve_method
from refimpl.core.request import Request
from refimpl.core.stats import AcceptanceCollapseWarning
from refimpl.generation import generate
from refimpl.models.adapter import Pair
from refimpl.models.table_model import VOCAB_SIZE, table_pair, unrelated_pair

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
        self.supports = frozenset({"serving", "sampling", "logprobs", "counters"})
        self.supports |= set() if law_rule else {"keyed_sampling"}
        self.supports |= set() if settings.get("cuda_graphs") else {"row_settings", "penalties"}
        self.block_size = settings.get("block_size", BLOCK_SIZE)

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> Any:
        """Run the method with the checks on: a broken invariant is an engine failure."""
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", AcceptanceCollapseWarning
            )  # cases with drafts that are never right are wanted
            if settings.submit_at:
                return serve(self.pair, make_config(method=self.method, **self._keywords(settings)), prompts, settings)
            return self._decode(self.method, prompts, settings)

    def _keywords(self, settings: EngineSettings) -> dict[str, Any]:
        return self.settings | {name: getattr(settings, name) for name in SERVED} | {"checks": self.checks}

    def reference(self, prompts: list[list[int]], settings: EngineSettings) -> dict[str, Any]:
        """Run the oracle."""
        return self._decode("autoregressive", prompts, settings)

    def _decode(self, method: str, prompts: list[list[int]], settings: EngineSettings) -> dict[str, Any]:
        more: dict[str, Any] = {"logprobs": 0} if "logprobs" in settings.report else {}
        more |= {"acceptance": self.law_rule} if self.law_rule and settings.temperature else {}
        own = map(asdict, settings.rows) if settings.rows else repeat({})
        requests = [Request(tuple(prompt), **row) for prompt, row in zip(prompts, own, strict=False)]
        result = generate(self.pair, requests, method=method, **self._keywords(settings) | more)
        rows, counts = result.sequences, result.stats.acceptance
        return {
            "outputs": [row.token_ids for row in rows],
            "logprobs": [[entry.logprob for entry in row.logprobs] for row in rows],
            "counters": {"generated": counts.generated, "drafted": counts.drafted, "rounds": counts.row_rounds},
        }


def mixed_script() -> dict[int, list[bool]]:
    """Script the draft of the table pair: a different mixture of agreement for every first token."""
    rng, rates = random.Random(0), (0.9, 0.3, 0.6, 1.0, 0.0)
    return {first: [rng.random() < rates[first % len(rates)] for _ in range(100)] for first in range(VOCAB_SIZE)}


def method(name: str = "inplace") -> MethodEngine:
    """Test one of our methods on the integer model; `name` is a method or ``layout+scheduler``."""
    return MethodEngine(name, table_pair(mixed_script()))


def rejection(name: str = "inplace") -> MethodEngine:
    """Test one of our methods on the integer model, sampling under the rejection rule."""
    return MethodEngine(name, unrelated_pair(), checks="device", law_rule="rejection")
