"""Room for K/V: how much there is, and who may enter where the layout has no blocks."""

import math
from collections.abc import Iterable

from refimpl.core.errors import require
from refimpl.placement import PLACEMENTS, pool_columns
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


def room_bytes(scenario: Scenario, cost: CostModel) -> float | None:
    """Room for K/V of a replica: as given, else in the memory of the device where costs know it; None for no limit."""
    return scenario.service.kv_capacity_bytes or cost.kv_capacity_bytes


def require_room(scenario: Scenario, cost: CostModel) -> None:
    """Raise InputError where blocks or bytes for K/V are more than a device has room for, where that is known."""
    engine, given_bytes = scenario.engine, scenario.service.kv_capacity_bytes or 0.0
    held_bytes = (engine.num_blocks or 0) * engine.block_size * cost.kv_bytes_per_token
    room_bytes = cost.kv_capacity_bytes or math.inf
    room = f"the device has room for {room_bytes:.3g}"
    require(held_bytes <= room_bytes, f"engine.num_blocks {engine.num_blocks} take {held_bytes:.3g} bytes, {room}")
    require(given_bytes <= room_bytes, f"service.kv_capacity_bytes is {given_bytes:.3g}, {room}")
