"""Every unfinished sequence, and which of them are eligible now."""

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar, runtime_checkable

from refimpl.core.invariants import InvariantViolation


@runtime_checkable
class Schedulable(Protocol):
    """What a scheduler may know of a sequence. It never sees how long the output will be."""

    ticket: int
    priority: int  # who waits with a smaller one enters first; who runs with the largest is preempted first
    blocks: list[int]  # of its K/V, in order of position; empty where the layout has no blocks
    num_prefix_hits: int  # leading tokens whose blocks others had filled when it entered the window
    prompt_len: int

    @property
    def seq_len(self) -> int:
        """Real tokens so far."""

    @property
    def cache_state(self) -> int:
        """What must be equal among the members of a group, in addition to the length."""

    @property
    def most_tokens(self) -> int:
        """Tokens of its prompt and its whole budget."""

    @property
    def cached_by_all(self) -> int:
        """Leading tokens that every model has cached."""

    @property
    def cached_at_entry(self) -> int:
        """Leading tokens that every model caches where its whole text is cached as it enters."""

    @property
    def draft_limit(self) -> int:
        """Drafts that it can use in the coming round; never more than before."""

    @property
    def to_prefill(self) -> int:
        """Tokens that must be cached before it can decode."""

    @property
    def finished(self) -> bool:
        """Whether the sequence has finished and no longer runs."""

    def block_tokens(self, start: int, stop: int) -> Hashable:
        """What its tokens from `start` to `stop` are: equal to that of another where those tokens are equal."""


T = TypeVar("T", bound=Schedulable)


def urgency(sequence: Schedulable) -> tuple[int, int]:
    """Ascending from the most urgent: by priority, then by submission."""
    return sequence.priority, sequence.ticket


class SequencePool(Generic[T]):
    """Sequences in exactly one of three places: waiting, window, finished (INV-9).

    `waiting` is in order of `urgency`. `window` maps ticket to sequence in order of entry, which is that of submission
    where priorities are equal; `submit` assigns the tickets.
    """

    def __init__(self) -> None:
        self.waiting: deque[T] = deque()
        self.window: OrderedDict[int, T] = OrderedDict()  # the oldest is found at once, however many have left
        self.num_submitted = 0
        self.num_finished = 0

    def submit(self, sequence: T) -> None:
        """Add a sequence to the queue, behind all that are as urgent."""
        sequence.ticket = self.num_submitted
        self.num_submitted += 1
        self._wait(sequence)

    def admit(self, limit: int, enters: Callable[[T, Iterable[T]], bool]) -> list[T]:
        """Move up to `limit` sequences from waiting into the window, in order; return them.

        `enters` is asked for each, beside the residents of the window; the first that may not enter ends it.
        """
        entered: list[T] = []
        while len(entered) < limit and self.waiting and enters(self.waiting[0], self.window.values()):
            sequence = self.waiting.popleft()
            self.window[sequence.ticket] = sequence
            entered.append(sequence)
        return entered

    def send_back(self, sequence: T) -> None:
        """Move a sequence of the window back to the queue, before all that are as urgent: they came later."""
        del self.window[sequence.ticket]
        self._wait(sequence)

    def retire(self, sequence: T) -> None:
        """Move a sequence from wherever it is to finished."""
        if self.window.pop(sequence.ticket, None) is None:
            self.waiting.remove(sequence)
        self.num_finished += 1

    def _wait(self, sequence: T) -> None:
        if self.waiting and urgency(sequence) < urgency(self.waiting[-1]):
            insort(self.waiting, sequence, key=urgency)
        else:
            self.waiting.append(sequence)

    def check_conservation(self) -> None:
        """Raise InvariantViolation unless every submitted sequence is in exactly one place (INV-9)."""
        tickets = [sequence.ticket for sequence in self.waiting] + list(self.window)
        places = len(tickets) + self.num_finished
        if places != self.num_submitted or len(set(tickets)) != len(tickets):
            raise InvariantViolation(
                "INV-9",
                row=None,
                expected=f"{self.num_submitted} distinct sequences",
                found=f"{places} places, {len(set(tickets))} distinct unfinished of {len(tickets)}",
            )
