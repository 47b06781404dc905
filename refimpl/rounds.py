"""One round: draft, verify, accept, commit."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from refimpl import kernels
from refimpl.acceptance import AcceptanceRule, Decision, Proposal
from refimpl.cached import CachedModel
from refimpl.invariants import Checker
from refimpl.recorded import RecordedRounds
from refimpl.records import RowOutcome, TokenLogprobs
from refimpl.sampling import RowKeys
from refimpl.sequence import Sequence
from refimpl.timing import StageTimer


@dataclass(frozen=True, slots=True)
class RoundContext:
    """What every round needs and no round changes.

    `window` fixes the tokens a row of every verify pass, if set. `recorded` runs both models' passes, if set.
    """

    target: CachedModel
    draft: CachedModel
    rule: AcceptanceRule
    checker: Checker
    timer: StageTimer
    vocab_size: int
    logprobs: int | None = None
    window: int | None = None
    recorded: RecordedRounds | None = None


def run_round(context: RoundContext, members: Seq[Sequence]) -> list[RowOutcome]:
    """Advance every unfinished member by at least one token."""
    limits = [0 if m.finished else m.draft_limit for m in members]
    recorded = context.recorded
    if recorded and recorded.covers(members):
        k, decision, logits = _replay(context, recorded, members, limits)
        rows = [m.slot for m in members]
        table = _ToHost(decision.table())
        with context.timer.stage("draft", ahead=True):
            recorded.draft_ahead()
    else:
        if recorded:
            recorded.forget_ahead()
        k, rows = max(limits), list(range(len(members)))
        decision, logits = _run(context, members, limits, k)
        table = _ToHost(decision.table())
    return _commit(context, members, limits, k, _on_host(table, rows, decision, logits, context.logprobs))


def _run(
    context: RoundContext, members: Seq[Sequence], limits: list[int], k: int
) -> tuple[Decision, Float[Tensor, "batch k1 vocab"]]:
    """Draft k tokens a row, verify, decide."""
    device = context.target.layout.shape.device
    keys = _row_keys(members, device)
    position = _host_tensor([[m.seq_len] for m in members], device) + torch.arange(k + 1, device=device)
    proposal = _draft(context, members, keys, position[:, :k])
    logits = _verify(context, members, proposal)
    return context.rule.decide(proposal, logits, keys, position, _host_tensor(limits, device)), logits


def _replay(
    context: RoundContext, recorded: RecordedRounds, members: Seq[Sequence], limits: list[int]
) -> tuple[int, Decision, Float[Tensor, "rows k1 vocab"]]:
    """Replay the recorded work, for every row of the pool; also the k that it ran with."""
    for cached in (context.target, context.draft):
        cached.layout.begin(cached.rows(members), span=0)
        context.checker.before_pass(members, cached.layout)
    k = recorded.load(members, limits)
    with context.timer.stage("record"):
        recorded.prepare()
    with context.timer.stage("draft"):
        recorded.draft()
    with context.timer.stage("verify"):
        return k, *recorded.verify()


def _draft(context: RoundContext, members: Seq[Sequence], keys: RowKeys, position: Int[Tensor, "batch k"]) -> Proposal:
    """Propose k tokens a row: the first pass feeds what the draft has not cached, each later one its own token."""
    batch, k = position.shape
    if k == 0:
        return Proposal(position.new_zeros(batch, 0))
    draft = context.draft
    lag = max(m.draft_lag for m in members if not m.finished)
    with context.timer.stage("realign"):
        draft.layout.begin(draft.rows(members), span=lag + k - 1)
    context.checker.before_kv_use(members, draft.layout, draft.model)
    steps: list[Proposal] = []
    with context.timer.stage("draft"):
        tokens, offset = _last_tokens(members, lag, position.device), -lag
        for step in range(k):
            block = draft.layout.block(tokens, offset)
            context.checker.before_forward(block, members, draft.layout, offset, [s.tokens for s in steps])
            logits = draft.forward(block, 1)[..., : context.vocab_size]
            steps.append(context.rule.propose(logits, keys, position[:, step : step + 1]))
            tokens, offset = steps[-1].tokens, step
    return Proposal.join(steps)


def _verify(context: RoundContext, members: Seq[Sequence], proposal: Proposal) -> Float[Tensor, "batch k1 vocab"]:
    """Run the target on the last committed token and the drafts; its logits choose k+1 tokens a row."""
    target, k = context.target, proposal.tokens.shape[1]
    window = context.window or k + 1
    with context.timer.stage("realign"):
        target.layout.begin(target.rows(members), span=window)
    context.checker.before_kv_use(members, target.layout, target.model)
    with context.timer.stage("verify"):
        last = _last_tokens(members, 1, proposal.tokens.device)
        tokens = torch.cat([last, proposal.tokens], dim=1)
        block = target.layout.block(pad(tokens, (0, window - k - 1)), -1)
        context.checker.before_forward(block, members, target.layout, -1, [block.of_members().tokens[:, 1:]])
        return target.forward(block, window)[:, : k + 1, : context.vocab_size]


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


def _on_host(
    table: _ToHost, rows: list[int], decision: Decision, logits: Float[Tensor, "any k1 vocab"], logprobs: int | None
) -> _HostDecision:
    """Wait for a decision and take the members' rows: one copy a round (two with log-probabilities)."""
    found = table.wait().tolist()
    found = [found[row] for row in rows]
    accepted, massless, emitted = [row[0] for row in found], [row[1] for row in found], [row[2:] for row in found]
    if any(massless):
        decision.rows(_host_tensor(rows, logits.device)).require_mass()
    if logprobs is None:
        return _HostDecision(accepted, emitted, None)
    mine = logits[_host_tensor(rows, logits.device)]
    return _HostDecision(accepted, emitted, _logprobs(mine, emitted, logprobs))


