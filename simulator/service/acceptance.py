"""How many drafted tokens survive: a property of (request, position), so that every schedule meets the same one.

Under greedy decoding the draft's proposal at a position, after the target's own prefix, is right or wrong once and
for all: it does not depend on which rounds led there. Each model therefore yields, per request, the number of
consecutive right proposals from each generated position on (a *run*); a round that starts there with a limit of k_i
accepts ``min(run, k_i)``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import lru_cache

import numpy as np
from scipy.special import betaincinv

from refimpl.core.errors import require
from refimpl.core.independent import probability_of
from simulator.service.streams import TILE_POSITIONS, TILE_REQUESTS, Purpose, Streams
from simulator.service.workload import draw_classes
from simulator.settings.fields import Spec
from simulator.settings.kinds import ACCEPTANCE
from simulator.settings.scaling import read_scaling_law
from simulator.settings.scenario import Scenario
from simulator.settings.traces import read_engine_trace

KEPT_TILES = 1024  # 16 KiB each


class AcceptanceModel(ABC):
    """Runs of right proposals, drawn a tile at a time: `TILE_REQUESTS` requests by `TILE_POSITIONS` positions.

    Only tiles that are reached are drawn, and the last `KEPT_TILES` are kept; each can be drawn anew, since its random
    numbers are keyed by its place.

    Args:
        streams: random numbers of the replication.
        max_run: longest run of interest, k, at most `TILE_POSITIONS`.

    Attributes:
        accept: what its uniform numbers decide.
    """

    accept = Purpose.ACCEPT

    def __init__(self, streams: Streams, max_run: int):
        self.streams, self.max_run = streams, max_run
        self._right = lru_cache(KEPT_TILES)(self.right)
        self._runs = lru_cache(KEPT_TILES)(self.count)
        self._none = bytes(TILE_POSITIONS)

    def tile(self, index: int, number: int) -> bytes:
        """Run from each position of tile `number` of a request, 0 … max_run, a byte each ``[TILE_POSITIONS]``."""
        if self.max_run == 0:
            return self._none
        block, place = divmod(index, TILE_REQUESTS)
        return self._runs(block, number)[place].tobytes()

    def count(self, block: int, number: int) -> np.ndarray:
        """Runs of a tile ``[TILE_REQUESTS, TILE_POSITIONS]``."""
        bits = np.concatenate([self._right(block, number), self._right(block, number + 1)], axis=1)
        return count_runs(lambda depth: bits[:, depth : depth + TILE_POSITIONS], self.max_run)

    @abstractmethod
    def right(self, block: int, number: int) -> np.ndarray:
        """Whether the proposal at each position of a tile is right ``[TILE_REQUESTS, TILE_POSITIONS]``."""

    @abstractmethod
    def rates(self, block: int) -> np.ndarray:
        """Share of right proposals of each request of a block in the long run ``[TILE_REQUESTS]``."""

    def uniform(self, block: int, number: int) -> np.ndarray:
        """The tile's uniform numbers, which all models share ``[TILE_REQUESTS, TILE_POSITIONS]``."""
        return self.streams.tile(self.accept, block, number)


def count_runs(right_at_depth: Callable[[int], np.ndarray], max_run: int) -> np.ndarray:
    """Leading right proposals of a tile, given a function depth → flags ``[TILE_REQUESTS, TILE_POSITIONS]``."""
    alive = np.ones((TILE_REQUESTS, TILE_POSITIONS), dtype=bool)
    runs = np.zeros(alive.shape, dtype=np.int8)
    for depth in range(max_run):
        alive &= right_at_depth(depth)
        runs += alive
    return runs


class IidAcceptance(AcceptanceModel):
    """Every proposal is right with the same probability, independently."""

    def __init__(self, streams: Streams, max_run: int, *, probability: float):
        super().__init__(streams, max_run)
        self.probability = probability

    def right(self, block: int, number: int) -> np.ndarray:
        """Compare with the shared uniform numbers."""
        return self.uniform(block, number) < self.probability

    def rates(self, block: int) -> np.ndarray:
        """The same for all."""
        return np.full(TILE_REQUESTS, self.probability)


