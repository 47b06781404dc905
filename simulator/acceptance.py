"""How many drafted tokens survive: a property of (request, position), so that every schedule meets the same one.

Under greedy decoding the draft's proposal at a position, after the target's own prefix, is right or wrong once and
for all: it does not depend on which rounds led there. Each model therefore yields, per request, the number of
consecutive right proposals from each generated position on (a *run*); a round that starts there with a limit of k_i
accepts ``min(run, k_i)``.
"""

from abc import ABC, abstractmethod

import numpy as np
from scipy.special import betaincinv

from simulator.errors import require
from simulator.fields import Spec
from simulator.kinds import ACCEPTANCE
from simulator.streams import TILE_REQUESTS, Purpose, Streams
from simulator.traces import read_engine_trace


class AcceptanceModel(ABC):
    """Runs of right proposals, drawn for a block of requests at a time.

    Args:
        streams: random numbers of the replication.
        positions: generated positions that may be asked for, at most.
        max_run: longest run of interest, k.
    """

    def __init__(self, streams: Streams, positions: int, max_run: int):
        self.streams, self.positions, self.max_run = streams, positions, max_run
        self._blocks: dict[int, np.ndarray] = {}
        self._none = [0] * positions

    def runs(self, index: int, positions: int | None = None) -> list[int]:
        """Run from each generated position of a request, 0 … max_run ``[positions]``; None for all of them."""
        if self.max_run == 0:
            return self._none
        block, place = divmod(index, TILE_REQUESTS)
        if block not in self._blocks:
            self._blocks[block] = self._draw(block)
        return self._blocks[block][place, :positions].tolist()

    def _draw(self, block: int) -> np.ndarray:
        bits = self.right(block, self.positions + self.max_run)
        return count_runs(lambda depth: bits[:, depth : depth + self.positions], self.max_run, self.positions)

    @abstractmethod
    def right(self, block: int, positions: int) -> np.ndarray:
        """Whether the proposal at each position is right ``[TILE_REQUESTS, positions]``."""


def count_runs(right_at_depth, max_run: int, positions: int) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Leading right proposals, given a function depth → ``[requests, positions]`` of flags."""
    alive = np.ones((TILE_REQUESTS, positions), dtype=bool)
    runs = np.zeros((TILE_REQUESTS, positions), dtype=np.int16)
    for depth in range(max_run):
        alive &= right_at_depth(depth)
        runs += alive
    return runs


class IidAcceptance(AcceptanceModel):
    """Every proposal is right with the same probability, independently."""

    def __init__(self, streams: Streams, positions: int, max_run: int, *, probability: float):
        super().__init__(streams, positions, max_run)
        self.probability = probability

    def right(self, block: int, positions: int) -> np.ndarray:
        """Compare with the shared uniform numbers."""
        return self.streams.tile_rows(Purpose.ACCEPT, block, positions) < self.probability


class ProfileAcceptance(AcceptanceModel):
    """The i-th proposal of a round is right with probability p_i; beyond the list the last one holds."""

    def __init__(self, streams: Streams, positions: int, max_run: int, *, probabilities: tuple[float, ...]):
        super().__init__(streams, positions, max_run)
        self.probabilities = probabilities

    def right(self, block: int, positions: int) -> np.ndarray:
        """At depth 0."""
        return self.streams.tile_rows(Purpose.ACCEPT, block, positions) < self.probabilities[0]

    def _draw(self, block: int) -> np.ndarray:
        uniform = self.streams.tile_rows(Purpose.ACCEPT, block, self.positions + self.max_run)
        last = len(self.probabilities) - 1

        def right_at_depth(depth: int) -> np.ndarray:
            return uniform[:, depth : depth + self.positions] < self.probabilities[min(depth, last)]

        return count_runs(right_at_depth, self.max_run, self.positions)


class BetaAcceptance(AcceptanceModel):
    """Each request has its own probability, drawn from Beta(a, b): run lengths are beta-geometric."""

    def __init__(self, streams: Streams, positions: int, max_run: int, *, a: float, b: float):
        super().__init__(streams, positions, max_run)
        self.a, self.b = a, b

    def right(self, block: int, positions: int) -> np.ndarray:
        """Compare with the request's own probability."""
        first = block * TILE_REQUESTS
        own = betaincinv(self.a, self.b, self.streams.per_request(Purpose.REQUEST, first, first + TILE_REQUESTS))
        return self.streams.tile_rows(Purpose.ACCEPT, block, positions) < own[:, None]


