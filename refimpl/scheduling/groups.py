"""Members of the window by key, and which full group runs next."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

GroupKey = tuple[int, int]
MOST_EMPTY = 4096  # groups without members that are kept


@dataclass(slots=True, eq=False)
class Group:
    """Members of one key.

    Attributes:
        tickets: theirs, ascending.
        filled_by: the ticket that made the group full when it was last looked at; None where it was not full.
    """

    tickets: list[int] = field(default_factory=list)
    filled_by: int | None = None


class GroupIndex:
    """Groups of equal key, and the full ones in the order in which tickets filled them.

    A group whose members have changed is looked at anew when somebody asks which group runs next, so once a round. A
    change costs O(log window), besides walking along one list: who runs is mostly found at its beginning. A group that
    has become empty waits for the next member of its key, unless there are many of them.

    Args:
        full: members of a full group, B.
    """

    def __init__(self, full: int):
        self.full = full
        self._groups: dict[GroupKey, Group] = {}
        self._group_of: dict[int, Group] = {}
        self._filled: list[int] = []  # `filled_by` of the full groups, ascending
        self._changed: set[Group] = set()  # those that are, or were, full, and not looked at since

    def move(self, keys: Iterable[tuple[int, GroupKey | None]]) -> None:
        """Put members, by ticket, under these keys and away from those that they had; None takes them out."""
        group_of, find, full = self._group_of, self._groups.get, self.full
        for ticket, key in keys:
            group = group_of.pop(ticket, None)
            if group is not None:
                if len(group.tickets) >= full:
                    self._changed.add(group)
                group.tickets.remove(ticket)
            if key is not None:
                group_of[ticket] = group = find(key) or self._new(key)
                insort(group.tickets, ticket)
                if len(group.tickets) >= full:
                    self._changed.add(group)

    def first_full(self) -> list[int] | None:
        """Tickets, ascending, of the group that was full first in their order; None if no group is full."""
        while self._changed:
            self._look_at(self._changed.pop())
        return self._group_of[self._filled[0]].tickets if self._filled else None

    def _new(self, key: GroupKey) -> Group:
        """A group of a key that has none."""
        if len(self._groups) > len(self._group_of) + MOST_EMPTY:
            for empty in [key for key, group in self._groups.items() if not group.tickets]:
                del self._groups[empty]
        return self._groups.setdefault(key, Group())

    def _look_at(self, group: Group) -> None:
        before, tickets = group.filled_by, group.tickets
        group.filled_by = tickets[self.full - 1] if len(tickets) >= self.full else None
        if before != group.filled_by:
            if before is not None:
                del self._filled[bisect_left(self._filled, before)]
            if group.filled_by is not None:
                insort(self._filled, group.filled_by)