class MeanLengthAcceptance(IidAcceptance):
    """Independent drafts, all right with the one probability that makes rounds of `drafts` yield `tokens` on average.

    Args:
        streams, max_run: as for every model.
        tokens: mean acceptance length, the token after the drafts included.
        drafts: of the rounds that it was measured in; None for those of the scenario.

    Raises:
        InputError: more tokens than drafts + 1, unless the scenario drafts nothing.
    """

    def __init__(self, streams: Streams, max_run: int, *, tokens: float, drafts: int | None = None):
        k = drafts or max_run
        most = f"{k} draft{'s yield' if k > 1 else ' yields'} at most {k + 1} tokens"
        require(max_run == 0 or tokens <= k + 1, f"acceptance.tokens {tokens:g} is too long: {most}")
        super().__init__(streams, max_run, probability=probability_of(tokens, k) if max_run else 0.0)


class ScalingAcceptance(IidAcceptance):
    """Independent drafts, right as often as a law says of a draft model of that size and training.

    Args:
        streams, max_run: as for every model.
        training_tokens, parameters: of the draft model.
        path: file of the law, see `read_scaling_law`.

    Raises:
        InputError: no law, or a draft model outside of those that it was fitted to.
    """

    def __init__(self, streams: Streams, max_run: int, *, training_tokens: float, parameters: float, path: str):
        law = read_scaling_law(path)
        super().__init__(streams, max_run, probability=law.probability(training_tokens, parameters))


class ProfileAcceptance(AcceptanceModel):
    """The i-th proposal of a round is right with probability p_i; beyond the list the last one holds."""

    def __init__(self, streams: Streams, max_run: int, *, probabilities: tuple[float, ...]):
        super().__init__(streams, max_run)
        self.probabilities = probabilities

    def right(self, block: int, number: int) -> np.ndarray:
        """Of the first draft of a round."""
        return self.uniform(block, number) < self.probabilities[0]

    def rates(self, block: int) -> np.ndarray:
        """Of the first draft of a round."""
        return np.full(TILE_REQUESTS, self.probabilities[0])

    def count(self, block: int, number: int) -> np.ndarray:
        """Each depth compares with its own probability."""
        uniform = np.concatenate([self.uniform(block, at) for at in (number, number + 1)], axis=1)
        last = len(self.probabilities) - 1

        def right_at_depth(depth: int) -> np.ndarray:
            return uniform[:, depth : depth + TILE_POSITIONS] < self.probabilities[min(depth, last)]

        return count_runs(right_at_depth, self.max_run)


class BetaAcceptance(AcceptanceModel):
    """Each request has its own probability, drawn from Beta(a, b): run lengths are beta-geometric."""

    def __init__(self, streams: Streams, max_run: int, *, a: float, b: float):
        super().__init__(streams, max_run)
        self.a, self.b = a, b
        self._own = lru_cache(KEPT_TILES)(self.own)

    def own(self, block: int) -> np.ndarray:
        """Probability of each request of a block ``[TILE_REQUESTS]``."""
        first = block * TILE_REQUESTS
        return betaincinv(self.a, self.b, self.streams.per_request(Purpose.REQUEST, first, first + TILE_REQUESTS))

    def right(self, block: int, number: int) -> np.ndarray:
        """Compare with the request's own probability."""
        return self.uniform(block, number) < self._own(block)[:, None]

    def rates(self, block: int) -> np.ndarray:
        """Each request's own."""
        return self._own(block)


class MarkovAcceptance(AcceptanceModel):
    """Neighbouring positions agree more often than chance: P(right | last) = p + correlation · (last − p)."""

    def __init__(self, streams: Streams, max_run: int, *, probability: float, correlation: float):
        super().__init__(streams, max_run)
        self.probability, self.correlation = probability, correlation
        self._ends: dict[int, list[np.ndarray]] = {}  # block -> last column of each tile walked so far

    def right(self, block: int, number: int) -> np.ndarray:
        """Walk the chain along the positions, started in its stationary law."""
        ends = self._ends.setdefault(block, [])
        while len(ends) < number:
            ends.append(self._walk(block, len(ends), ends)[:, -1])
        bits = self._walk(block, number, ends)
        if len(ends) == number:
            ends.append(bits[:, -1])
        return bits

    def rates(self, block: int) -> np.ndarray:
        """The chain's stationary law, the same for all."""
        return np.full(TILE_REQUESTS, self.probability)

    def _walk(self, block: int, number: int, ends: list[np.ndarray]) -> np.ndarray:
        uniform = self.uniform(block, number)
        bits = np.empty(uniform.shape, dtype=bool)
        last: np.ndarray | float = ends[number - 1] if number else self.probability
        for at in range(TILE_POSITIONS):
            bits[:, at] = last = uniform[:, at] < self.probability + self.correlation * (last - self.probability)
        return bits