def _logprobs(logits: Float[Tensor, "batch k1 vocab"], emitted: list[list[int]], top: int) -> list[list[TokenLogprobs]]:
    table = logits.double().log_softmax(dim=-1)
    chosen = table.gather(-1, _host_tensor(emitted, logits.device)[..., None])[..., 0].tolist()
    best = table.topk(top, dim=-1)
    values, ids = best.values.tolist(), best.indices.tolist()
    return [
        [
            TokenLogprobs(token, chosen[i][j], tuple(zip(ids[i][j], values[i][j], strict=True)))
            for j, token in enumerate(row)
        ]
        for i, row in enumerate(emitted)
    ]


def _commit(
    context: RoundContext, members: Seq[Sequence], limits: list[int], k: int, decision: _HostDecision
) -> list[RowOutcome]:
    """Append each row's tokens and tell both layouts what to keep."""
    kept = [kernels.num_kept(accepted) for accepted in decision.accepted]
    if context.target.layout.placement.commits_minimum:
        kept = [min(n for n, m in zip(kept, members, strict=True) if not m.finished)] * len(members)
    outcomes = [
        _commit_row(m, limits[i], k, decision.accepted[i], decision.emitted[i][: kept[i]], decision.logprobs, i)
        for i, m in enumerate(members)
        if not m.finished
    ]
    context.target.layout.commit([m.target_cached for m in members])
    if k:
        context.draft.layout.commit([m.draft_cached for m in members])
    context.checker.after_commit(members, outcomes)
    return outcomes


def _commit_row(
    row: Sequence,
    drafted: int,
    k: int,
    accepted: int,
    tokens: list[int],
    logprobs: list[list[TokenLogprobs]] | None,
    index: int,
) -> RowOutcome:
    seq_len, draft_lag = row.seq_len, row.draft_lag
    kept = row.extend(tokens)
    row.target_cached = row.seq_len - 1
    if k:
        row.draft_cached = kernels.draft_cached_after(seq_len, k, row.seq_len)
    return RowOutcome(
        sequence=row.index,
        seq_len=seq_len,
        draft_lag=draft_lag,
        k=k,
        drafted=drafted,
        accepted=accepted,
        kept=kept,
        next_token="draft" if kept <= accepted else "bonus" if accepted == drafted else "recovered",
        finished=row.finished,
        tokens=tuple(tokens[:kept]),
        logprobs=tuple(logprobs[index][:kept]) if logprobs else (),
    )


def _last_tokens(members: Seq[Sequence], n: int, device: torch.device) -> Int[Tensor, "batch n"]:
    """Last n tokens of every row; rows that are shorter are padded on the left with token 0."""
    return _host_tensor([[0] * (n - m.seq_len) + m.token_ids[-n:] for m in members], device)


def _row_keys(members: Seq[Sequence], device: torch.device) -> RowKeys:
    seed, sequence = zip(*((m.seed, m.sequence_id) for m in members), strict=True)
    return RowKeys(_host_tensor(list(seed), device), _host_tensor(list(sequence), device))


def _host_tensor(values: list, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)
