"""Members of the window by key, and which group runs next."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Literal

GroupKey = tuple[int, int]
Rank = tuple[int, int]


class GroupIndex:
    """Groups of equal key, and the ranks of those that are large enough to run.

    A group whose members have changed is ranked anew when somebody asks which group runs next, so that a round ranks it
    once. A change costs O(log window), besides shifting pointers within one list.

    Args:
        full: members of a full group, B.
        least: members that a group needs to run.
        choice: which of several full groups runs: the first to be full in order of tickets, or the largest.
    """

    def __init__(self, full: int, least: int, choice: Literal["first", "largest"]):
        self.full, self.least, self.choice = full, least, choice
        self._key_of: dict[int, GroupKey] = {}
        self._tickets: dict[GroupKey, list[int]] = {}  # ascending
        self._rank_of: dict[GroupKey, Rank] = {}  # of large enough groups
        self._ranks: list[Rank] = []  # the same, ascending
        self._changed: set[GroupKey] = set()  # keys that are, or were, large enough, and not ranked since

    def move(self, keys: Iterable[tuple[int, GroupKey | None]]) -> None:
        """Put members, by ticket, under these keys and away from those that they had; None takes them out."""
        key_of, groups, least = self._key_of, self._tickets, self.least
        for ticket, key in keys:
            before = key_of.pop(ticket, None)
            if before is not None:
                group = groups[before]
                if len(group) >= least:
                    self._changed.add(before)
                del group[bisect_left(group, ticket)]
                if not group:
                    del groups[before]
            if key is not None:
                key_of[ticket] = key
                group = groups.setdefault(key, [])
                insort(group, ticket)
                if len(group) >= least:
                    self._changed.add(key)

    def best(self) -> list[int] | None:
        """Tickets of the group that runs next, ascending; None if no group is large enough."""
        while self._changed:
            self._rank_anew(self._changed.pop())
        return self._tickets[self._key_of[self._ranks[0][1]]] if self._ranks else None

    def _rank_anew(self, key: GroupKey) -> None:
        before, after = self._rank_of.pop(key, None), self._rank(self._tickets.get(key, []))
        if after:
            self._rank_of[key] = after
        if before != after:
            if before:
                del self._ranks[bisect_left(self._ranks, before)]
            if after:
                insort(self._ranks, after)

    def _rank(self, tickets: list[int]) -> Rank | None:
        """The lowest runs: of full groups the first to be full, or the largest; of others the largest, then oldest.

        It ends with one of the group's tickets, so that no two ranks are equal.
        """
        size = len(tickets)
        if size < self.least:
            return None
        if size >= self.full and self.choice == "first":
            return -self.full, tickets[self.full - 1]
        return -size, tickets[0]
