"""Members of the window by key, and which group runs next."""

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush, heapreplace
from typing import Literal

GroupKey = tuple[int, int]
Rank = tuple[int, int]


class GroupIndex:
    """Groups of equal key. A change costs O(log window), besides shifting pointers within one group.

    Large enough groups are in a heap by rank. A rank that is too low is corrected when it reaches the top (groups
    that lose a member only rise); a rank that falls is entered again, and its old entry is skipped later.

    Args:
        full: members of a full group, B.
        least: members that a group needs to run.
        choice: which of several full groups runs: the first to be full in order of tickets, or the largest.
    """

    def __init__(self, full: int, least: int, choice: Literal["first", "largest"]):
        self.full, self.least, self.choice = full, least, choice
        self._key_of: dict[int, GroupKey] = {}
        self._tickets: dict[GroupKey, list[int]] = {}  # ascending
        self._ranks: dict[GroupKey, Rank] = {}  # of large enough groups: the true rank or a lower one
        self._heap: list[tuple[Rank, GroupKey]] = []  # the same, and superseded entries

    def insert(self, ticket: int, key: GroupKey) -> None:
        """Add a member."""
        self._key_of[ticket] = key
        self._join(ticket, key)

    def move(self, ticket: int, key: GroupKey) -> None:
        """Give a member another key."""
        self._part(ticket, self._key_of[ticket])
        self._key_of[ticket] = key
        self._join(ticket, key)

    def remove(self, ticket: int) -> None:
        """Remove a member."""
        self._part(ticket, self._key_of.pop(ticket))

    def _join(self, ticket: int, key: GroupKey) -> None:
        tickets = self._tickets.get(key)
        if tickets is None:
            self._tickets[key] = tickets = [ticket]
        else:
            insort(tickets, ticket)
        if len(tickets) >= self.least:
            self._note(key, self._rank(tickets))

    def _part(self, ticket: int, key: GroupKey) -> None:
        tickets = self._tickets[key]
        if len(tickets) == 1:
            del self._tickets[key]
        else:
            del tickets[bisect_left(tickets, ticket)]

    def best(self) -> list[int] | None:
        """Tickets of the group that runs next, ascending; None if no group is large enough."""
        heap, ranks = self._heap, self._ranks
        while heap:
            rank, key = heap[0]
            tickets = self._tickets.get(key, [])
            if ranks.get(key) != rank:
                heappop(heap)
            elif len(tickets) < self.least:
                heappop(heap)
                del ranks[key]
            elif (true_rank := self._rank(tickets)) != rank:
                ranks[key] = true_rank
                heapreplace(heap, (true_rank, key))
            else:
                return tickets
        return None

    def _rank(self, tickets: list[int]) -> Rank:
        """The lowest runs: of full groups the first to be full, or the largest; of others the largest, then oldest."""
        size = len(tickets)
        if size >= self.full and self.choice == "first":
            return -self.full, tickets[self.full - 1]
        return -size, tickets[0]

    def _note(self, key: GroupKey, rank: Rank) -> None:
        if key in self._ranks and self._ranks[key] <= rank:
            return
        self._ranks[key] = rank
        heappush(self._heap, (rank, key))
        if len(self._heap) > 64 + 4 * len(self._key_of):  # most are superseded
            self._heap = [(rank, key) for key, rank in self._ranks.items()]
            heapify(self._heap)
