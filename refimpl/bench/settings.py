"""What all engines of a benchmark share, and which prompts they decode."""

import math
import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, TypeVar

from refimpl.core.config import DecodeConfig, make_config
from refimpl.core.errors import InputError, require
from refimpl.core.request import Request
from refimpl.models.adapter import Pair
from refimpl.requests import Prompt, encode

Item = TypeVar("Item")
MAX_RANDOM_TOKENS = 2**24  # of all prompts of a benchmark
OF_ALL_ENGINES = ("method", "batch_size", "num_speculative_tokens", "max_new_tokens", "stop_token_ids")
# of plain decoding: nothing is drafted, and no draft caches the prompts
PLAIN_DECODING: dict[str, Any] = {
    "num_speculative_tokens": 0, "acceptance": None, "drafter": "ngram", "draft_budget": "fixed"
}  # fmt: skip
EAGER = "_eager"  # suffix of the row of a method without the recordings that it could have


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What every engine of a benchmark shares.

    Attributes:
        batch_sizes: rows of a round; every engine runs at each.
        methods: names, or ``"all"``.
        num_speculative_tokens: drafts per row and round; of transformers' assisted generation, too.
        max_new_tokens: budget of every prompt.
        repeats: interleaved runs after a warm-up.
        checks: level of the run-time checks.
        prompts_per_row: at batch B decode B times so many of the prompts, evenly spaced; 0 decodes all of them.
        max_minutes: no further repeat is begun after so long; the first one always ends.
        cuda_graphs: record rounds where a method can, and run it without as well (see `EAGER`).
        eager: do run it without as well.
        assisted: time transformers' own assisted generation, too, at batch size 1.
        options: further settings of the engine, as for `generate`.
        variants: further settings, by what is added to a method's name: each is a row of every method.
    """

    batch_sizes: tuple[int, ...] = (1, 8)
    methods: tuple[str, ...] = ("all",)
    num_speculative_tokens: int = 5
    max_new_tokens: int = 48
    repeats: int = 3
    checks: str = "off"
    prompts_per_row: int = 0
    max_minutes: float = math.inf
    cuda_graphs: bool = False
    eager: bool = True
    assisted: bool = True
    options: tuple[tuple[str, Any], ...] = ()
    variants: tuple[tuple[str, dict[str, Any]], ...] = (("", {}),)

    def __post_init__(self) -> None:
        for name, _ in self.options:
            shared = f"{name} holds for all engines of a benchmark, transformers' own too: it is no option of ours"
            require(name not in OF_ALL_ENGINES, shared)

    def prompts_at(self, batch_size: int, prompts: list[list[int]]) -> list[list[int]]:
        """The prompts that every engine decodes at a batch size."""
        return spread(prompts, batch_size * self.prompts_per_row or len(prompts))

    def config(self, method: str, batch_size: int, **changes: Any) -> DecodeConfig:
        """Settings of a run of ours.

        Raises:
            InputError: an impossible setting.
        """
        return make_config(**(self.engine_settings(method, batch_size) | changes))

    def engine_settings(self, method: str, batch_size: int) -> dict[str, Any]:
        """The same as keywords of `generate`."""
        return {
            "method": method,
            "batch_size": batch_size,
            "num_speculative_tokens": self.num_speculative_tokens,
            "max_new_tokens": self.max_new_tokens,
            "stop_token_ids": (),
            "checks": self.checks,
            **({"cuda_graphs": True} if self.cuda_graphs and takes_graphs(method) else {}),
            **dict(self.options),
        }


def takes_graphs(method: str, **settings: Any) -> bool:
    """Whether the engine can record the rounds of a method, with these settings, and replay them."""
    try:
        make_config(**settings | {"method": method, "cuda_graphs": True})
    except InputError:
        return False
    return True


def spread(items: Seq[Item], count: int) -> list[Item]:
    """Take `count` items, evenly spaced over all of them, in order; all of them if there are fewer.

    The first items of a file are often not representative.
    """
    if count >= len(items):
        return list(items)
    return [items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count)]


def random_prompts(pair: Pair, count: int, num_tokens: int, seed: int) -> list[list[int]]:
    """Random token ids, for a pair without tokenizer; raises InputError for more than `MAX_RANDOM_TOKENS`."""
    tokens = count * num_tokens
    require(
        tokens <= MAX_RANDOM_TOKENS,
        f"{count} random prompts of {num_tokens} tokens are {tokens} tokens, at most {MAX_RANDOM_TOKENS}",
    )
    rng = random.Random(seed)
    return [[rng.randrange(pair.vocab_size) for _ in range(num_tokens)] for _ in range(count)]


def prompt_ids(pair: Pair, texts: Seq[Prompt], count: int, num_tokens: int, seed: int) -> list[list[int]]:
    """Token ids of `count` of the texts, evenly spaced; random ids for a pair without tokenizer.

    Args:
        pair: supplies the tokenizer, or the vocabulary.
        texts: to choose from.
        count: prompts to return; no more than there are texts where there is a tokenizer.
        num_tokens: length of random prompts.
        seed: of random prompts.

    Raises:
        InputError: a text that the pair cannot encode, or a prompt with settings of its own.
    """
    if pair.tokenizer is None:
        return random_prompts(pair, count, num_tokens, seed)
    return [encode(pair, text, i) for i, text in enumerate(spread(plain_texts(texts), count))]


def plain_texts(prompts: Seq[Prompt]) -> list[str | Seq[int]]:
    """Prompts that have no settings of their own.

    Raises:
        InputError: some have, or there are none.
    """
    plain = [prompt for prompt in prompts if not isinstance(prompt, Request)]
    if len(plain) < len(prompts):
        raise InputError("all prompts are decoded alike: leave out the settings that some of them have")
    if not plain:
        raise InputError("there are no texts to decode")
    return plain
