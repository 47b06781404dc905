"""A model whose next-token law is a table of fractions over the last two tokens, read back from its own K/V."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor

from refimpl.core.request import Request
from refimpl.layouts.spans import Span
from refimpl.layouts.store import Block, KVShape, StatePart
from refimpl.models.adapter import FeedRow, Pair
from refimpl.models.head import SteppingHead

Law = dict[tuple[int, ...], Fraction]
JointLaw = dict[tuple[tuple[int, ...], ...], Fraction]
Table = dict[tuple[int, ...], list[Fraction]]

WINDOW = Span("window", 2)
LATEST = StatePart(0, "latest", 0, (1,), torch.float64)


def random_table(vocab_size: int, rng: Random, denominator: int = 16) -> Table:
    """Dyadic laws by context (at most two tokens); about one mass in five is 0."""
    contexts = [c for n in (1, 2) for c in product(range(vocab_size), repeat=n)]
    return {context: _random_law(vocab_size, rng, denominator) for context in contexts}


def _random_law(vocab_size: int, rng: Random, denominator: int) -> list[Fraction]:
    cuts = sorted(rng.randint(0, denominator) for _ in range(vocab_size - 1))
    return [Fraction(b - a, denominator) for a, b in zip([0, *cuts], [*cuts, denominator], strict=True)]


def shaped(law: list[Fraction], sharpness: int = 1, top_k: int = 0) -> list[Fraction]:
    """The law at temperature 1/sharpness, then top-k with ties kept."""
    mass = [p**sharpness for p in law]
    least = sorted(mass)[-top_k] if 0 < top_k < len(mass) else Fraction(0)
    mass = [m if m >= least else Fraction(0) for m in mass]
    return [m / sum(mass) for m in mass]


class FractionModel:
    """A CausalLM; K/V of a token are (position, token), so a wrong cache changes the law.

    Args:
        table: the law.
        kind: where it looks up the last token but one: ``"full"`` by its position; ``"windowed"`` as the first token
            that a window of two shows; ``"recurrent"`` in a state that holds the latest token.
    """

    max_positions = 64
    recordable, mixes_rows, maskless_queries = True, False, 0
    forward_packed = None

    def __init__(self, table: Table, kind: Literal["full", "windowed", "recurrent"] = "full"):
        self.table, self.kind = table, kind
        spans, states = (WINDOW,) if kind == "windowed" else (), (LATEST,) if kind == "recurrent" else ()
        self.kv_shape = KVShape(1, 1, 2, torch.float64, torch.device("cpu"), spans=spans, states=states)
        self.vocab_size = len(next(iter(table.values())))
        none = self.vocab_size  # index of "no token before"
        self._logits = torch.full((none + 1, none, self.vocab_size), torch.nan, dtype=torch.float64)
        for context, law in table.items():
            before = context[0] if len(context) == 2 else none
            self._logits[before, context[-1]] = torch.tensor([float(p) for p in law], dtype=torch.float64).log()

    def forward(self, block: Block, num_logits: int) -> Tensor:
        """Look the law up by the two tokens that the query sees last."""
        entries = torch.stack([block.position_ids, block.tokens], dim=-1).double()[:, None]
        position, token = block.append(0, entries, entries)[0][:, 0].long().unbind(dim=-1)
        query = block.position_ids[:, -num_logits:, None]
        visible = block.mask[:, 0, -num_logits:]
        if self.kind == "recurrent":
            before = self._latest(block)[:, -num_logits:]
        elif self.kind == "windowed":
            seen = block.seen_by(WINDOW)[:, 0, -num_logits:]
            first = torch.where(seen, position[:, None], self.max_positions).amin(dim=-1, keepdim=True)
            before = self._lookup(seen & (position[:, None] == first) & (first < query), token, self.vocab_size)
        else:
            before = self._lookup(visible & (position[:, None] == query - 1), token, self.vocab_size)
        last = self._lookup(visible & (position[:, None] == query), token, 0)
        if block.note_hidden:
            block.note_hidden.note(last[..., None].double())
        return self.next_logits(before, last)

    def _latest(self, block: Block) -> Tensor:
        """The token before each, from the state; `vocab_size` where there is none."""
        before, state = list[Tensor](), torch.empty(0)
        for at, token in enumerate(block.tokens.unbind(dim=1)):
            state = block.states.read(LATEST) if at % block.states.step == 0 else state
            before.append(state[:, 0].long())
            state = token[:, None].double() + 1
            block.states.write(LATEST, state)
        found = torch.stack(before, dim=1)
        return torch.where(found > 0, found - 1, self.vocab_size)

    def next_logits(self, before: Any, token: Any) -> Tensor:
        """Logits after two tokens; `before` is `vocab_size` where there is only one."""
        return self._logits[before, token]

    def _lookup(self, hit: Tensor, token: Tensor, missing: int) -> Tensor:
        found = (hit * token[:, None]).amax(dim=-1)
        return torch.where(hit.any(dim=-1), found, missing).clamp(0, self.vocab_size)

    def fresh_row(self) -> FeedRow:
        """Start one row, for the oracle."""
        row: list[int] = []

        def feed(tokens: list[int]) -> Tensor:
            row.extend(tokens)
            before = row[-2] if len(row) > 1 else self.vocab_size
            return self.next_logits(before, row[-1])

        return feed

    def fresh_kv(self, tokens: list[int]) -> Tensor:
        """Positions and tokens."""
        entries = torch.tensor([[float(p), float(t)] for p, t in enumerate(tokens)], dtype=torch.float64)
        return entries.expand(1, 2, 1, *entries.shape)


class FractionHead(SteppingHead):
    """A draft head that has the laws of a draft; its state is the last token."""

    def __init__(self, draft: FractionModel):
        self.draft = draft

    def step(self, state: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """See `SteppingHead`."""
        return tokens.double(), self.draft.next_logits(state.long(), tokens)


def fraction_pair(vocab_size: int, seed: int, kind: Literal["full", "windowed", "recurrent"] = "full") -> Pair:
    """Pair two random tables; the target is of this kind."""
    rng = Random(seed)
    target, draft = (FractionModel(random_table(vocab_size, rng), each) for each in (kind, "full"))  # type: ignore[arg-type]
    return Pair(target, draft, vocab_size=vocab_size, name="table", head=FractionHead(draft))


@dataclass(frozen=True)
class Penalties:
    """Penalties of logits that keep laws fractions.

    Attributes:
        repetition: power that a token of the text is raised to, as logarithms of probabilities are not positive.
        frequency, presence: halvings of a generated token's mass: each time, and once.
    """

    repetition: int = 1
    frequency: int = 0
    presence: int = 0

    def request(self, request: Request) -> Request:
        """The request with these penalties."""
        halving = math.log(2)
        return replace(
            request,
            repetition_penalty=self.repetition,
            frequency_penalty=self.frequency * halving,
            presence_penalty=self.presence * halving,
        )

    def apply(self, law: list[Fraction], prompt: list[int], generated: list[int]) -> list[Fraction]:
        """A law after a text; its masses need not sum to 1."""
        return [self._mass(mass, token in prompt, generated.count(token)) for token, mass in enumerate(law)]

    def _mass(self, mass: Fraction, prompted: bool, times: int) -> Fraction:
        halvings = self.frequency * times + self.presence * (times > 0)
        return mass ** (self.repetition if prompted or times else 1) / 2**halvings


def sequence_law(
    table: Table,
    prompt: list[int],
    budget: int,
    stop: int | None = None,
    sharpness: int = 1,
    top_k: int = 0,
    penalties: Penalties | None = None,
    generated: tuple[int, ...] = (),
) -> Law:
    """Law of the tokens generated after those that were under autoregressive sampling; `budget` is what is left."""
    if budget == 0:
        return {(): Fraction(1)}
    law: Law = {}
    text = [*prompt, *generated]
    mass = table[tuple(text[-2:])]
    mass = penalties.apply(mass, prompt, list(generated)) if penalties else mass
    for token, p in enumerate(shaped(mass, sharpness, top_k)):
        left, longer = 0 if token == stop else budget - 1, (*generated, token)
        rest = sequence_law(table, prompt, left, stop, sharpness, top_k, penalties, longer) if p else {}
        law |= {(token, *tail): p * q for tail, q in rest.items()}
    return law


def joint(laws: list[Law]) -> JointLaw:
    """Law of independent rows."""
    out: JointLaw = {(): Fraction(1)}
    for law in laws:
        out = {(*rows, row): p * q for rows, p in out.items() for row, q in law.items()}
    return out
