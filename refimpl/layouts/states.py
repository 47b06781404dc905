"""Recurrent states of rows, beside their K/V: what some layers keep in place of an entry for each token.

The passes of a round hand the model the states that its rows begin with, and keep those behind every token. Once it is
known how many tokens a row keeps, the state behind the last of them is the row's. So nothing is rolled back or computed
again, and neither rejected drafts nor pads reach a state.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from refimpl.layouts.store import KVShape, RowState, StatePart


class StateTag(NamedTuple):
    """Whose state a slot holds, and behind how many of its tokens."""

    sequence: int
    tokens: int


class StateStore:
    """One state for each row of a pool.

    Rounds may be begun for other rows while one is under way, as where a draft runs ahead for a second cohort.

    Attributes:
        parts: ``[rows, *size]`` of each part.
        tags: ``[rows, 2]``, see `StateTag`; moved by the same indices as the parts.
    """

    def __init__(self, shape: KVShape, rows: int):
        self.parts = {
            part: torch.zeros(rows, *part.size, dtype=part.dtype, device=shape.device) for part in shape.states
        }
        self.tags = torch.full((rows, 2), -1, device=shape.device)
        self._rounds: list[_Round] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the states."""
        return sum(values.nbytes for values in self.parts.values())

    def clear(self, slot: int, sequence: int) -> None:
        """Begin a sequence, which has no tokens yet."""
        for values in self.parts.values():
            values[slot] = 0
        self.tags[slot] = torch.tensor([sequence, 0], device=self.tags.device)

    def tag(self, slot: int) -> StateTag:
        """What a slot holds."""
        return StateTag(*self.tags[slot].tolist())

    def begin(self, rows: Seq[RowState]) -> None:
        """Begin a round of rows; what was begun of them and not committed is forgotten."""
        again = {row.sequence for row in rows}
        self._rounds = [each for each in self._rounds if again.isdisjoint(each.sequences)]
        self._rounds.append(_Round(tuple(rows)))

    def of_pass(self) -> "PassStates":
        """States of the rows that were begun last, for one more pass of their round."""
        begun = self._rounds[-1]
        begun.states = begun.states or PassStates(self, [row.slot for row in begun.rows])
        return begun.states

    def commit(self, rows: Seq[RowState]) -> None:
        """End the round of these rows: keep the states behind what counts as cached now."""
        ended = next(each for each in self._rounds if each.sequences == [row.sequence for row in rows])
        assert ended.states is not None
        self._rounds.remove(ended)
        ended.states.commit([now.num_cached - then.num_cached for now, then in zip(rows, ended.rows, strict=True)])


class PassStates:
    """States of the rows that a round feeds: before its passes, and behind each step of them.

    Args:
        store: of all rows.
        slots: of the rows.
        step: tokens to keep a state behind: 1, or all of the pass.
    """

    def __init__(self, store: StateStore, slots: Seq[int], step: int = 1):
        self.step = step
        self._store, self._slots = store, torch.tensor(slots, device=store.tags.device)
        self._behind = {part: [values[self._slots]] for part, values in store.parts.items()}

    def read(self, part: StatePart) -> Tensor:
        """Begin a step of a layer: a copy of the latest state, which the layer may change in place."""
        behind = self._behind[part]
        latest = behind[-1].clone()
        if self.step > 1:
            del behind[1:]  # of a prompt that the layer takes in token by token
        behind.append(latest)
        return latest

    def latest(self, part: StatePart) -> Tensor:
        """The state as it is in the step that was begun last."""
        return self._behind[part][-1]

    def write(self, part: StatePart, state: Tensor) -> None:
        """The state behind the step that was begun last."""
        self._behind[part][-1] = state.to(part.dtype)

    def commit(self, counts: Seq[int]) -> None:
        """Keep, of each row, the state behind the first `counts[i]` tokens that it was fed."""
        if not self._behind:
            return
        steps = torch.tensor(counts, device=self._slots.device) // self.step
        for part, behind in self._behind.items():
            self._store.parts[part][self._slots] = _chosen(behind, steps)
        tags, more = self._store.tags[self._slots], torch.tensor([0, self.step], device=self._slots.device)
        num_steps = len(next(iter(self._behind.values())))
        self._store.tags[self._slots] = _chosen([tags + more * n for n in range(num_steps)], steps)


@dataclass
class _Round:
    """Rows as they began a round, and the states of its passes once there is one."""

    rows: tuple[RowState, ...]
    states: PassStates | None = None

    @property
    def sequences(self) -> list[int]:
        return [row.sequence for row in self.rows]


def _chosen(behind: list[Tensor], steps: Tensor) -> Tensor:
    """Of each row, the state behind so many steps."""
    return torch.stack(behind)[steps, torch.arange(len(steps), device=steps.device)]
