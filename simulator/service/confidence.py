"""What a draft budget is told of the drafts: estimates that they, and all before them, will be accepted."""

from functools import lru_cache
from itertools import accumulate
from operator import mul

import numpy as np
from scipy.special import expit, logit

from refimpl.core.errors import require
from simulator.service.acceptance import AcceptanceModel
from simulator.service.records import Request
from simulator.service.streams import TILE_POSITIONS, TILE_REQUESTS, Purpose
from simulator.service.traced import Places
from simulator.settings.fields import Spec
from simulator.settings.kinds import CONFIDENCE

LEAST = 1e-9  # distance of a probability from 0 and 1
KEPT_TILES, KEPT_BLOCKS = 4096, 256  # a block takes 128 KiB


class DrawnConfidence:
    """A probability for each draft, drawn so that it is right that often.

    Of a request whose drafts are right with probability p, it has the law Beta(p·s, (1 - p)·s), and drafts are right
    with the probability drawn. The models of acceptance draw right and wrong first, so here it is drawn given those:
    Beta(p·s + 1, (1 - p)·s) for a right draft, Beta(p·s, (1 - p)·s + 1) for a wrong one (Bayes).

    Args:
        acceptance: which drafts are right.
        information: share of the variance of right and wrong that the probability explains, 1 / (s + 1): 0 knows the
            request's rate alone, 1 knows the outcome.
        noise: standard deviation of an error of the estimate, in its logit; the drafts stay what they are.
    """

    def __init__(self, acceptance: AcceptanceModel, *, information: float, noise: float):
        self.acceptance, self.information, self.noise = acceptance, information, noise
        self._tile = lru_cache(KEPT_TILES)(self.tile)
        self._block = lru_cache(KEPT_BLOCKS)(self.block)

    def survival(self, request: Request, count: int) -> list[float]:
        """Products along the drafts from the next token on."""
        number, place = divmod(request.generated, TILE_POSITIONS)
        found = self._tile(request.sequence, number)[place : place + count]
        if len(found) < count:
            found = found + self._tile(request.sequence, number + 1)[: count - len(found)]
        return list(accumulate(found, mul))

    def tile(self, index: int, number: int) -> list[float]:
        """Of a request's positions number · TILE_POSITIONS, … ``[TILE_POSITIONS]``."""
        block, place = divmod(index, TILE_REQUESTS)
        return self._block(block, number)[place].tolist()

    def block(self, block: int, number: int) -> np.ndarray:
        """Of a block of requests ``[TILE_REQUESTS, TILE_POSITIONS]``."""
        right, rates = self.acceptance.right(block, number), self.acceptance.rates(block)[:, None]
        generator = self.acceptance.streams.generator(Purpose.CONFIDENCE, block, number)
        found = np.clip(self._draw(generator, right, np.clip(rates, LEAST, 1 - LEAST)), LEAST, 1 - LEAST)
        return expit(logit(found) + self.noise * generator.standard_normal(found.shape)) if self.noise else found

    def _draw(self, generator: np.random.Generator, right: np.ndarray, rates: np.ndarray) -> np.ndarray:
        """Probabilities given the outcomes ``[TILE_REQUESTS, TILE_POSITIONS]``."""
        if self.information in (0, 1):
            return right + 0.0 if self.information else np.broadcast_to(rates, right.shape)
        strength = 1 / self.information - 1
        return generator.beta(rates * strength + right, (1 - rates) * strength + ~right)


class TracedConfidence:
    """What the engine's budget was told in a run that is replayed; nothing where no draft was drawn.

    Raises:
        InputError: the trace has no estimates.
    """

    def __init__(self, path: str):
        self.survivals = Places(path, "survival")
        known = any(self.survivals.values.values())
        require(known, f"{path}: does not say how likely drafts were to survive")

    def survival(self, request: Request, count: int) -> list[float]:
        """Those of the round that the sequence began at that length."""
        return (self.survivals.at(request) or [])[:count]


Confidence = DrawnConfidence | TracedConfidence


def make_confidence(spec: Spec, acceptance: AcceptanceModel) -> Confidence:
    """The estimates that a scenario names."""
    values = spec.resolved(CONFIDENCE)
    return TracedConfidence(**values) if spec.kind == "trace" else DrawnConfidence(acceptance, **values)
