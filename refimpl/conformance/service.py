"""Our engine as a service: prompts come and are cancelled while others run, in a pool that is soon full."""

from dataclasses import replace

from refimpl.conformance.protocol import EngineSettings
from refimpl.core.config import DecodeConfig
from refimpl.core.request import Request
from refimpl.core.sequence import Sequence
from refimpl.decoding.engine import Engine
from refimpl.decoding.memory import pool_gib
from refimpl.models.adapter import Pair
from refimpl.requests import prepare
from refimpl.scheduling import blocks_for

SPARE_BLOCKS = 3  # beyond those of the longest row


def serve(pair: Pair, config: DecodeConfig, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
    """Decode prompts by the timetable of the settings; of a cancelled one, what it has generated."""
    order = sorted(range(len(prompts)), key=lambda i: settings.submit_at[i])
    sequences = prepare(pair, [Request(prompts[i], sequence_id=i) for i in order], config)
    engine = Engine(pair, [], replace(config, kv_memory_gib=_small(pair, config, sequences)), expected=sequences)
    coming, leaving, num_rounds = list(zip(order, sequences, strict=True)), list[tuple[int, Sequence]](), 0
    while coming or not engine.scheduler.done:
        while coming and (engine.scheduler.done or settings.submit_at[coming[0][0]] <= num_rounds):
            place, sequence = coming.pop(0)
            engine.submit([sequence])
            after = settings.cancel_at[place]
            leaving += [] if after is None else [(num_rounds + after, sequence)]
        for at, sequence in leaving:
            if num_rounds >= at:
                engine.cancel(sequence)
        if not engine.scheduler.done:
            engine.run_one_round()
            num_rounds += 1
    return [sequences[order.index(i)].generated for i in range(len(prompts))]


def _small(pair: Pair, config: DecodeConfig, sequences: list[Sequence]) -> float | None:
    """Memory for the longest row and few blocks more, where rows have blocks."""
    if config.resolved_method.layout != "paged":
        return None
    blocks = blocks_for(max(s.most_tokens for s in sequences), config.block_size) + SPARE_BLOCKS
    return pool_gib(pair, blocks, config.block_size, drafts=config.drafting.uses_draft)
