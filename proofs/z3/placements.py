"""The placements that engine and simulator run, for three rows of any lengths: first round, and a second one.

The code of `refimpl/placement` is run on symbolic numbers, see `proofs.z3.paths`. Nothing of its arithmetic is said
again here: a claim is about the rows, and about the move that came out.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import z3

from proofs.z3.obligation import Obligation
from proofs.z3.paths import Path, all_paths

ROWS = 3
LENGTHS = [z3.Int(f"length_{i}") for i in range(ROWS)]
KEPT = [z3.Int(f"kept_{i}") for i in range(ROWS)]
SPAN = z3.Int("span")
GIVEN = [*(n >= 1 for n in LENGTHS), *(kept >= 1 for kept in KEPT), *(kept <= SPAN for kept in KEPT), SPAN >= 1]


@dataclass(frozen=True)
class SymbolicRow:
    """A row whose lengths are numbers of any size."""

    slot: int
    seq_len: Any
    finished: bool = False

    @property
    def sequence(self) -> int:
        return self.slot

    @property
    def num_cached(self) -> Any:
        return self.seq_len - 1


@dataclass(frozen=True)
class Rounds:
    """What a placement showed after the first and after the second `begin`."""

    width: Any
    pads: list[Any]
    columns: Any
    load: Any
    new_width: Any
    new_pads: list[Any]
    new_columns: Any
    move: Any


def two_rounds(make: Callable[[], Any], finished: int | None, order: tuple[int, ...] = (0, 1, 2)) -> list[Path[Rounds]]:
    """Load the rows, let each keep its tokens, and begin again in some order; one row may have finished."""

    def run(number: Callable[[z3.ArithRef], Any]) -> Rounds:
        placement, span = make(), number(SPAN)
        rows = [SymbolicRow(i, number(LENGTHS[i])) for i in range(ROWS)]
        load = placement.begin(rows, span)
        first = placement.width, list(getattr(placement, "num_pad", [])), placement.columns
        placement.append(span)
        later = [
            replace(row, finished=row.slot == finished)
            if row.slot == finished
            else replace(row, seq_len=row.seq_len + number(KEPT[row.slot]))
            for row in rows
        ]
        move = placement.begin([later[i] for i in order], span)
        second = placement.width, list(getattr(placement, "num_pad", [])), placement.columns
        return Rounds(*first, load, *second, move)

    return all_paths(GIVEN, run)


def obligations(placements: ModuleType) -> list[Obligation]:
    """All claims about placements."""
    return [
        *(claim for finished in (None, 0) for claim in realigned(placements.RealignedPlacement, finished)),
        *masked(placements.MaskedPlacement),
        *inplace(placements.InplacePlacement),
        loaded_anew(placements.RealignedPlacement),
    ]


def faults(placements: ModuleType) -> list[Obligation]:
    """Placements that forget something."""

    class Stays(placements.RealignedPlacement):  # type: ignore[name-defined]
        """The rectangle is kept as it is while its members stay."""

        def realign(self, rows: Any, span: Any) -> None:
            before = self.num_pad
            super().realign(rows, span)
            self.num_pad = before

    class Overflows(placements.MaskedPlacement):  # type: ignore[name-defined]
        """The columns that are left are not counted."""

        def realign(self, rows: Any, span: Any) -> None:
            return None

    together, *_ = realigned(Stays, None)
    *_, fits, _ = masked(Overflows)
    return [together, fits]


def realigned(make: Callable[[], Any], finished: int | None) -> list[Obligation]:
    """Left-padded rows, all of them live or one finished."""
    paths = two_rounds(make, finished)
    live = [i for i in range(ROWS) if i != finished]
    after = {i: LENGTHS[i] + KEPT[i] for i in live}

    def claim(name: str, holds: Callable[[Rounds], Any]) -> Obligation:
        ending = "" if finished is None else ", beside a finished row"
        return _claim(f"realigned: {name}{ending}", paths, holds)

    return [
        claim(
            "rows end together at the width, first and second round (INV-1)",
            lambda r: z3.And(
                *(r.pads[i].term + LENGTHS[i] == r.width.term for i in range(ROWS)),
                *(r.new_pads[i].term + after[i] == r.new_width.term for i in live),
                *(r.pads[i].term >= 0 for i in range(ROWS)),
                *(r.new_pads[i].term >= 0 for i in live),
            ),
        ),
        claim(
            "nothing moves only where every entry is right already (INV-4)",
            lambda r: (
                z3.And(*(r.new_pads[i].term == r.pads[i].term for i in live))
                if r.move is None
                else z3.And(*(r.move.shifts[i].term == r.new_pads[i].term - r.pads[i].term for i in live))
            ),
        ),
        claim(
            "the round fits into the rectangle",
            lambda r: z3.And(
                r.width.term + SPAN <= r.columns.term,
                r.new_width.term + SPAN <= r.new_columns.term,
                (r.move.columns.term if r.move else r.columns.term) == r.new_columns.term,
            ),
        ),
        _covers("realigned" if finished is None else "realigned beside a finished row", paths),
    ]


def masked(make: Callable[[Any], Any]) -> list[Obligation]:
    """Append-only rows."""
    paths = two_rounds(lambda: make(0.25), None)
    return [
        _claim(
            "masked: a gather puts every cached token of every row behind its pads, and all end together",
            paths,
            lambda r: z3.And(
                *(r.load.shifts[i].term + LENGTHS[i] - 1 == r.width.term for i in range(ROWS)),
                *(
                    r.move.shifts[i].term + LENGTHS[i] + KEPT[i] - 1 == r.new_width.term
                    for i in range(ROWS)
                    if r.move is not None
                ),
            ),
        ),
        _claim(
            "masked: without a gather the next block begins behind the last",
            paths,
            lambda r: r.new_width.term == r.width.term + SPAN if r.move is None else z3.BoolVal(True),
        ),
        _claim(
            "masked: the round fits into the rectangle",
            paths,
            lambda r: z3.And(r.width.term + SPAN <= r.columns.term, r.new_width.term + SPAN <= r.new_columns.term),
        ),
        _covers("masked", paths),
    ]


def inplace(make: Callable[[], Any]) -> list[Obligation]:
    """Nothing moves."""
    paths = two_rounds(make, 0)
    return [
        _claim(
            "inplace: nothing moves, and a round is as wide as its longest live row",
            paths,
            lambda r: z3.And(
                z3.BoolVal(r.load is None and r.move is None),
                *(r.new_width.term >= LENGTHS[i] + KEPT[i] for i in range(1, ROWS)),
                z3.Or(*(r.new_width.term == LENGTHS[i] + KEPT[i] for i in range(1, ROWS))),
            ),
        ),
        _covers("inplace", paths),
    ]


def loaded_anew(make: Callable[[], Any]) -> Obligation:
    """A rectangle has its rows in one order."""
    paths = two_rounds(make, None, (1, 0, 2))
    name = "realigned: members in another order are loaded from the pool"
    return _claim(name, paths, lambda r: z3.BoolVal(r.move is not None and r.move.kind == "load"))


def _covers(name: str, paths: list[Path[Rounds]]) -> Obligation:
    """No length is left out."""
    ways = z3.Or(*(path.taken for path in paths))
    return Obligation(f"placement, {name}: the {len(paths)} ways through the code are all", GIVEN, ways)


def _claim(name: str, paths: list[Path[Rounds]], holds: Callable[[Rounds], Any]) -> Obligation:
    return Obligation(f"placement, {name}", GIVEN, z3.And(*(path.implies(holds(path.result)) for path in paths)))
