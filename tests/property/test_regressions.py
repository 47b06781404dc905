"""Smallest cases of faults that fuzzing found in the engine."""

from refimpl.selfcheck.cases import Case, Row, oracle_outputs, run_case


def test_a_fresh_sequence_is_not_grouped_with_one_whose_draft_has_cached_nothing() -> None:
    rows = (Row((1,), 9, 0), Row((2,), 2, 0), Row((1, 2, 3), 9, 2))
    case = Case(rows, "inplace", "grouped", batch_size=2, window_size=2)
    assert run_case(case, checks="oracle").outputs == oracle_outputs(case)


def test_a_fresh_sequence_is_grouped_with_a_cached_one_of_the_same_state() -> None:
    rows = (Row((1,), 5, 1, None, (False,) * 5), Row((2,), 1, 1), Row((1, 2), 4, 1, None, (False,) * 4))
    case = Case(rows, "realigned", "grouped", batch_size=2, window_size=2)
    assert [record.mode for record in run_case(case).rounds] == ["grouped"] * 5


def test_every_move_is_counted() -> None:
    ragged = Case((Row((3, 1), 9, 2, None, (False,) * 9), Row((5, 2), 9, 2)), "realigned", "static")
    moves = [record.num_moves for record in run_case(ragged).rounds]
    assert min(moves) >= 0
    assert moves[1] == 2  # the target's and the draft's rows, once each
