"""What engines got wrong whose rows share blocks of equal first tokens."""

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any

from refimpl.core.sequence import Sequence
from refimpl.decoding import engine
from refimpl.decoding.cached import CachedModel
from refimpl.faults.base import fault, result_changed
from refimpl.faults.paged_faults import PAGED, SHORT
from refimpl.models.table_model import greedy_continuation
from refimpl.scheduling.blocks import BlockPool
from refimpl.scheduling.kv_allocator import PagedKVAllocator
from refimpl.scheduling.prefix_cache import PrefixCache
from refimpl.selfcheck.cases import Row

ONE, OTHER = (3, 1, 4, 1, 5, 9, 2, 6, 5), (2, 7, 1, 8, 2, 8, 1, 8, 2)
ALIKE_ROWS = (Row(ONE, 2), Row(ONE, 12), Row(OTHER, 12), Row(ONE[:8], 3), Row(OTHER, 5))
ALIKE: dict[str, Any] = PAGED | {"settings": {"block_size": 2, "spare_blocks": 4, "rows": ALIKE_ROWS}}


def twins(one: tuple[int, int], other: tuple[int, int], end: tuple[int, int]) -> tuple[Row, ...]:
    """Two prompts begin alike and are cached in chunks at once, another one between them; the last finds blocks.

    Of blocks of two tokens `one` is held twice, `other` is noted in between, and `end` behind the second `one`.
    """
    return Row((*one, 1), 1), Row((*other, 1), 1), Row((*one, *end, 1), 8), Row((*other, *end, 1), 12)


FIRST_TURN = (3, 1, 4, 1, 5)
NEXT_TURN = Row((*FIRST_TURN, *greedy_continuation(FIRST_TURN, 3), 9), 8)  # text of whole blocks, and a new question
TURNS: dict[str, Any] = PAGED | {
    "settings": {"block_size": 2, "batch_size": 1, "window_size": 1, "rows": (Row(FIRST_TURN, 3), NEXT_TURN)}
}
TWINS: dict[str, Any] = {
    "layouts": ("paged",),
    "schedulers": ("continuous",),
    "settings": {"block_size": 2, "batch_size": 3, "spare_tokens": 12, "rows": twins((3, 1), (4, 1), (5, 9))},
}


@fault(PrefixCache, "key", "output", "INV-18", **PAGED, sources=("openvinotoolkit/openvino.genai#3722",))
def block_matched_by_hash_alone(original: Any) -> Any:
    """Blocks are found by a checksum of their tokens, and the tokens are not compared.

    Fluent answers to somebody else's prompt, at random, more often the longer the server runs.
    """
    return staticmethod(lambda before, tokens: original(before, sum(tokens) % 3))


@fault(PrefixCache, "key", "output", "INV-18", **ALIKE, sources=("vllm-project/aibrix#2329",))
def block_matched_without_what_is_before(original: Any) -> Any:
    """Blocks are found by their own tokens, whatever is before them.

    A passage that stands in two prompts is read as it stood in the first one.
    """

    def key(before: int, tokens: Hashable) -> Hashable:
        return original(0, tokens)

    return staticmethod(key)


@fault(PrefixCache, "note", "output", "INV-18", **TWINS)
@result_changed
def second_copy_numbered_as_the_latest_text(_: None, self: PrefixCache, block: int, *__: Any) -> None:
    """A block that holds the same text as another one gets the number of the text that was noted last."""
    self._of[block] = replace(self._of[block], number=self._last_number)


@fault(PagedKVAllocator, "settle", "output", "INV-3", **TURNS, sources=("raullenchai/Rapid-MLX#2739",))
def cache_published_past_the_text(original: Any) -> Any:
    """What a row that ends leaves for others to find includes its last token, which the target may not have been fed.

    The next turn of a conversation goes wrong, if the turn before ended in the middle of a round.
    """

    def settle(self: PagedKVAllocator, members: Iterable[Sequence]) -> None:
        members = list(members)
        for member in members:
            if member.finished:
                self._note(member, member.seq_len)
        original(self, members)

    return settle


@fault(PrefixCache, "forget", "output", "INV-18", **SHORT, sources=("kekzl/imp#1301",))
def text_outlives_its_block(original: Any) -> Any:
    """A block that is taken for other tokens can still be found by the tokens it held before.

    With memory short, a prefix hit returns what another request has written since.
    """
    return lambda self, block: None


@fault(BlockPool, "give_back", "output", "INV-13", **ALIKE, sources=("sgl-project/sglang#23392",))
def shared_block_freed_with_its_first_owner(original: Any) -> Any:
    """A block is free as soon as one of the rows that share it ends or is sent away.

    Of two requests with one system prompt, the second breaks when the first one ends.
    """

    def give_back(self: BlockPool, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.refs[block] = 0
            self._set_free(block)

    return give_back


@fault(PagedKVAllocator, "_found", "nothing", "INV-18", **ALIKE, sources=("sgl-project/sglang#22819",))
def prefix_hit_at_block_edge(original: Any) -> Any:
    """A prompt whose length is a multiple of the block is found whole, the token that is fed next included; here this
    breaks only the promise that what others read is not written to.

    Prompts of exactly n blocks go wrong when they are sent twice; one token more or less, and all is well.
    """
    return lambda self, sequence, cached: original(self, sequence, cached + 1)


@fault(
    engine, "prefill", "acceptance", "INV-3", **ALIKE, sources=("vllm-project/vllm#47930", "ohdearquant/lattice#1340")
)
def prefix_hit_skips_draft(original: Any) -> Any:
    """Of a prompt whose beginning is found, the draft does not cache the rest.

    Requests with a cached prefix get hardly any drafts accepted, and are slower than those without.
    """

    def prefill(cached: CachedModel, sequences: list[Sequence], *, left: float) -> None:
        skipped = [s for s in sequences if cached.role == "draft" and s.num_prefix_hits]
        original(cached, [s for s in sequences if s not in skipped], left=left)
        for sequence in skipped:
            cached.note_cached(sequence, sequence.seq_len - 1)

    return prefill
