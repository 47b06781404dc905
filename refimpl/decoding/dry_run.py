"""Bytes that a run needs at its peak, counted on tensors without values: its own passes, of its largest shapes."""

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from refimpl.core.config import DecodeConfig
from refimpl.core.sequence import Sequence
from refimpl.decoding.drafters import Drafter, HybridDrafter, LookupDrafter
from refimpl.decoding.engine import Engine
from refimpl.decoding.passes import EagerPasses
from refimpl.models.adapter import HuggingFaceLM, Pair
from refimpl.placement import pays_to_pack


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that are in use at the same time.

    Attributes:
        weights_bytes: of the models that run; tied ones count once.
        kv_bytes: K/V pools of all models.
        state_bytes: recurrent states of all rows.
        logits_bytes: logits and distributions at the peak of the largest pass.
        activation_bytes: everything else there: hidden states, masks, copies of K/V and of recurrent states.
    """

    weights_bytes: int
    kv_bytes: int
    state_bytes: int
    logits_bytes: int
    activation_bytes: int

    @property
    def total_bytes(self) -> int:
        """All together."""
        return self.weights_bytes + self.kv_bytes + self.state_bytes + self.logits_bytes + self.activation_bytes


class StorageCounter(TorchDispatchMode):
    """Counts the bytes of all tensors that operations have made and that are still in use; memory inside of a kernel is
    not seen.

    A real number that is read from a tensor is 1: estimates of 1 stop no row, and rank no draft above another.

    Args:
        widths: of logits and distributions.
        apart: tensors that do not count.

    Attributes:
        peak: most bytes at a time, and how many of them were of logits and distributions.
    """

    def __init__(self, widths: Collection[int], apart: Seq[Tensor]):
        super().__init__()
        self._widths, self._apart = widths, {StorageWeakRef(t.untyped_storage()).cdata for t in apart}
        self._live: dict[int, tuple[StorageWeakRef, int, int]] = {}  # its bytes, and those of logits
        self.peak = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, then count."""
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_floating_point():
            return 1.0
        if func is torch.ops.aten._grouped_mm.default:  # of experts; without values it is known in bfloat16 alone
            result = args[0].new_empty(len(args[0]), args[1].shape[-1])
        else:
            result = func(*args, **(kwargs or {}))
        for tensor in (leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)):
            self._note(tensor)
        self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}
        self.peak = max(self.peak, (sum([e[1] for e in self._live.values()]), sum([e[2] for e in self._live.values()])))
        return result

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        reference, size = StorageWeakRef(storage), storage.nbytes()
        if reference.cdata not in self._apart and reference.cdata not in self._live:
            is_logits = tensor.dim() > 1 and tensor.shape[-1] in self._widths
            self._live[reference.cdata] = reference, size, size * is_logits


