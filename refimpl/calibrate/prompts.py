"""Prompts that no two runs share: drawn from a file, from text that every Python carries, or at random."""

import math
import random
from typing import Any

from refimpl.config import Request
from refimpl.errors import InputError
from refimpl.model import Pair
from refimpl.requests import Prompt, encode

SHORTEST, LONGEST = 5, 300  # tokens, log-uniform between them
MIN_PROMPTS = 32
RANDOM_PROMPTS = 2600
NEAR_END = 3  # every so many-th prompt leads up to a document's end


class PromptSupply:
    """Deals prompts from one shuffled pile, each once; what calibrates and what is held out never meet.

    A pile that is too small is split in halves, and each half is dealt over again.

    Args:
        prompts: token ids of each.
        needed: how many will be asked for, `fitted` of them for what calibrates.
        rng: shuffles.
    """

    def __init__(self, prompts: list[list[int]], fitted: int, needed: int, rng: random.Random):
        pile = rng.sample(prompts, len(prompts))
        cut = fitted if needed <= len(pile) else len(pile) // 2
        self._piles = {True: pile[:cut], False: pile[cut:]}
        self._next = {True: 0, False: 0}

    def deal(self, count: int, *, fitted: bool) -> list[list[int]]:
        """The next prompts for what calibrates, or for a held-out run."""
        pile, start = self._piles[fitted], self._next[fitted]
        self._next[fitted] += count
        return [pile[at % len(pile)] for at in range(start, start + count)]

    @property
    def stream(self) -> list[int]:
        """Tokens of what calibrates, one after the other."""
        return [token for prompt in self._piles[True] for token in prompt]


def token_prompts(pair: Pair, given: list[Prompt] | None, rng: random.Random) -> list[list[int]]:
    """Prompts as token ids: those given; else, with a tokenizer, pieces of the standard library; else random ones.

    Raises:
        InputError: fewer prompts are given than a calibration can do with.
    """
    if given is None:
        return _library_pieces(pair, rng) if pair.tokenizer is not None else _random_ids(pair, rng)
    if len(given) < MIN_PROMPTS:
        raise InputError(f"calibrate needs at least {MIN_PROMPTS} prompts, not {len(given)}")
    plain = [text.prompt if isinstance(text, Request) else text for text in given]
    return [encode(pair, text, i) for i, text in enumerate(plain)]


def _length(rng: random.Random) -> int:
    return round(math.exp(rng.uniform(math.log(SHORTEST), math.log(LONGEST))))


def _random_ids(pair: Pair, rng: random.Random) -> list[list[int]]:
    return [[rng.randrange(pair.vocab_size) for _ in range(_length(rng))] for _ in range(RANDOM_PROMPTS)]


def _library_pieces(pair: Pair, rng: random.Random) -> list[list[int]]:
    """Pieces of the modules that the bundled pair has not seen, cut like its bundled prompts."""
    from refimpl.pairs.train_tiny.corpus import read_corpus

    texts = [_ids(pair.tokenizer, document.text) for document in read_corpus() if document.held_out]
    weights = [len(ids) for ids in texts]
    prompts: list[list[int]] = []
    while len(prompts) < RANDOM_PROMPTS:
        ids, length = rng.choices(texts, weights)[0], _length(rng)
        last = len(ids) - length - rng.randint(8, 40)
        if last >= 0:
            near_end = len(prompts) % NEAR_END == NEAR_END - 1
            start = last if near_end else rng.randint(0, last)
            prompts.append(ids[start : start + length])
    return prompts


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
