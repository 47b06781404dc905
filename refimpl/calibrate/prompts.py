"""Prompts of the runs: drawn from a file, from text that every Python carries, or at random; split by document."""

import hashlib
import math
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from refimpl.calibrate.documents import read_corpus
from refimpl.core.errors import InputError
from refimpl.core.request import Request
from refimpl.models.adapter import Pair
from refimpl.requests import Prompt, encode

SHORTEST, LONGEST = 5, 300  # tokens, log-uniform between them
MIN_PROMPTS = 32
NUM_PIECES = 4000
NEAR_END = 3  # every so many-th prompt leads up to a document's end


@dataclass(frozen=True, slots=True)
class Piece:
    """A prompt as token ids, and the document that it was cut from."""

    document: str
    ids: list[int]


class PromptSupply:
    """Deals prompts from two piles: for what calibrates, and for held-out runs. No document has pieces in both.

    Within a pile pieces may overlap where they come from one document. A pile that is too small is dealt again.

    Args:
        pieces: to choose from.
        fitted, held_out: how many what calibrates and held-out runs will ask for; each gets half if there are too few.
        rng: shuffles.

    Raises:
        InputError: all pieces come from one document.
    """

    def __init__(self, pieces: list[Piece], fitted: int, held_out: int, rng: random.Random):
        spare = len(pieces) - held_out
        chosen = _documents_of(spare if spare >= fitted else len(pieces) // 2, pieces, rng)
        shuffled = rng.sample(pieces, len(pieces))
        self._piles = {fit: [p for p in shuffled if (p.document in chosen) == fit] for fit in (True, False)}
        self._next = {True: 0, False: 0}
        if not all(self._piles.values()):
            raise InputError("calibrate needs prompts of at least two documents: all of these are alike")

    def deal(self, count: int, *, fitted: bool) -> list[Piece]:
        """The next pieces for what calibrates, or for a held-out run."""
        pile, start = self._piles[fitted], self._next[fitted]
        self._next[fitted] += count
        return [pile[at % len(pile)] for at in range(start, start + count)]

    @property
    def stream(self) -> list[int]:
        """Tokens of what calibrates, one after the other."""
        return [token for piece in self._piles[True] for token in piece.ids]


def _documents_of(room: int, pieces: list[Piece], rng: random.Random) -> set[str]:
    """Documents at random, each taken if its pieces still fit into the room; the smallest one if none does."""
    sizes = Counter(piece.document for piece in pieces)
    chosen: set[str] = set()
    for document in rng.sample(sorted(sizes), len(sizes)):
        if sizes[document] <= room:
            chosen.add(document)
            room -= sizes[document]
    return chosen or {min(sizes, key=lambda document: sizes[document])}


def token_prompts(pair: Pair, given: list[Prompt] | None, rng: random.Random) -> list[Piece]:
    """Prompts as token ids: those given; else, with a tokenizer, pieces of the standard library; else random ones.

    A module is one document, with all its docstrings; a prompt that is given is a document of its own.

    Raises:
        InputError: fewer prompts are given than a calibration needs.
    """
    if given is None:
        return _library_pieces(pair, rng) if pair.tokenizer is not None else _random_ids(pair, rng)
    if len(given) < MIN_PROMPTS:
        raise InputError(f"calibrate needs at least {MIN_PROMPTS} prompts, not {len(given)}")
    plain = [text.prompt if isinstance(text, Request) else text for text in given]
    return [_alone(encode(pair, text, i)) for i, text in enumerate(plain)]


def _alone(ids: list[int]) -> Piece:
    """A piece that shares its document with its equals only."""
    return Piece(hashlib.sha256(repr(ids).encode()).hexdigest()[:16], ids)


def _length(rng: random.Random) -> int:
    return round(math.exp(rng.uniform(math.log(SHORTEST), math.log(LONGEST))))


def _random_ids(pair: Pair, rng: random.Random) -> list[Piece]:
    return [_alone([rng.randrange(pair.vocab_size) for _ in range(_length(rng))]) for _ in range(NUM_PIECES)]


def _library_pieces(pair: Pair, rng: random.Random) -> list[Piece]:
    """Pieces of the modules that the bundled pair has not seen, cut like its bundled prompts."""
    texts = [Piece(d.source, _ids(pair.tokenizer, d.text)) for d in read_corpus() if d.held_out]
    weights = [len(text.ids) for text in texts]
    pieces: list[Piece] = []
    while len(pieces) < NUM_PIECES:
        text, length = rng.choices(texts, weights)[0], _length(rng)
        last = len(text.ids) - length - rng.randint(8, 40)
        if last >= 0:
            near_end = len(pieces) % NEAR_END == NEAR_END - 1
            start = last if near_end else rng.randint(0, last)
            pieces.append(Piece(text.document, text.ids[start : start + length]))
    return pieces


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
