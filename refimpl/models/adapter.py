"""What the engine asks of a language model, and the adapter that makes a Hugging Face model answer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache

from refimpl.core.drafting import DRAFTERS
from refimpl.core.engine_settings import LayersName
from refimpl.core.errors import InputError, UnsupportedModelError, require
from refimpl.core.processing import Processing
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.spans import FULL
from refimpl.layouts.store import Block, KVShape, StatePart
from refimpl.models import attention
from refimpl.models.alibi import biases_by_rank, count_by_position
from refimpl.models.block_cache import call_with_cache
from refimpl.models.cached_layers import keeping_cache, states_in
from refimpl.models.checks import (
    attends,
    experts_of,
    mixes_rows,
    refuse_what_is_declared,
    refusing_what_fails,
    ropes_of_batches,
    steady_positions,
)
from refimpl.models.head import DraftHead
from refimpl.models.layers import choose_layers
from refimpl.models.lean import LeanLayers
from refimpl.models.lean_trial import Run, largest_error
from refimpl.models.mixers import step_mixers
from refimpl.models.module_layers import ModuleLayers
from refimpl.models.probe import (
    ForwardPacked,
    cached_layers_of,
    depends_on_shape,
    refuse_unless_positions_and_mask_count,
    runs_packed_blocks,
)
from refimpl.models.varlen import NotOfferedError, PackedKernel, choose_kernel

FeedRow = Callable[[list[int]], Tensor]


@runtime_checkable
class CausalLM(Protocol):
    """A decoder-only model with full attention.

    Attributes:
        vocab_size: width of its logits.
        max_positions: positions it knows; `position_ids` stay below.
        recordable: whether its passes only launch work, so that they can be recorded and replayed.
        kv_shape: what it caches per token.
    """

    vocab_size: int
    max_positions: int
    recordable: bool
    kv_shape: KVShape

    @property
    def mixes_rows(self) -> bool:
        """Whether a row's numbers depend on other rows even in passes of one shape."""

    @property
    def maskless_queries(self) -> int:
        """Most tokens a row of a pass that reads `Block.in_pool`, and no mask; 0 where all passes need one."""

    def forward(self, block: Block, num_logits: int) -> Float[Tensor, "batch num_logits vocab"]:
        """Run a block, hand its K/V to ``block.append`` layer by layer, return the last `num_logits` logits.

        Hidden states of all tokens are handed to ``block.note_hidden`` if that is there.
        """

    @property
    def forward_packed(self) -> ForwardPacked | None:
        """Runs a packed block; None for a model that is fed rectangles."""

    def fresh_row(self) -> FeedRow:
        """Start one sequence on the model's own ordinary cache, for the oracle.

        The returned function takes the next tokens and gives the logits ``[vocab]`` after the last of them.
        """

    def fresh_kv(self, tokens: list[int]) -> Tensor:
        """K/V of one row computed from nothing ``[layers, planes, kv_heads, len(tokens), plane_dim]``, to compare."""