class BootstrapAcceptance(AcceptanceModel):
    """Whole requests drawn with replacement from an engine trace; what it never compared is filled at random.

    A request that runs longer than the one it copies starts over at that one's beginning. With `resample` every
    replication draws from a bootstrap sample of the trace's documents, each with all of its requests: the trace itself
    could have come out otherwise, and prompts of one document resemble each other.
    """

    def __init__(self, streams: Streams, max_run: int, *, path: str, resample: bool = False):
        super().__init__(streams, max_run)
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

    def right(self, block: int, number: int) -> np.ndarray:
        """Copy, and fill what is unknown by the copied request's own rate."""
        copied = self.copied(block)
        positions = number * TILE_POSITIONS + np.arange(TILE_POSITIONS)
        known = np.stack([self.known(self.bits[i], positions) for i in copied])
        filled = self.uniform(block, number) < np.array(self.means)[copied][:, None]
        return np.where(known < 0, filled, known == 1)

    def rates(self, block: int) -> np.ndarray:
        """Those of the copied requests."""
        return np.array(self.means)[self.copied(block)]

    def known(self, bits: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """1 right, 0 wrong, -1 unknown; starting over at the end ``[positions]``."""
        return bits[positions % len(bits)]


class ReplayAcceptance(BootstrapAcceptance):
    """Request i meets exactly what sequence i of the trace met; beyond it, unknown positions are filled at random."""

    def copied(self, block: int) -> np.ndarray:
        """The request of the same index."""
        return (block * TILE_REQUESTS + np.arange(TILE_REQUESTS)) % len(self.bits)

    def known(self, bits: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Unknown beyond the end."""
        return np.where(positions < len(bits), bits[np.minimum(positions, len(bits) - 1)], -1)


MODELS: dict[str, type[AcceptanceModel]] = {
    "iid": IidAcceptance,
    "mean_length": MeanLengthAcceptance,
    "scaling": ScalingAcceptance,
    "profile": ProfileAcceptance,
    "beta": BetaAcceptance,
    "markov": MarkovAcceptance,
    "bootstrap": BootstrapAcceptance,
    "replay": ReplayAcceptance,
}


class ClassAcceptance(AcceptanceModel):
    """Each request follows the model of its class.

    Args:
        streams, max_run: as for every model.
        models: of the classes, in order.
        class_of: block → place of the class of each of its requests ``[TILE_REQUESTS]``.
    """

    def __init__(
        self, streams: Streams, max_run: int, models: Seq[AcceptanceModel], class_of: Callable[[int], np.ndarray]
    ):
        super().__init__(streams, max_run)
        self.models, self.class_of = models, lru_cache(KEPT_TILES)(class_of)

    def right(self, block: int, number: int) -> np.ndarray:
        """Of each request's own model."""
        return self._own(block, [model.right(block, number) for model in self.models])

    def rates(self, block: int) -> np.ndarray:
        """Of each request's own model."""
        return self._own(block, [model.rates(block) for model in self.models])

    def count(self, block: int, number: int) -> np.ndarray:
        """Of each request's own model."""
        return self._own(block, [model.count(block, number) for model in self.models])

    def _own(self, block: int, of_models: Seq[np.ndarray]) -> np.ndarray:
        return np.stack(of_models)[self.class_of(block), np.arange(TILE_REQUESTS)]


def make_acceptance(spec: Spec, streams: Streams, max_run: int) -> AcceptanceModel:
    """Build the model of one law."""
    return MODELS[spec.kind](streams, max_run, **spec.resolved(ACCEPTANCE))


def acceptance_of(scenario: Scenario, streams: Streams) -> AcceptanceModel:
    """The model of a scenario: one for all requests, or one for each class where some class has its own."""
    classes, k = scenario.workload.classes, scenario.engine.num_speculative_tokens
    if not any(each.acceptance for each in classes):
        return make_acceptance(scenario.acceptance, streams, k)

    def class_of(block: int) -> np.ndarray:
        return draw_classes(classes, streams, block * TILE_REQUESTS, (block + 1) * TILE_REQUESTS)

    models = [make_acceptance(each.acceptance or scenario.acceptance, streams, k) for each in classes]
    return ClassAcceptance(streams, k, models, class_of)
