"""What is moved, and how often: layouts that move entries do so once, and only when they must."""

from unittest.mock import patch

import pytest

from refimpl.layouts.masked import MaskedLayout
from refimpl.layouts.store import KVStore, RowState
from refimpl.layouts.working import WorkingLayout
from refimpl.placement import Move, make_placement
from refimpl.selfcheck.cases import Case, Row, oracle_outputs, run_case

NEVER = (False,) * 12
MOVING = ["realigned", "rollback", "masked"]


def moves(*rows: Row, layout: str, scheduler: str = "static", **settings) -> list[int]:
    """Gathers of both models, round by round."""
    return [record.num_moves for record in run_case(Case(rows, layout, scheduler, **settings)).rounds]


@pytest.mark.parametrize("layout", [*MOVING, "inplace"])
def test_even_rows_are_gathered_once_for_each_model(layout: str) -> None:
    found = moves(Row((3, 1), 12, 2), Row((5, 2), 12, 2), layout=layout)
    assert found == ([0] * 4 if layout == "inplace" else [2, 0, 0, 0])


@pytest.mark.parametrize("layout", MOVING)
def test_members_in_another_order_are_loaded_anew(layout: str) -> None:
    """The rows of the rectangle are in the order of the members; as a set, both orders are the same."""
    placement, rows = make_placement(layout, 0.25), [RowState(slot, 7 + slot, 5, 4) for slot in range(2)]
    loads = [placement.begin(order, 2) for order in (rows, rows, rows[::-1])]
    assert [move and move.kind for move in loads] == ["load", None, "load"]


@pytest.mark.parametrize("layout", ["realigned", "masked"])
def test_a_finished_row_moves_nothing(layout: str) -> None:
    found = moves(Row((3, 1), 3, 2), Row((5, 2), 12, 2), layout=layout, compaction_threshold=1.0)
    assert found == [2, 0, 0, 0]


@pytest.mark.parametrize(("threshold", "later"), [(0.01, 2), (1.0, 0)])
def test_the_masked_layout_compacts_above_its_threshold(threshold: float, later: int) -> None:
    rows = (Row((3, 1), 5, 2, None, NEVER), Row((5, 2), 5, 2, None, NEVER))
    assert moves(*rows, layout="masked", compaction_threshold=threshold)[:4] == [2, later, later, later]


@pytest.mark.parametrize(("threshold", "moved"), [(0.49, 1), (0.5, 0)])
def test_the_masked_layout_keeps_what_is_just_at_its_threshold(threshold: float, moved: int) -> None:
    """Two of four columns would be freed for the target, one of three for the draft."""
    rows = (Row((3, 1), 5, 2, None, NEVER), Row((5, 2), 5, 2, None, NEVER))
    assert moves(*rows, layout="masked", compaction_threshold=threshold)[1] == moved


@pytest.mark.parametrize("layout", MOVING)
def test_other_members_are_one_copy_back_and_one_gather_for_each_model(layout: str) -> None:
    rows = [Row((3, 1), 3, 2), Row((5, 2), 9, 2), Row((5, 4), 6, 2)]
    assert moves(*rows, layout=layout, scheduler="fifo", batch_size=2) == [2, 4, 0]


@pytest.mark.parametrize("layout", MOVING)
def test_nothing_is_written_back_twice_nor_what_the_prefill_wrote(layout: str) -> None:
    rows = [
        Row(tuple(range(1, n + 1)), 12, k, None, (True, False) * 6)
        for n, k in ((5, 2), (5, 1), (7, 3), (6, 2), (5, 2), (9, 1))
    ]
    written: dict[int, list[int]] = {}
    copy = KVStore.copy_slots

    def watched(store: KVStore, source: KVStore, source_slots, slots) -> None:
        written.setdefault(id(store), []).extend(slots.tolist())
        assert min(slot % store.columns for slot in slots.tolist()) >= 4  # the shortest prompt but its last token
        copy(store, source, source_slots, slots)

    with patch.object(KVStore, "copy_slots", watched):
        run_case(Case(tuple(rows), layout, "grouped", batch_size=2, window_size=6, aging_bound=1))
    assert len(written) == 2
    assert all(len(slots) == len(set(slots)) > 8 for slots in written.values())


@pytest.fixture
def slack(monkeypatch):
    """Sets the columns that a batch has to spare."""

    def choose(columns: int) -> None:
        for module in ("left_padded", "masked"):
            monkeypatch.setattr(f"refimpl.placement.{module}.SLACK_COLUMNS", columns)

    return choose


@pytest.mark.parametrize("layout", MOVING)
@pytest.mark.parametrize("columns", range(4))
def test_a_batch_may_be_full_to_its_last_column(layout: str, columns: int, slack) -> None:
    slack(columns)
    rows = [Row((3, 1), 12, 2, None, (True, False, False) * 4), Row((5,), 12, 3), Row((6, 2, 4, 1), 9, 1)]
    case = Case(tuple(rows), layout, "static", batch_size=3, compaction_threshold=1.0)
    assert run_case(case, checks="device").outputs == oracle_outputs(case)


@pytest.mark.parametrize(
    ("layout", "columns", "later"),
    [
        ("realigned", 2, [2, 2]),
        ("realigned", 3, [1, 1]),  # the draft's first round feeds a token less than its later ones
        ("realigned", 4, [0, 2]),
        ("masked", 2, [2, 2]),
        ("masked", 3, [0, 2]),
    ],
)
def test_a_batch_is_laid_out_anew_when_the_round_does_not_fit(layout: str, columns: int, later, slack) -> None:
    """Every round commits three tokens of both rows."""
    slack(columns)
    found = moves(Row((3,), 18, 2), Row((5,), 18, 2), layout=layout, compaction_threshold=1.0)
    assert found[1:3] == later


@pytest.mark.parametrize(
    ("layout", "kind", "owner"),
    [("realigned", "realign", WorkingLayout), ("rollback", "grow", WorkingLayout), ("masked", "compact", MaskedLayout)],
)
def test_a_batch_is_as_wide_as_its_move_says(layout: str, kind: str, owner: type, slack) -> None:
    """A wider one would give the same tokens, in memory that nobody counts."""
    slack(4)
    carry_out, widths = owner.carry_out, []

    def noting(self: WorkingLayout, move: Move) -> None:
        carry_out(self, move)
        widths.append((move.kind, move.columns, self.batch.columns))

    rows = (Row((3, 1), 12, 2, None, NEVER), Row((5, 2, 4), 12, 2, None, (True, False) * 6))
    with patch.object(owner, "carry_out", noting):
        run_case(Case(rows, layout, "static", compaction_threshold=0.01))
    assert kind in {name for name, _, _ in widths}
    assert all(wanted == found for _, wanted, found in widths)