class HuggingFaceLM:
    """Adapter of a transformers model whose layers attend to all that is before, or look back a window or a chunk.

    The model itself is changed for good: its attention implementation is set, in float64 that of its experts, too, and
    it is put in evaluation mode. With a model on a CUDA device, cuDNN's attention is off for the whole process (see
    `refimpl.models.attention`).

    Args:
        model: a causal model, already on its device and in its dtype.
        name: how errors call it.
        layers: what runs its layers, see `choose_layers`.

    Attributes:
        layers: what was chosen, and why.
        run_layers: runs a pass; whoever times passes may wrap it.

    Raises:
        InputError: the model declares what the engine cannot do, has attention of its own that cannot be set, does not
            honour explicit positions and masks, or fails in another way; the message names the reason.
    """

    def __init__(self, model: PreTrainedModel, name: str = "model", layers: LayersName = "auto"):
        self.model, self.name = model.eval(), name
        with refusing_what_fails(model, name):
            refuse_what_is_declared(model)
            implementation = _set_attention(model)
            _set_experts(model)
            config = model.config.get_text_config(decoder=True)
            self.vocab_size: int = config.vocab_size
            self.max_positions = steady_positions(config)
            self.cached = cached_layers_of(model, self.max_positions)
            self.recordable = not ropes_of_batches(config) and not self.cached.states
            self._in_one_row = bool(getattr(config, "attn_temperature_tuning", False))  # scaled by numbers of tokens
            self.kv_shape = self.cached.shape
            if self.cached.states:
                step_mixers(model)
            heads = getattr(config, "num_attention_heads", self.kv_shape.num_kv_heads)
            self._groups = heads // self.cached.least_heads if implementation == attention.NAME else 1
            self.kernel = PackedKernel()
            own = ModuleLayers(model, self.cached, self._groups)
            self.run_layers: Run = own
            refuse_unless_positions_and_mask_count(self)
            self.shape_bound = depends_on_shape(self)
        can_pack = implementation == attention.NAME and self.cached.uniform
        packs = can_pack and runs_packed_blocks(self, self._run_packed)
        self.forward_packed = self._run_packed if packs else None
        if packs and not self.kv_shape.spans:
            self.kernel = choose_kernel(self.kv_shape, heads)
        self.layers = choose_layers(layers, own, model, self._error_of)
        self.run_layers = self.layers.run

    @property
    def mixes_rows(self) -> bool:
        """Whether tokens of several rows are one product; how experts are computed may be set later."""
        return mixes_rows(self.model)

    @property
    def maskless_queries(self) -> int:
        """Where kernels run its layers, as many as they answer at once."""
        return self.layers.run.maskless_queries

    def forward(self, block: Block, num_logits: int) -> Float[Tensor, "batch num_logits vocab"]:
        """Run a block, with explicit positions and an explicit mask."""
        if not self._in_one_row:
            return self.run_layers(block, num_logits)
        rows, q = block.tokens.shape
        logits = self._run_packed(PackedBlock.of_rows(block, [q] * rows), rows * q)
        return logits.unflatten(0, (rows, q))[:, -num_logits:]

    def _run_packed(self, block: PackedBlock, num_logits: int) -> Float[Tensor, "num_logits vocab"]:
        """Run a packed block, whose rows are answered one by one or by the kernel."""
        return self.run_layers(self._prepared(block), num_logits)[0]

    def _prepared(self, block: PackedBlock) -> PackedBlock:
        block = replace(self.kernel.prepared(block), spans=self.kv_shape.spans)
        if block.attend or block.rectangle is None:
            return block
        masks = {
            span: attention.additive_mask(block.rectangle.seen_by(span), self.kv_shape.dtype, self._groups)
            for span in set(self.kv_shape.spans) or {FULL}
        }
        return replace(block, rectangle=replace(block.rectangle, masks=masks))

    def _error_of(self, lean: LeanLayers) -> float:
        """Largest error of lean layers on a few ragged passes, against the layers of now."""
        if self.kv_shape.spans or not self.cached.uniform:
            raise NotOfferedError("its layers differ in what they cache or how far back they look")

        def run(layers: Run, block: Block | PackedBlock, num_logits: int) -> Tensor:
            return layers(self._prepared(block) if isinstance(block, PackedBlock) else block, num_logits)

        ways = partial(run, lean), partial(run, self.run_layers)
        packed, paged = self.forward_packed is not None, lean.maskless_queries > 0
        return largest_error(self.kv_shape, self.vocab_size, *ways, packed=packed, paged=paged)

    def fresh_row(self) -> FeedRow:
        """Start one row on transformers' own DynamicCache, positions and mask left to the model."""
        cache = DynamicCache(config=self.model.config)

        @torch.inference_mode()
        def feed(tokens: list[int]) -> Tensor:
            ids = torch.tensor([tokens], device=self.model.device)
            return call_with_cache(self.model, cache, input_ids=ids, logits_to_keep=1).logits[0, -1]

        return feed

    @torch.inference_mode()
    def fresh_kv(self, tokens: list[int]) -> Tensor:
        """Fill an ordinary cache with the row and stack its layers."""
        return self.cached.joined(self._filled(tokens))

    @torch.inference_mode()
    def fresh_states(self, tokens: list[int]) -> dict[StatePart, Tensor]:
        """Recurrent states behind the row, computed from nothing."""
        return dict(states_in(self._filled(tokens)))

    def _filled(self, tokens: list[int]) -> Cache:
        """An ordinary cache of one row, with the entries of all tokens."""
        cache = keeping_cache(self.model.config)
        ids = torch.tensor([tokens], device=self.model.device)
        call_with_cache(self.model, cache, input_ids=ids, logits_to_keep=1)
        return cache


