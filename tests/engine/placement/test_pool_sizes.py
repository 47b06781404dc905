"""What each layout says of itself, sizes of pools by hand, states of passes, and when a pass leaves its pads out."""

import pytest
import torch

from refimpl.layouts.states import PassStates, StateStore
from refimpl.layouts.store import KVShape, StatePart
from refimpl.placement import (
    PLACEMENTS,
    PoolSize,
    are_neighbours,
    make_placement,
    num_states,
    padded_columns,
    pays_to_pack,
    pool_columns,
)

SIZE = PoolSize(rows=5, columns=64, batch_rows=3, block_size=16, num_blocks=9)
# layout: (every row commits the minimum, every pass copies what it reads, K/V slots of SIZE)
FACTS = {
    "inplace": (False, False, 5 * 64),
    "paged": (False, True, (9 + 1) * 16),
    "realigned": (False, False, 5 * 64 + 2 * 3 * (64 + 32)),
    "rollback": (True, False, 5 * 64 + 2 * 3 * (64 + 32)),
    "masked": (False, False, 5 * 64 + 2 * 3 * (64 + 32 + 16)),
}


@pytest.mark.parametrize("layout", PLACEMENTS)
def test_what_a_layout_says_of_itself(layout):
    placement = make_placement(layout, 0.25)
    assert (placement.commits_minimum, placement.always_gathers, placement.num_slots(SIZE)) == FACTS[layout]
    assert (placement.width, placement.columns) == (0, 0)
    assert placement.has_members([]) or placement.batch_columns(1)  # a rectangle has none yet


@pytest.mark.parametrize(("columns", "padded"), [(1, 32), (32, 32), (33, 64), (64, 64)])
def test_columns_come_in_steps(columns, padded):
    assert padded_columns(columns) == padded


@pytest.mark.parametrize(("longest", "window", "columns"), [(25, 6, 32), (26, 6, 64), (57, 6, 64), (1, 1, 32)])
def test_a_row_has_room_for_its_window_and_a_scratch_column(longest, window, columns):
    assert pool_columns(longest, window) == columns


def test_states_are_those_of_rows_and_of_every_token_of_a_round():
    assert num_states(8, 3, 4) == 8 + 3 * (1 + 4)
    parts = (StatePart(0, "a", 0, (2, 3), torch.float32), StatePart(1, "b", 0, (5,), torch.float64))
    assert KVShape(2, 1, 4, torch.float32, torch.device("cpu"), states=parts).bytes_per_row == 6 * 4 + 5 * 8


@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_a_prompt_that_is_taken_in_token_by_token_the_last_state_stays(count):
    part = StatePart(0, "a", 0, (1,), torch.float32)
    store = StateStore(KVShape(1, 1, 4, torch.float32, torch.device("cpu"), states=(part,)), rows=3)
    store.clear(1, sequence=7)
    states = PassStates(store, [1], step=count)
    for token in range(count):
        assert states.read(part).item() == token
        assert states.latest(part).item() == token
        states.write(part, torch.full((1, 1), token + 1.0))
    states.commit([count])
    assert store.parts[part][:, 0].tolist() == [0, count, 0]
    assert store.tag(1) == (7, count)


@pytest.mark.parametrize(
    ("wanted", "settings"),
    [
        (PoolSize(3, 64, 2, 16, 2 + 2 + 3), {"window_size": 3, "batch_size": 2}),
        (PoolSize(4, 64, 4, 16, 1 + 2 + 2 + 3), {"window_size": 9, "batch_size": 8}),
        (PoolSize(6, 64, 2, 8, 2 + 3 + 4 + 5), {"window_size": 1, "batch_size": 2, "least_rows": 6, "block_size": 8}),
        (PoolSize(1, 64, 1, 16, 3), {"window_size": 1, "batch_size": 8}),
    ],
)
def test_the_pool_of_a_run(wanted, settings):
    """Rows for a window, blocks for the longest of them."""
    assert PoolSize.of_run([40, 17, 32, 16], span=6, **settings) == wanted


@pytest.mark.parametrize(
    ("slots", "neighbours"), [([3], True), ([1, 2, 3], True), ([3, 2, 1], False), ([1, 3], False), ([2, 2], False)]
)
def test_neighbours_ascend_without_gaps(slots, neighbours):
    assert are_neighbours(slots) is neighbours


@pytest.mark.parametrize(
    ("counts", "width", "pays"),
    [
        ([3, 3], 4, True),  # exactly three quarters are real
        ([4, 3], 4, False),
        ([1, 1, 1, 9], 9, True),
        ([4, 4, 4, 4], 4, False),
        ([6, 0], 6, True),
        ([1], 1, False),
    ],
)
def test_pads_are_left_out_where_a_quarter_of_a_rectangle_is_pads(counts, width, pays):
    assert pays_to_pack(counts, width) is pays