@dataclass(frozen=True, slots=True)
class DryRun:
    """A run on tensors without values: no memory is taken, and no pass computes anything.

    Attributes:
        pair: the models; their weights are only looked at.
        config: settings of the run.
        sequences: all of the run, before anything is cached.
    """

    pair: Pair
    config: DecodeConfig
    sequences: Seq[Sequence]

    def footprint(self) -> Footprint:
        """Peak of the longest prefill, and of rounds at the end that verify as many drafts as they have room for."""
        with self._counting() as (prefill, weights_bytes):
            engine = self._at_begin()
            engine.admit()
            kv_bytes, state_bytes = engine.kv_bytes, engine.state_bytes
        with self._counting() as (last_round, _):
            engine = self._at_end()
            engine.admit()
            last_round.peak = 0, 0  # that prefill is longer than any of the run
            self._run_passes(engine)
        peak, logits_bytes = max(prefill.peak, last_round.peak)
        beside = peak - kv_bytes - state_bytes - logits_bytes
        return Footprint(weights_bytes, kv_bytes, state_bytes, logits_bytes, beside)

    def stored_bytes(self) -> int:
        """Weights, K/V and recurrent states alone."""
        with self._counting() as (_, weights_bytes):
            engine = self._at_begin()
            return weights_bytes + engine.kv_bytes + engine.state_bytes

    @contextmanager
    def _counting(self) -> Iterator[tuple[StorageCounter, int]]:
        """Everything that is made inside has no values; also the bytes of the weights."""
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as fake:
            weights = [fake.from_tensor(tensor) for tensor in _weights(self.pair, self.config)]
            sizes = {StorageWeakRef(t.untyped_storage()).cdata: t.untyped_storage().nbytes() for t in weights}
            widths = {self.pair.vocab_size, *(model.vocab_size for model in self.pair.models())}
            with StorageCounter(widths, weights) as counter:
                copied = sum(model.layers.run.copied_bytes for model in _models(self.pair, self.config))
                yield counter, sum(sizes.values()) + copied

    def _at_begin(self) -> Engine:
        """An engine whose first batch has the longest prompts."""
        return self._engine([(row, row.seq_len) for row in sorted(self.sequences, key=lambda s: -s.seq_len)])

    def _at_end(self) -> Engine:
        """An engine whose first batch has the rows that end longest, just before a round with all their drafts."""
        left = 1 + min(self.config.num_speculative_tokens, max(s.max_new_tokens for s in self.sequences) - 1)
        longest = sorted(self.sequences, key=lambda s: -s.most_tokens)
        return self._engine([(row, max(1, row.most_tokens - left)) for row in longest])

    def _engine(self, rows: Seq[tuple[Sequence, int]]) -> Engine:
        """An engine of the first batch, built for all: rows of so many tokens, whatever they are."""
        k, first = self.config.num_speculative_tokens, self.config.resolved_batch_size
        copies = [
            Sequence(row.index, row.token_ids[:1] * length, row.most_tokens - length, k, sequence_id=row.sequence_id)
            for row, length in rows
        ]
        return Engine(self.pair, copies[:first], self.config, expected=copies[first:])

    def _run_passes(self, engine: Engine) -> None:
        """Those of rounds in a rectangle and packed, up to the decisions, which have no values either.

        A hybrid's draft that sat rounds out has cached its prompt alone. The first round of a head shows it states, and
        has no drafts.
        """
        plan, _ = engine.scheduler.choose()
        members, passes = sorted(plan.members, key=attrgetter("slot")), engine.context.passes
        assert isinstance(passes, EagerPasses)
        passes, limits = replace(passes, drafter=_willing(passes.drafter)), [m.draft_limit for m in members]
        if isinstance(passes.drafter, HybridDrafter):
            prompts = {row.index: row.seq_len - 1 for row in self.sequences}
            for member in members:
                member.draft_cached = min(prompts[member.index], member.seq_len - 1)
        if states := passes.drafter.states:
            passes.run(members, limits)
            states.commit(members, [1] * len(members))
        for drafts in (limits, _ragged(limits)):
            passes.run(members, drafts).decision.table()


def _willing(drafter: Drafter) -> Drafter:
    """The same where it makes as many drafts as it is asked for, with its draft if it has one."""
    if isinstance(drafter, HybridDrafter):
        return replace(drafter, lookup=LookupDrafter(partial(_Index, 0)))
    return LookupDrafter(partial(_Index, 1)) if isinstance(drafter, LookupDrafter) else drafter


def _ragged(limits: Seq[int]) -> list[int]:
    """No drafts for as many rows as it takes to leave the pads of their pass out."""
    drafts = list(limits)
    for row in range(1, len(drafts)):
        if not pays_to_pack([n + 1 for n in drafts], max(drafts) + 1):
            drafts[-row] = 0
    return drafts


@dataclass(frozen=True, slots=True)
class _Index:
    """Finds all the drafts that it is asked for, or none."""

    finds: int

    def read(self, token_ids: Seq[int]) -> None:
        """Nothing."""

    def propose(self, limit: int) -> list[int]:
        """Any tokens."""
        return [0] * (self.finds * limit)


def _models(pair: Pair, config: DecodeConfig) -> list[HuggingFaceLM]:
    """Those that run."""
    return [each for each in pair.models(config.drafting.uses_draft) if isinstance(each, HuggingFaceLM)]


def _weights(pair: Pair, config: DecodeConfig) -> list[Tensor]:
    """Parameters and buffers of the models that run, and of the head."""
    models: list[nn.Module] = [each.model for each in _models(pair, config)]
    if config.drafting.drafter == "head":
        models += [part for part in vars(pair.head).values() if isinstance(part, nn.Module)]
    return [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