def _set_attention(model: PreTrainedModel) -> str:
    """Have a model attend as the engine needs it, and return the name of that implementation; none if it never does.

    Raises:
        UnsupportedModelError: attention classes of the model's own choose their keys and masks themselves.
    """
    if not attends(model):
        return ""
    if model.device.type == "cuda":
        attention.leave_out_cudnn()
    count_by_position(model)
    if biases_by_rank(model) and not model._supports_sdpa:
        return "eager"  # Bloom, which adds masks to its scores
    wanted = attention.NAME if model._supports_attention_backend else "sdpa"
    model.set_attn_implementation(wanted)
    found = model.config.get_text_config(decoder=True)._attn_implementation
    if found != wanted:
        advice = ["build it with attn_implementation='sdpa'"] if model._supports_sdpa else []
        raise UnsupportedModelError(f"has attention of its own ({found}) that cannot be set to {wanted}", *advice)
    return wanted


def _set_experts(model: PreTrainedModel) -> None:
    """Have experts in float64 run one by one: PyTorch's product of groups, transformers' choice, has no float64."""
    if model.dtype == torch.float64 and experts_of(model) == "grouped_mm":
        model.set_experts_implementation("eager")


@dataclass(frozen=True, slots=True, repr=False)
class Pair:
    """A target, a draft that proposes for it, and what they share.

    Attributes:
        target, draft: the models; None for a pair without a draft, whose drafter must be one that needs none.
        tokenizer: turns text into ids and back; None for models that know only ids.
        stop_token_ids: end a sequence unless the caller says otherwise.
        vocab_size: ids that both models know; logits beyond it are padding rows.
        name: preset or path.
        shape_bound: whether the target's numbers depend on the shape of a pass, beyond roundings.
        checkpoint: adds what the target's generation config does to logits to a prompt's own settings, given its tokens
            and its budget; None where there is no such config.
        unapplied: settings of the target's generation config that change what transformers' `generate` gives, and are
            not applied here; empty where there are none.
        head: proposes from the target's hidden states; None for a pair without one.
    """

    target: CausalLM
    draft: CausalLM | None
    tokenizer: Any = None
    stop_token_ids: frozenset[int] = frozenset()
    vocab_size: int = 0
    name: str = "pair"
    shape_bound: bool = False
    checkpoint: Callable[[Processing | None, list[int], int], Processing | None] | None = None
    unapplied: str = ""
    head: DraftHead | None = None

    def __repr__(self) -> str:
        parts = [name for name in ("draft", "head", "tokenizer") if getattr(self, name) is not None]
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Pair({self.name!r}: {', '.join(['target', *parts])}; {dtype} on {self.device})"

    @property
    def device(self) -> torch.device:
        """Where the target lives."""
        return self.target.kv_shape.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the target's cache."""
        return self.target.kv_shape.dtype

    def models(self, with_draft: bool = True) -> list[CausalLM]:
        """The target, and the draft if there is one and it is wanted."""
        return [self.target, *([self.draft] if self.draft is not None and with_draft else [])]

    def require_draft(self) -> CausalLM:
        """The draft.

        Raises:
            InputError: there is none.
        """
        if self.draft is None:
            others = [name for name, facts in DRAFTERS.items() if facts.draws is None or (self.head and name == "head")]
            raise InputError(f"the pair {self.name!r} has no draft: choose drafter {' or '.join(others)}, or load one")
        return self.draft

    def require_head(self) -> DraftHead:
        """The draft head.

        Raises:
            InputError: there is none.
        """
        if self.head is None:
            raise InputError(f"the pair {self.name!r} has no draft head: load one that was trained for its target")
        return self.head

    def require_plain_target(self) -> None:
        """Raise InputError if exact here would not be what transformers' `generate` gives."""
        require(
            not self.unapplied,
            f"the target's generation config sets {self.unapplied}, which transformers' generate applies and this "
            "engine does not: nothing here can be exact; remove it from generation_config.json to compare without it",
        )

    def require_steady(self, with_draft: bool) -> None:
        """Raise InputError unless passes can have one shape, and it fixes the bits of the target's numbers.

        `with_draft` says whether the draft runs.
        """
        stateful = any(model.kv_shape.states for model in self.models(with_draft))
        require(not stateful, f"shape_stable: {self.name} keeps recurrent states, which prompts of any length enter")
        if self.target.mixes_rows:
            raise InputError(
                f"shape_stable: the target of {self.name} computes tokens of all rows together where they have one "
                "expert: call pair.target.model.set_experts_implementation('batched_mm')"
            )

    def decode(self, token_ids: list[int]) -> str:
        """Text of generated tokens, without special ones.

        Raises:
            InputError: the pair has no tokenizer.
        """
        require(self.tokenizer is not None, f"the pair {self.name!r} has no tokenizer: tokens stay ids")
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))
