"""Laws of placement: integers alone, for any lengths and any acceptance."""

import ast
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl import placement
from refimpl.core.config import LAYOUTS
from refimpl.placement import PoolSize, make_placement, pool_columns

SIMULATOR = Path(__file__).parents[2] / "simulator"
MOST_TOKENS = 60


@dataclass(frozen=True)
class Placed:
    """A row, as a placement knows it."""

    sequence: int
    seq_len: int
    finished: bool = False

    @property
    def slot(self) -> int:
        return self.sequence

    @property
    def num_cached(self) -> int:
        return self.seq_len - 1


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[tuple[Placed, ...]]]:
    """Drafts a round, and the members of each round: rows that keep 1 … k+1 tokens, end, and give way to others."""
    k, count = draw(st.integers(0, 5)), draw(st.integers(1, 4))
    rows = [Placed(i, draw(st.integers(1, 30))) for i in range(count)]
    rounds, fresh = [], count
    for _ in range(draw(st.integers(1, 8))):
        rounds.append(tuple(rows))
        for i, row in enumerate(rows):
            length = row.seq_len + draw(st.integers(1, k + 1))
            fate = draw(st.sampled_from(["goes on", "goes on", "goes on", "ends", "gives way"]))
            if not row.finished and fate == "goes on" and length <= MOST_TOKENS:
                rows[i] = replace(row, seq_len=length)
            elif fate == "gives way":
                rows[i], fresh = Placed(fresh, draw(st.integers(1, 30))), fresh + 1
            else:
                rows[i] = replace(row, finished=True)
        if all(row.finished for row in rows):
            break
    return k, rounds


@pytest.mark.parametrize("threshold", [0.05, 0.25, 1.0])
@pytest.mark.parametrize("layout", LAYOUTS)
@given(run=runs())
def test_a_round_fits_and_its_rectangle_is_paid_for(layout: str, threshold: float, run) -> None:
    k, rounds = run
    found = make_placement(layout, threshold)
    most = found.batch_columns(pool_columns(MOST_TOKENS, k + 1))
    for rows in rounds:
        before = found.columns
        move = found.begin(rows, k + 1)
        assert found.columns == (move.columns if move else before) <= most
        assert found.width + k + 1 <= found.columns or layout in ("inplace", "paged")
        assert found.width >= max(row.num_cached for row in rows if not row.finished)
        assert move is None or len(move.shifts) == len(rows)
        found.append(k + 1)


def slack(columns: int) -> ExitStack:
    """Rectangles have so many columns to spare."""
    patches = ExitStack()
    for module in ("left_padded", "masked"):
        patches.enter_context(patch(f"refimpl.placement.{module}.SLACK_COLUMNS", columns))
    return patches


@pytest.mark.parametrize("layout", ["realigned", "rollback"])
@given(run=runs(), spare=st.integers(0, 8))
def test_left_padded_rows_end_together_and_move_only_when_ragged(layout: str, run, spare: int) -> None:
    with slack(spare):
        check_left_padded(layout, run, spare)


def check_left_padded(layout: str, run, spare: int) -> None:
    k, rounds = run
    found, before = make_placement(layout, 0.25), ()
    for rows in rounds:
        width, pads, columns = found.width, found.num_pad, found.columns
        move = found.begin(rows, k + 1)
        assert all(
            n + row.seq_len == found.width for n, row in zip(found.num_pad, rows, strict=True) if not row.finished
        )
        if [row.sequence for row in before] == [row.sequence for row in rows]:
            even = all(
                row.seq_len - old.seq_len == found.width - width
                for row, old in zip(rows, before, strict=True)
                if not row.finished
            )
            kind = "realign" if not even else "grow" if found.width + k + 1 > columns else None
            assert (move.kind if move else None) == kind
            if move:
                assert list(move.shifts) == [new - old for new, old in zip(found.num_pad, pads, strict=True)]
                assert move.columns == found.width + k + 1 + spare
            assert all(new == old for new, old, row in zip(found.num_pad, pads, rows, strict=True) if row.finished)
        else:
            assert move.kind == "load"
            assert list(move.shifts) == list(found.num_pad)
        before = rows


@given(run=runs(), threshold=st.sampled_from([0.1, 0.125, 0.2, 0.25, 0.5]), spare=st.integers(0, 8))
def test_masked_columns_are_compacted_above_the_threshold_or_when_they_run_out(run, threshold, spare) -> None:
    with slack(spare):
        check_masked(run, threshold, spare)


def check_masked(run, threshold: float, spare: int) -> None:
    k, rounds = run
    found, before = make_placement("masked", threshold), ()
    for rows in rounds:
        width, columns, longest = found.width, found.columns, max(row.num_cached for row in rows)
        move = found.begin(rows, k + 1)
        if [row.sequence for row in before] == [row.sequence for row in rows]:
            due = width - longest > threshold * width or width + k + 1 > columns
            assert (move is not None) == due
            assert found.width == (longest if due else width)
        else:
            assert (move.kind, found.width) == ("load", longest)
        if move:
            assert list(move.shifts) == [longest - row.num_cached for row in rows]
            assert move.columns == longest + longest // 4 + k + 1 + spare
        found.append(k + 1)
        before = rows


def test_nothing_is_beside_the_pool_in_place() -> None:
    assert placement.PLACEMENTS["inplace"].num_slots(PoolSize(5, 96, 4)) == 5 * 96


def test_a_paged_pool_has_the_blocks_of_its_longest_rows_and_one_for_scratch() -> None:
    size = PoolSize.of_run([5, 64, 7, 33], window_size=3, batch_size=2, span=6, block_size=8)
    assert (size.block_size, size.num_blocks) == (8, 8 + 5 + 1)
    assert placement.PLACEMENTS["paged"].num_slots(size) == (14 + 1) * 8


@pytest.mark.parametrize("lengths", [[5], [5, 9, 7], [40] * 9])
def test_a_pool_has_a_row_for_each_resident_sequence(lengths: list[int]) -> None:
    size = PoolSize.of_run(lengths, window_size=4, batch_size=2, span=6)
    assert (size.rows, size.batch_rows) == (min(4, len(lengths)), min(2, len(lengths)))
    assert size.columns % 32 == 0
    assert max(lengths) + 6 < size.columns <= max(lengths) + 6 + 32
    assert PoolSize.of_run(lengths, window_size=4, batch_size=2, span=6, least_rows=8).rows == 8


def test_the_simulator_defines_no_layout_arithmetic() -> None:
    """What `refimpl.placement` decides has one definition; the simulator prices it."""
    shared = {"SLACK_COLUMNS", "COLUMN_STEP", "pool_columns", "padded_columns", "batch_columns", "num_slots", "num_pad"}
    for path in SIMULATOR.rglob("*.py"):
        tree = ast.parse(path.read_text())
        names = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        names |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        assert not names & shared, path.name
