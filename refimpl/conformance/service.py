"""Our engine as a service: prompts come and are cancelled while others run, in a pool that is soon full."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from refimpl.conformance.protocol import EngineSettings
from refimpl.core.config import DecodeConfig
from refimpl.core.sequence import Sequence
from refimpl.decoding.engine import Engine
from refimpl.decoding.memory import GIB
from refimpl.models.adapter import Pair
from refimpl.requests import prepare
from refimpl.scheduling import Room, blocks_for

SPARE_BLOCKS = 3  # beyond those of the longest row


class Door:
    """Keeps sequences waiting until they are due; with nobody inside, the next one is.

    To an engine, one that has not come is like one that may not enter.
    """

    def __init__(self, room: Room[Sequence], due_at: dict[int, int]):
        self._room, self._due_at, self.num_rounds = room, due_at, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._room, name)

    def enter(self, sequence: Sequence, residents: Iterable[Sequence]) -> bool:
        """Let in who is due and has room."""
        residents = list(residents)
        due = not residents or self.num_rounds >= self._due_at[sequence.index]
        return due and self._room.enter(sequence, residents)


def serve(pair: Pair, config: DecodeConfig, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
    """Decode prompts by the timetable of the settings; of a cancelled one, what it has generated."""
    order = sorted(range(len(prompts)), key=lambda i: settings.submit_at[i])
    prepared = prepare(pair, [prompts[i] for i in order], config).sequences
    engine = Engine(pair, prepared, replace(config, kv_memory_gib=_small(pair, config, prepared)))
    door = Door(engine.scheduler.room, {place: settings.submit_at[i] for place, i in enumerate(order)})
    engine.scheduler.room = cast(Any, door)
    leaves = [(settings.submit_at[i], settings.cancel_at[i]) for i in order]
    while not engine.scheduler.done:
        for sequence, (comes, after) in zip(prepared, leaves, strict=True):
            if after is not None and door.num_rounds >= comes + after:
                engine.cancel(sequence)
        if not engine.scheduler.done:
            engine.run_one_round()
        door.num_rounds += 1
    return [prepared[order.index(i)].generated for i in range(len(prompts))]


def _small(pair: Pair, config: DecodeConfig, sequences: list[Sequence]) -> float | None:
    """Memory for the longest row and few blocks more, where rows have blocks."""
    if config.resolved_method.layout != "paged":
        return None
    blocks = blocks_for(max(s.most_tokens for s in sequences), config.block_size) + SPARE_BLOCKS + 1  # one is scratch
    per_token = sum(model.kv_shape.bytes_per_token for model in pair.models(config.drafting.uses_draft))
    return (blocks + 0.5) * config.block_size * per_token / GIB
