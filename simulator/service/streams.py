"""Random numbers keyed by what they are for: (seed, replication, purpose, request, position).

Two scenarios with the same seed meet the same numbers request by request and position by position, whatever their
layout, scheduler or batch size (common random numbers), and a replication's numbers do not depend on which worker
draws them. Philox is counter-based: a block is reached without drawing those before it.
"""

from enum import IntEnum

import numpy as np
from numpy.random import Generator, Philox

REQUEST_BLOCK = 4096
TILE_REQUESTS, TILE_POSITIONS = 256, 64


class Purpose(IntEnum):
    """What a random number decides; each purpose has a stream of its own."""

    PROMPT = 1
    OUTPUT = 2
    ARRIVAL = 3
    PHASE = 4
    ACCEPT = 5
    REQUEST = 6
    THINK = 7
    NOISE = 8
    CALIBRATION = 9
    FIT = 10
    CONFIDENCE = 11
    FOUND = 12
    LOOKUP = 13
    OVERLAY = 14
    CLASS = 15
    FAILURE = 16


class Streams:
    """All random numbers of one replication."""

    def __init__(self, seed: int, replication: int):
        self.key = np.array([seed, replication], dtype=np.uint64)

    def generator(self, purpose: Purpose, first: int = 0, second: int = 0) -> Generator:
        """Generator of the block (purpose, first, second)."""
        counter = np.array([0, first, second, int(purpose)], dtype=np.uint64)
        return Generator(Philox(key=self.key, counter=counter))

    def per_request(self, purpose: Purpose, start: int, stop: int) -> np.ndarray:
        """Uniform numbers of requests start … stop-1 ``[stop - start]``."""
        first, last = start // REQUEST_BLOCK, -(-stop // REQUEST_BLOCK)
        blocks = [self.generator(purpose, block).random(REQUEST_BLOCK) for block in range(first, last)]
        return np.concatenate([np.empty(0), *blocks])[start - first * REQUEST_BLOCK : stop - first * REQUEST_BLOCK]

    def tile(self, purpose: Purpose, block: int, number: int) -> np.ndarray:
        """Uniform numbers of a block of requests at positions number · TILE_POSITIONS, …

        Returns:
            ``[TILE_REQUESTS, TILE_POSITIONS]``
        """
        return self.generator(purpose, block, number).random((TILE_REQUESTS, TILE_POSITIONS))