class MarkovAcceptance(AcceptanceModel):
    """Neighbouring positions agree more often than chance: P(right | last) = p + correlation · (last − p)."""

    def __init__(self, streams: Streams, positions: int, max_run: int, *, probability: float, correlation: float):
        super().__init__(streams, positions, max_run)
        self.probability, self.correlation = probability, correlation

    def right(self, block: int, positions: int) -> np.ndarray:
        """Walk the chain along the positions, started in its stationary law."""
        uniform = self.streams.tile_rows(Purpose.ACCEPT, block, positions)
        bits = np.empty(uniform.shape, dtype=bool)
        bits[:, 0] = uniform[:, 0] < self.probability
        for at in range(1, positions):
            chance = self.probability + self.correlation * (bits[:, at - 1] - self.probability)
            bits[:, at] = uniform[:, at] < chance
        return bits


class BootstrapAcceptance(AcceptanceModel):
    """Whole requests drawn with replacement from an engine trace; what it never compared is filled at random.

    A request that runs longer than the one it copies starts over at that one's beginning. With `resample` every
    replication draws from a bootstrap sample of the trace's documents, each with all of its requests: the trace itself
    could have come out otherwise, and prompts of one document resemble each other.
    """

    def __init__(self, streams: Streams, positions: int, max_run: int, *, path: str, resample: bool = False):
        super().__init__(streams, positions, max_run)
        trace = read_engine_trace(path)
        self.bits = [trace.match_bits(i) for i in range(trace.header["num_sequences"])]
        seen = [bits for bits in self.bits if np.any(bits >= 0)]
        require(bool(seen), f"{path}: holds no drafted token to learn from")
        overall = float(np.mean(np.concatenate(seen)[np.concatenate(seen) >= 0]))
        self.means = [float(np.mean(b[b >= 0])) if np.any(b >= 0) else overall for b in self.bits]
        groups = [np.flatnonzero(trace.documents == document) for document in range(trace.documents.max() + 1)]
        drawn = (
            streams.generator(Purpose.FIT).integers(len(groups), size=len(groups)) if resample else range(len(groups))
        )
        self.drawn = np.concatenate([groups[document] for document in drawn])

    def copied(self, block: int) -> np.ndarray:
        """Which request of the trace each request of the block copies ``[TILE_REQUESTS]``."""
        first = block * TILE_REQUESTS
        uniform = self.streams.per_request(Purpose.REQUEST, first, first + TILE_REQUESTS)
        return self.drawn[(uniform * len(self.drawn)).astype(int)]

    def right(self, block: int, positions: int) -> np.ndarray:
        """Copy, and fill what is unknown by the copied request's own rate."""
        uniform = self.streams.tile_rows(Purpose.ACCEPT, block, positions)
        copied = self.copied(block)
        known = np.stack([self.extend(self.bits[i], positions) for i in copied])
        filled = uniform < np.array(self.means)[copied][:, None]
        return np.where(known < 0, filled, known == 1)

    def extend(self, bits: np.ndarray, positions: int) -> np.ndarray:
        """Stretch to `positions` by starting over."""
        return np.resize(bits, positions)


class ReplayAcceptance(BootstrapAcceptance):
    """Request i meets exactly what sequence i of the trace met; beyond it, unknown positions are filled at random."""

    def copied(self, block: int) -> np.ndarray:
        """The request of the same index."""
        return (block * TILE_REQUESTS + np.arange(TILE_REQUESTS)) % len(self.bits)

    def extend(self, bits: np.ndarray, positions: int) -> np.ndarray:
        """Unknown beyond the end."""
        known = np.full(positions, -1, dtype=np.int8)
        known[: len(bits)] = bits[:positions]
        return known


MODELS: dict[str, type[AcceptanceModel]] = {
    "iid": IidAcceptance,
    "profile": ProfileAcceptance,
    "beta": BetaAcceptance,
    "markov": MarkovAcceptance,
    "bootstrap": BootstrapAcceptance,
    "replay": ReplayAcceptance,
}


def make_acceptance(spec: Spec, streams: Streams, positions: int, max_run: int) -> AcceptanceModel:
    """Build the model that a scenario names."""
    return MODELS[spec.kind](streams, positions, max_run, **spec.resolved(ACCEPTANCE))
