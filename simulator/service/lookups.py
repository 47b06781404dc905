"""What a lookup finds in a row, without looking: how many tokens, and how many of them are right."""

from simulator.service.acceptance import IidAcceptance
from simulator.service.records import Request
from simulator.service.streams import TILE_POSITIONS, Purpose, Streams
from simulator.service.traced import Places
from simulator.settings.fields import Spec
from simulator.settings.kinds import LOOKUP


class _LookedUp(IidAcceptance):
    """Right and wrong tokens of lookups; a draft model's are drawn with other numbers."""

    accept = Purpose.LOOKUP


class _Finds(IidAcceptance):
    """Positions at which a lookup finds something."""

    accept = Purpose.FOUND


class DrawnLookups:
    """Finds tokens at a position, or none, with one probability; each token is right with another.

    Args:
        streams: random numbers of the replication.
        max_run: most drafts of a row.
        found, probability: these two.
        most_tokens: that are found at a time; None for as many as a row can use.
        host_s_per_row: seconds of a lookup.
    """

    def __init__(
        self,
        streams: Streams,
        max_run: int,
        *,
        found: float,
        probability: float,
        most_tokens: int | None,
        host_s_per_row: float,
    ):
        self.most_tokens = max_run if most_tokens is None else most_tokens
        self.host_s_per_row = host_s_per_row
        self._found = _Finds(streams, 1, probability=found)
        self._right = _LookedUp(streams, max_run, probability=probability)

    def found(self, request: Request) -> int:
        """All or nothing."""
        return self.most_tokens * _at(self._found, request)

    def run(self, request: Request) -> int:
        """From the next token on."""
        return _at(self._right, request)


class TracedLookups:
    """What was found in a run of the engine; what of it was right is what the run's acceptance says."""

    def __init__(self, path: str, *, host_s_per_row: float):
        self.host_s_per_row = host_s_per_row
        self.counts = Places(path, "looked_up")

    def found(self, request: Request) -> int:
        """In the round that the sequence began at that length."""
        return int(self.counts.at(request))

    def run(self, request: Request) -> int:
        """Those of the model of acceptance."""
        return request.next_run()


def _at(model: IidAcceptance, request: Request) -> int:
    number, place = divmod(request.generated, TILE_POSITIONS)
    return model.tile(request.sequence, number)[place]


Lookups = DrawnLookups | TracedLookups


def make_lookups(spec: Spec, streams: Streams, max_run: int) -> Lookups:
    """The lookups that a scenario names."""
    values = spec.resolved(LOOKUP)
    return TracedLookups(**values) if spec.kind == "trace" else DrawnLookups(streams, max_run, **values)
