"""Room for K/V: how much there is, and who may enter where the layout has no blocks."""

import math
from collections.abc import Iterable

from refimpl.core.errors import require
from refimpl.placement import PLACEMENTS, num_states, pool_columns
from refimpl.scheduling import KVAllocator
from simulator.service.cost import CostModel
from simulator.service.records import Request
from simulator.settings.scenario import Engine, Scenario


class BudgetAllocator(KVAllocator[Request]):
    """Every request of the window has room for its prompt and its whole budget.

    Beside that, the working batch of the layout has room for a full batch of rows as long as the longest of them, in
    each of its two buffers.

    Args:
        engine: whose layout and batch size decide the room for the working batch.
        capacity_tokens: tokens whose K/V fit.
    """

    def __init__(self, engine: Engine, capacity_tokens: float):
        self.engine, self.capacity_tokens = engine, capacity_tokens

    def enter(self, sequence: Request, residents: Iterable[Request]) -> bool:
        """Whether its room is left beside these residents.

        Raises:
            InputError: it is larger than the whole capacity.
        """
        tokens = [sequence.most_tokens, *(each.most_tokens for each in residents)]
        rows = min(self.engine.batch_size, len(tokens))
        columns = pool_columns(max(tokens), self.engine.num_speculative_tokens + 1)
        need = sum(tokens) + PLACEMENTS[self.engine.layout].num_working_slots(rows, columns)
        require(
            len(tokens) > 1 or need <= self.capacity_tokens,
            f"the memory for K/V holds {self.capacity_tokens:.0f} tokens; a request needs {need}",
        )
        return need <= self.capacity_tokens


def state_bytes(engine: Engine, cost: CostModel) -> float:
    """Recurrent states of all rows that may be resident, and of the members of a round behind each of their tokens."""
    span = engine.num_speculative_tokens + 1
    return cost.state_bytes_per_row * num_states(engine.resolved_window_size, engine.batch_size, span)


def room_bytes(scenario: Scenario, cost: CostModel) -> float | None:
    """Room for K/V of a replica: as given, else in the memory of the device where costs know it; None for no limit.

    Recurrent states of rows take their share of it first.
    """
    room = scenario.service.kv_capacity_bytes or cost.kv_capacity_bytes
    return None if room is None else max(0.0, room - state_bytes(scenario.engine, cost))


def require_room(scenario: Scenario, cost: CostModel) -> None:
    """Raise InputError where states, blocks or bytes for K/V are more than there is room for, where that is known."""
    engine, given_bytes = scenario.engine, scenario.service.kv_capacity_bytes or 0.0
    held_bytes = (engine.num_blocks or 0) * engine.block_size * cost.kv_bytes_per_token
    states, device_bytes = state_bytes(engine, cost), cost.kv_capacity_bytes or math.inf
    most, room = given_bytes or device_bytes, f"the device has room for {device_bytes:.3g}"
    need = f"recurrent states of {engine.resolved_window_size} rows take {states:.3g} bytes"
    require(given_bytes <= device_bytes, f"service.kv_capacity_bytes is {given_bytes:.3g}, {room}")
    require(states < most, f"{need}, and there is room for {most:.3g}")
    beside = f" beside {states:.3g} of states" if states else ""
    blocks = f"engine.num_blocks {engine.num_blocks} take {held_bytes:.3g} bytes{beside}, {room}"
    require(held_bytes + states <= device_bytes, blocks)
