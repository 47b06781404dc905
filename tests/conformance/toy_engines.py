"""Engines for tests of the kit: a hash in place of a model, right but for the change that a test makes."""

import hashlib
import sys
from collections.abc import Callable
from typing import Any

from refimpl.conformance.protocol import EngineSettings, NotSupported

VOCAB_SIZE = 40
Prompts = list[list[int]]
Change = Callable[[Prompts, EngineSettings, Prompts], Any]


def continuation(prompt: list[int], settings: EngineSettings, noise: Any = None) -> list[int]:
    """Each token is a hash of all before it, and of the noise when sampling."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + settings.max_new_tokens:
        tokens.append(hashlib.sha256(repr((tokens, noise)).encode()).digest()[0] % VOCAB_SIZE)
        if tokens[-1] in settings.stop_token_ids:
            break
    return tokens[len(prompt) :]


def keyed_noise(settings: EngineSettings, place: int) -> Any:
    """What a sample depends on beside its prefix."""
    return (settings.temperature, settings.seed, place) if settings.temperature else None


class Toy:
    """A right engine whose answers a test changes."""

    vocab_size: Any = VOCAB_SIZE
    supports: Any = frozenset({"sampling", "keyed_sampling"})

    def __init__(self, change: Change | None = None, **attributes: Any):
        self.change = change
        vars(self).update(attributes)

    def __call__(self, prompts: Prompts, settings: EngineSettings) -> Any:
        outputs = [continuation(p, settings, keyed_noise(settings, i)) for i, p in enumerate(prompts)]
        return self.change(prompts, settings, outputs) if self.change else outputs


def next_id(tokens: list[int]) -> list[int]:
    """The same tokens but for the last."""
    return [*tokens[:-1], (tokens[-1] + 1) % VOCAB_SIZE]


def make() -> Toy:
    """A right engine."""
    return Toy()


def refusing(what: str = "all") -> Toy:
    """An engine that refuses everything, or all but single prompts."""

    def refuse(prompts: Prompts, _: EngineSettings, outputs: Prompts) -> Prompts:
        if what == "all" or len(prompts) > 1:
            raise NotSupported("batches")
        return outputs

    return Toy(refuse, supports=frozenset())


def exiting(when: str = "asked") -> Toy:
    """An engine that ends the process, when it is made or asked."""
    return Toy(lambda *_: sys.exit(0)) if when == "asked" else sys.exit(0)


def described(**attributes: Any) -> Callable[[], Toy]:
    """A factory of engines that describe themselves so."""
    return lambda: Toy(**attributes)


without_vocabulary = described(vocab_size=None)
without_abilities = described(supports=None)
text_as_abilities = described(supports="sampling")
misspelt = described(supports=["keyed-sampling"])
with_a_list_as_reference = described(reference=[1, 2])
