"""Members of the window by key, and which group runs next."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

GroupKey = tuple[int, int]
TICKETS = 2**48  # more than there will ever be
MOST_EMPTY = 4096  # groups without members that are kept


@dataclass(slots=True, eq=False)
class Group:
    """Members of one key.

    Attributes:
        tickets: theirs, ascending.
        rank: place in which the group runs, the lowest first; None where it was too small when it was ranked.
    """

    tickets: list[int] = field(default_factory=list)
    rank: int | None = None


class GroupIndex:
    """Groups of equal key, and the ranks of those that are large enough to run.

    A group whose members have changed is ranked anew when somebody asks which group runs next, so that a round ranks it
    once. A change costs O(log window), besides walking along one list: who runs is mostly found at its beginning. A
    group that has become empty waits for the next member of its key, unless there are many of them.

    Args:
        full: members of a full group, B.
        least: members that a group needs to run.
        choice: which of several full groups runs: the first to be full in order of tickets, or the largest.
    """

    def __init__(self, full: int, least: int, choice: Literal["first", "largest"]):
        self.full, self.least, self.choice = full, least, choice
        self._groups: dict[GroupKey, Group] = {}
        self._group_of: dict[int, Group] = {}
        self._ranks: list[int] = []  # of large enough groups, ascending
        self._changed: set[Group] = set()  # those that are, or were, large enough, and not ranked since

    def move(self, keys: Iterable[tuple[int, GroupKey | None]]) -> None:
        """Put members, by ticket, under these keys and away from those that they had; None takes them out."""
        group_of, find, least = self._group_of, self._groups.get, self.least
        for ticket, key in keys:
            group = group_of.pop(ticket, None)
            if group is not None:
                if len(group.tickets) >= least:
                    self._changed.add(group)
                group.tickets.remove(ticket)
            if key is not None:
                group_of[ticket] = group = find(key) or self._new(key)
                insort(group.tickets, ticket)
                if len(group.tickets) >= least:
                    self._changed.add(group)

    def best(self) -> list[int] | None:
        """Tickets of the group that runs next, ascending; None if no group is large enough."""
        while self._changed:
            self._rank_anew(self._changed.pop())
        return self._group_of[self._ranks[0] % TICKETS].tickets if self._ranks else None

    def _new(self, key: GroupKey) -> Group:
        """A group of a key that has none."""
        if len(self._groups) > len(self._group_of) + MOST_EMPTY:
            for empty in [key for key, group in self._groups.items() if not group.tickets]:
                del self._groups[empty]
        return self._groups.setdefault(key, Group())

    def _rank_anew(self, group: Group) -> None:
        before, group.rank = group.rank, self._rank(group.tickets)
        if before != group.rank:
            if before is not None:
                del self._ranks[bisect_left(self._ranks, before)]
            if group.rank is not None:
                insort(self._ranks, group.rank)

    def _rank(self, tickets: list[int]) -> int | None:
        """The lowest runs: of full groups the first to be full, or the largest; of others the largest, then oldest.

        It is one number, which is compared faster than a pair: the size, then one of the group's tickets, so that no
        two ranks are equal.
        """
        size = len(tickets)
        if size < self.least:
            return None
        if size >= self.full and self.choice == "first":
            return tickets[self.full - 1] - self.full * TICKETS
        return tickets[0] - size * TICKETS
