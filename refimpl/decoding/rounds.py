"""One round: its passes, then what the host makes of their decision."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl.core import kernels
from refimpl.core.records import RowOutcome, TokenLogprobs
from refimpl.core.sequence import Sequence
from refimpl.decoding.cached import CachedModel
from refimpl.decoding.drafters import Drafter
from refimpl.decoding.invariants import Checker
from refimpl.decoding.passes import Passes, Verified
from refimpl.decoding.prefill import Chunks, note_chunks, prefill_chunks
from refimpl.decoding.processors import Processors


@dataclass(frozen=True, slots=True)
class RoundContext:
    """What every round needs and no round changes.

    Attributes:
        target: model and layout.
        drafter: proposes, perhaps with a model and a layout of its own.
        passes: run the models.
        checker: looks at what a round has done.
        processors: of the rows' logits.
        logprobs: alternatives to report with the log-probability of every token, where a row does not say; None for no
            log-probabilities.
    """

    target: CachedModel
    drafter: Drafter
    passes: Passes
    checker: Checker
    processors: Processors
    logprobs: int | None = None

    @property
    def models(self) -> tuple[CachedModel, ...]:
        """Everything that holds K/V: the target, and the draft if there is one."""
        draft = self.drafter.cached
        return (self.target,) if draft is None else (self.target, draft)


def run_round(
    context: RoundContext, members: Seq[Sequence], chunks: Chunks = (), ahead: Seq[Sequence] = ()
) -> list[RowOutcome]:
    """Advance every unfinished member by at least one token, cache chunks of prompts, and draft ahead for other rows.

    The target caches chunks in its verify pass, if there is one and it can; the draft does before it drafts. So a
    member may be a row whose chunk is the last of its prompt.
    """
    beside = chunks if members and context.target.forward_packed else ()
    for cached in context.models[1:] if beside else context.models:
        fed = [chunk for chunk in chunks if cached.feeds(chunk.sequence)]
        prefill_chunks(cached, fed)
        note_chunks(cached, fed)
    return _advance(context, members, beside, ahead) if members else []


def _advance(context: RoundContext, members: Seq[Sequence], chunks: Chunks, ahead: Seq[Sequence]) -> list[RowOutcome]:
    """Draft, verify, accept, commit."""
    limits = [0 if m.finished else m.draft_limit for m in members]
    verified = context.passes.run(members, limits, chunks)
    table = _ToHost(verified.decision.table())
    context.passes.after(ahead)
    return _commit(context, members, verified, _on_host(table, verified, members, context.logprobs))


class _ToHost:
    """Values on their way to the host; what is launched after them need not be waited for."""

    def __init__(self, values: Tensor):
        self._arrived: torch.cuda.Event | None = None
        self._values = values
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def wait(self) -> Tensor:
        """The values, on the host."""
        if self._arrived:
            self._arrived.synchronize()
        return self._values


@dataclass(frozen=True, slots=True)
class _HostDecision:
    accepted: list[int]
    emitted: list[list[int]]
    logprobs: list[list[TokenLogprobs]] | None


def _on_host(table: _ToHost, verified: Verified, members: Seq[Sequence], logprobs: int | None) -> _HostDecision:
    """Wait for a decision and take the members' rows: one copy a round (two with log-probabilities)."""
    rows, logits, found = verified.rows, verified.logits, table.wait().tolist()
    found = [found[row] for row in rows]
    accepted, massless, emitted = [row[0] for row in found], [row[1] for row in found], [row[2:] for row in found]
    if any(massless):
        verified.decision.rows(_host_tensor(rows, logits.device)).require_mass([m.index for m in members])
    asked = [logprobs if m.logprobs is None else m.logprobs for m in members]
    tops = [top for top in asked if top is not None]
    if not tops:
        return _HostDecision(accepted, emitted, None)
    entries = _logprobs(logits[_host_tensor(rows, logits.device)], emitted, max(tops))
    return _HostDecision(accepted, emitted, [_cut(row, top) for row, top in zip(entries, asked, strict=True)])


def _logprobs(logits: Float[Tensor, "batch k1 vocab"], emitted: list[list[int]], top: int) -> list[list[TokenLogprobs]]:
    """Of each emitted token, and the `top` largest beside it: one copy to the host."""
    table = logits.double().log_softmax(dim=-1)
    chosen = table.gather(-1, _host_tensor(emitted, logits.device)[..., None])
    best = table.topk(top, dim=-1)
    found = torch.cat([chosen, best.values, best.indices.double()], dim=-1).tolist()
    return [
        [
            TokenLogprobs(token, own, tuple(zip(map(int, rest[top:]), rest[:top], strict=True)))
            for token, (own, *rest) in zip(row, numbers, strict=True)
        ]
        for row, numbers in zip(emitted, found, strict=True)
    ]


def _cut(entries: list[TokenLogprobs], top: int | None) -> list[TokenLogprobs]:
    """A row's entries with as many alternatives as it asks for; none where it asks for nothing."""
    return [] if top is None else [replace(entry, top=entry.top[:top]) for entry in entries]


def _commit(
    context: RoundContext, members: Seq[Sequence], verified: Verified, decision: _HostDecision
) -> list[RowOutcome]:
    """Append each row's tokens and tell both layouts what to keep."""
    kept = [kernels.num_kept(accepted) for accepted in decision.accepted]
    if context.target.layout.placement.commits_minimum:
        kept = [min(n for n, m in zip(kept, members, strict=True) if not m.finished)] * len(members)
    outcomes = [
        _commit_row(m, verified, decision.accepted[i], decision.emitted[i][: kept[i]], decision.logprobs, i)
        for i, m in enumerate(members)
        if not m.finished
    ]
    context.target.commit(members)
    if context.drafter.cached and verified.drafts.passes:
        context.drafter.cached.commit([m for i, m in enumerate(members) if i not in verified.drafts.skipped])
    if context.drafter.states:
        context.drafter.states.commit(members, kept)
    context.checker.after_commit(members, outcomes)
    context.processors.after_commit(members)
    return outcomes


def _commit_row(
    row: Sequence,
    verified: Verified,
    accepted: int,
    tokens: list[int],
    logprobs: list[list[TokenLogprobs]] | None,
    index: int,
) -> RowOutcome:
    seq_len, drafts, drafted = row.seq_len, verified.drafts, verified.drafts.lengths[index]
    passes = 0 if index in drafts.skipped else drafts.passes
    draft_lag = row.draft_lag + (drafts.caught_up[index] if drafts.caught_up else 0)
    kept = row.extend(tokens)
    row.note_drafts(drafted, accepted, kept)
    row.target_cached = row.seq_len - 1
    if passes:
        row.draft_cached = kernels.draft_cached_after(seq_len, passes, row.seq_len)
    return RowOutcome(
        sequence=row.index,
        seq_len=seq_len,
        draft_lag=draft_lag,
        k=verified.k,
        drafted=drafted,
        accepted=accepted,
        kept=kept,
        next_token="draft" if kept <= accepted else "bonus" if accepted == drafted else "recovered",
        finished=row.finished,
        tokens=tuple(tokens[:kept]),
        logprobs=tuple(logprobs[index][:kept]) if logprobs else (),
        looked_up=drafts.looked_up[index],
        draft_passes=passes,
        survival=tuple(drafts.survival[index]) if drafts.survival else (),
    )


def _host_tensor(values: list, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)
