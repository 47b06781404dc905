"""Verify passes outside a round: a rectangle, packed rows, and rows with a chunk of a prompt.

Nothing is committed, so a pass can run repeatedly on the same cached tokens. Its seconds include making its block, as
those of a round do.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch

from refimpl.core.config import make_config
from refimpl.core.errors import require
from refimpl.decoding.cached import CachedModel, last_tokens
from refimpl.decoding.engine import Engine
from refimpl.decoding.prefill import Chunks, packed_chunks, prefill_chunks
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.store import Block
from refimpl.models.adapter import Pair
from refimpl.requests import prepare
from refimpl.scheduling import Chunk

Run = Callable[[], None]


class PassBench:
    """Rows that decode, and a prompt of which some tokens are cached: passes over them, whole or in part.

    Args:
        pair: the models.
        method: a layout and the scheduler `continuous`.
        rows: tokens of the rows.
        prompt: tokens that chunks are taken from.
        start: how many of them count as cached.
        num_speculative_tokens: drafts of a row, at most.
        checks: level of the engine's run-time checks.

    Raises:
        InputError: the K/V do not fit, a row has one token, or the target runs no packed passes.
    """

    def __init__(
        self,
        pair: Pair,
        method: str,
        rows: Seq[list[int]],
        prompt: list[int],
        start: int,
        *,
        num_speculative_tokens: int,
        checks: str,
    ):
        prompts, span = [*rows, prompt], num_speculative_tokens + 1
        require(min(map(len, rows)) > 1, "a row needs at least two tokens: all but the last are cached")
        config = make_config(
            method=method, batch_size=len(prompts), num_speculative_tokens=num_speculative_tokens,
            max_new_tokens=span + 1, stop_token_ids=[], checks=checks, prefix_sharing=False,
            token_budget=sum(map(len, prompts)) + len(prompts) * span,
        )  # fmt: skip
        require_packed(pair)
        self.engine = Engine(pair, prepare(pair, prompts, config), config)
        self.engine.run_one_round()  # caches all prompts
        *self.rows, self.prompt = self.engine.sequences
        self.engine.scheduler.allocator.reserve(self.rows)
        self.target, self.draft = self.engine.context.models
        for cached in (self.target, self.draft):
            cached.note_cached(self.prompt, start)

    @torch.inference_mode()
    def stages(self, run: Run) -> tuple[float, float]:
        """Seconds of chunks in passes of their own, and of verify passes."""
        self.engine.timer.take()
        run()
        stage_s = self.engine.timer.take()
        return stage_s["prefill_s"], stage_s["verify_s"]

    def rectangle(self, counts: Seq[int]) -> None:
        """Row i feeds `counts[i]` tokens, and pads up to the most of them."""
        self._verify(counts, lambda block: self.target.forward(block, max(counts)))

    def packed(self, counts: Seq[int]) -> None:
        """Row i feeds `counts[i]` tokens, and no pads."""
        forward = self.target.forward_packed
        assert forward is not None
        self._verify(counts, lambda block: forward(PackedBlock.of_rows(block, counts), sum(counts)))

    def mixed(self, counts: Seq[int], tokens: int) -> None:
        """As a round of the engine feeds `counts[i]` tokens of row i, with so many of the prompt beside."""
        target, chunks = self.target, self._chunks(tokens)
        self._verify(counts, lambda block: target.forward_rows(block, counts, packed_chunks(target, chunks)))

    def chunk(self, cached: CachedModel, tokens: int) -> None:
        """So many tokens of the prompt in a pass of their own."""
        prefill_chunks(cached, self._chunks(tokens))

    def of_round(self, counts: Seq[int], tokens: int) -> None:
        """The passes of a round that a chunk has a part in: the verify pass, and the draft's pass over the chunk."""
        self.mixed(counts, tokens)
        self.chunk(self.draft, tokens)

    def _verify(self, counts: Seq[int], forward: Callable[[Block], object]) -> None:
        target, q = self.target, max(counts)
        target.begin(self.rows, span=q)
        with target.timer.stage("verify"):
            tokens = last_tokens(self.rows, 1, target.layout.shape.device).expand(-1, q)
            forward(target.block(tokens, -1, [tokens[:, 1:]]))

    def _chunks(self, tokens: int) -> Chunks:
        return [Chunk(self.prompt, tokens)] if tokens else ()


def require_packed(pair: Pair) -> None:
    """Raise InputError where the target runs rectangles only, so that chunks are fed in passes of their own."""
    require(pair.target.forward_packed is not None, f"the target of {pair.name} runs no packed passes")
