"""Seconds of a round, stage by stage: as the engine runs it, one cohort beside the other, or as the published code."""

from collections.abc import Sequence as Seq

from refimpl.core.sequence import MOST_LAG
from refimpl.placement import Move, are_neighbours, make_placement, pays_to_pack
from refimpl.scheduling import Chunk
from simulator.service.cost import CostModel, Fed
from simulator.service.proposals import Drafting, RoundProposals
from simulator.service.records import Request, Stages
from simulator.settings.scenario import Engine, Switches

Members = tuple[Request, ...]


# kind of move -> component of the cost
COMPONENT_OF = {"load": "concat", "grow": "concat", "realign": "realign", "compact": "compact"}


class Pricing:
    """The engine's rounds.

    Args:
        engine, switches: settings.
        cost: seconds of each component.
        drafting: what is drafted, where rows are not offered all that they can use.

    Attributes:
        placement: the layout's decisions.
        proposals: drafts of the latest round, from `drafting`.
        members: of the latest round.
        drafts, passes: of the latest round: drafts of the batch, and passes of the draft for them.
        tokens: that each of them feeds the target, on average.
        context: cached tokens that each of them is charged for in a pass.
        scattered: whether their slots are no neighbours, so that every pass over the pool copies their K/V.
        useless: tokens of a row's budget that cannot be drafted, because a round yields them anyway.
    """

    useless = 1
    members: Members = ()
    drafts = passes = 0
    tokens = 0.0
    context = 0
    scattered = False
    proposals: RoundProposals | None = None

    def __init__(self, engine: Engine, switches: Switches, cost: CostModel, drafting: Drafting | None = None):
        self.engine, self.switches, self.cost, self.k = engine, switches, cost, engine.num_speculative_tokens
        self.drafting, self.runs_draft = drafting, engine.drafting.uses_draft and self.k > 0
        self.placement = make_placement(engine.layout, engine.compaction_threshold)
        self.reads_own = cost.own_contexts and not self.placement.batch_columns(1)

    def num_drafts(self, live: Seq[Request]) -> int:
        """Drafts of the batch: the largest that some row can use."""
        k = self.k
        return k if live[0].left > k else min(k, max([row.left for row in live]) - 1)

    def price(self, mode: str, members: Members, live: Seq[Request], prefill_s: float, ahead: Members = ()) -> Stages:
        """Seconds of the stages of the coming round; sets `drafts` and `passes`.

        Args:
            mode: how the scheduler chose the members.
            members: of the round.
            live: those of them that have not finished.
            prefill_s: seconds of what was admitted for the round.
            ahead: rows that are drafted beside it.
        """
        if not members:
            self.drafts = self.passes = 0
            return Stages(prefill_s, 0.0, 0.0, 0.0, self.cost.point("host", 1, 1))
        if self.drafting is not None:
            self.proposals = self.drafting.propose(members)
            return self._price_proposals(members, self.proposals, prefill_s)
        k, rows, useless = self.num_drafts(live), len(members), self.useless
        realign_s, mean = self.begin(members, k + 1), 0.0
        if len(live) < rows or min([row.left for row in live]) - useless < k:
            mean = self._mean([min(k, row.left - useless) + 1 for row in live], rows, k + 1)
        self.tokens = mean or k + 1.0
        draft_s, verify_s, host_s = self.cost.passes_s(rows, k, k + 1, mean, self.context, self.scattered)
        self.drafts = self.passes = k
        return Stages(prefill_s, draft_s, verify_s, realign_s, host_s)

    def _price_proposals(self, members: Members, proposals: RoundProposals, prefill_s: float) -> Stages:
        """A round whose rows verify different numbers of drafts."""
        k, passes, rows = proposals.k, proposals.passes, len(members)
        realign_s = self.begin(members, k + 1)
        mean = self._mean([proposal.drafted + 1 for proposal in proposals.of.values()], rows, k + 1)
        self.tokens = mean or k + 1.0
        draft_s, verify_s, host_s = self.cost.passes_s(rows, passes, k + 1, mean, self.context, self.scattered)
        draft_s += self._catch_up_s(members, passes)
        self.drafts, self.passes = k, passes
        return Stages(prefill_s, draft_s + proposals.other_s, verify_s, realign_s, host_s)

    def _mean(self, counts: Seq[int], rows: int, span: int) -> float:
        """Tokens that a row feeds on average, where the verify pass leaves out the pads; 0 where it does not.

        Args:
            counts: tokens that each row feeds that has not finished; those that have feed pads only.
            rows: of the batch.
            span: tokens of the widest row.
        """
        packs = pays_to_pack([*counts, *[0] * (rows - len(counts))], span) and not self.switches.pad_prompts
        return max(1.0, sum(counts) / rows) if packs else 0.0

    def _catch_up_s(self, members: Members, passes: int) -> float:
        """Seconds in which the draft caches what rows have missed whose rounds it sat out, all but their last token."""
        behind = [row for row in members if not row.finished and row.draft_lag > MOST_LAG] if passes else []
        missed = [Fed(1, row.draft_lag - 1, row.seq_len - row.draft_lag) for row in behind]
        return self.cost.catch_up_s(missed) if missed else 0.0

    def begin(self, members: Members, span: int) -> float:
        """Place the members of a round that feeds `span` tokens a row; seconds of what moves for it."""
        before, move = self.members, self.placement.begin(members, span)
        if members != before:
            self.members = members
            self.scattered = self._copies(members)
        self.context = self._context(members) if self.reads_own else self.placement.width
        return self._move_s(move, before) if move else 0.0

    def _context(self, rows: Members) -> int:
        """Cached tokens that each of these rows is charged for: the mean of their own, or the most that one has."""
        lengths = [row.seq_len for row in rows]
        return round(sum(lengths) / len(lengths)) if self.reads_own else max(lengths)

    def _copies(self, members: Members) -> bool:
        """Whether passes copy what they read of the pool."""
        if self.placement.columns or self.reads_own:
            return False
        return self.placement.always_gathers or not are_neighbours([row.slot for row in members])

    def _move_s(self, move: Move, before: Members) -> float:
        """Seconds of a move, and of writing back what has not finished of the members before."""
        seconds = self.cost.gather_s(COMPONENT_OF[move.kind], len(move.shifts), self.placement.width)
        unsaved = len([row for row in before if not row.finished]) if move.kind == "load" else 0
        return seconds + (self.cost.point("split", unsaved, 0) if unsaved else 0.0)

    def regroup_s(self, rows: int, width: int) -> float:
        """Seconds of writing so many members back and gathering as many others."""
        return self.cost.gather_s("concat", rows, width) + self.cost.point("split", rows, 0)

    def prefill_s(self, rows: Seq[Request]) -> float:
        """Prefill of up to a batch of rows at a time, less a token each, what was found, and what is left to rounds.

        As in the engine, a row takes its place in a batch whether or not something of it is fed.
        """
        size, padded = self.engine.batch_size, self.switches.pad_prompts
        fed = [Fed(1, row.num_cached - row.num_prefix_hits - row.to_prefill, row.num_prefix_hits) for row in rows]
        return sum([self.cost.prefill_s(fed[i : i + size], padded=padded) for i in range(0, len(fed), size)], 0.0)

    def with_chunks(self, stages: Stages, chunks: Seq[Chunk[Request]], rows: int) -> Stages:
        """Seconds of a priced round with chunks of prompts: beside its rows, or in passes of their own."""
        prefill_s, draft_s, verify_s, realign_s, host_s = stages
        fed = [Fed(1, chunk.count, chunk.sequence.num_cached - chunk.sequence.to_prefill) for chunk in chunks]
        if rows:
            chunk_s, more_s = self.cost.beside(Fed(rows, self.tokens, self.context), fed)
            prefill_s, verify_s = prefill_s + (chunk_s if self.runs_draft else 0.0), verify_s + more_s
        else:
            prefill_s += self.cost.prefill_s(fed)
        return Stages(prefill_s, draft_s, verify_s, realign_s, host_s)


class PublishedPricing(Pricing):
    """Rounds with the departures that `Switches` describe, those of the published code among them."""

    def __init__(self, engine: Engine, switches: Switches, cost: CostModel, drafting: Drafting | None = None):
        super().__init__(engine, switches, cost, drafting)
        self.useless = 1 if switches.keep_bonus else 0  # without a bonus a round yields k tokens at most
        self.discards = switches.discard_mixed_caches and not engine.scheduler_facts.chunked

    def num_drafts(self, live: Seq[Request]) -> int:
        """Drafts of the batch: the largest or the smallest that its rows can use."""
        choose = max if self.switches.k_policy == "per_row" else min
        return max(0, min(self.k, choose([row.left for row in live]) - self.useless))

    def price(self, mode: str, members: Members, live: Seq[Request], prefill_s: float, ahead: Members = ()) -> Stages:
        """As the engine's, and what the switches add to a round that has members."""
        stages = super().price(mode, members, live, prefill_s)
        if not members:
            return stages
        rows, width, draft_s = len(members), self.context, stages.draft_s
        if self.drafts and not self.switches.draft_cache:
            draft_s = self._uncached_draft_s(rows, self.drafts, width)
        elif self.switches.k_policy == "batch_min":  # a row near its end may keep the draft from running
            draft_s += self._catch_up_s(members, self.passes)
        realign_s = self._moves(mode, rows, stages.realign_s, width)
        prefill_s += self._late_prefill(live)
        return stages._replace(prefill_s=prefill_s, draft_s=draft_s, realign_s=realign_s)

    def _uncached_draft_s(self, rows: int, k: int, width: int) -> float:
        """The first pass of the draft feeds the whole rows, k - 1 more a token each."""
        first_s = self.cost.point("draft_prefill", rows, width)
        return first_s + (self.cost.line("draft", rows, k - 1).at(width) if k > 1 else 0.0)

    def _moves(self, mode: str, rows: int, realign_s: float, width: int) -> float:
        switches = self.switches
        if switches.free_realign:
            return 0.0
        if switches.copy_groups and mode == "grouped" and realign_s == 0:
            realign_s = self.regroup_s(rows, width)
        if mode == "static" or (realign_s > 0 and mode != "grouped"):  # the published static batch does it every round
            realign_s += (6 * rows + 2) * switches.realign_layers * switches.realign_read_s
        gathers = 2 if mode == "grouped" else 2 * rows + 2
        return realign_s + (gathers + rows) * switches.realign_layers * switches.copy_launch_s

    def prefill_s(self, rows: Seq[Request]) -> float:
        """Of admitted rows; where a mixed batch loses its caches, they are prefilled in their first round instead."""
        return 0.0 if self.discards else super().prefill_s(rows)

    def _late_prefill(self, live: Seq[Request]) -> float:
        """Prefill of a whole batch of which some row has no cache: the published code drops those of the others."""
        if not self.discards or all(row.has_state for row in live):
            return 0.0
        for row in live:
            row.has_state = True
        return super().prefill_s(live)


class OverlappedPricing(Pricing):
    """Rounds of two cohorts: one is verified and committed while the draft proposes for the other.

    On two devices the draft runs beside verification and host. On one it runs behind the verify pass, beside the host.
    `contention` is the share of the second in a round's seconds. What counts as drafting is the part of them that
    verification and host do not cover.
    """

    drafted: Members = ()  # rows that were drafted ahead

    def price(self, mode: str, members: Members, live: Seq[Request], prefill_s: float, ahead: Members = ()) -> Stages:
        """As the engine's; drafts are paid for in the round that makes them."""
        ahead_s = self._ahead_s(ahead) if ahead else 0.0
        stages = super().price(mode, members, live, prefill_s)
        verify_s, host_s = stages.verify_s, stages.host_s
        draft_s = 0.0 if members == self.drafted else stages.draft_s
        self.drafted = ahead
        beside_s, behind_s = max(ahead_s, verify_s + host_s), verify_s + max(ahead_s, host_s)
        draft_s += beside_s + self.engine.contention * (behind_s - beside_s) - verify_s - host_s
        return stages._replace(draft_s=draft_s)

    def _ahead_s(self, rows: Members) -> float:
        """Seconds of drafting for rows that run in the next round."""
        width, scattered = self._context(rows), self._copies(rows)
        proposals = self.drafting.propose(rows) if self.drafting else None
        passes = proposals.passes if proposals else self.num_drafts(rows)
        draft_s = self.cost.line("draft", len(rows), passes, scattered).at(width) if passes else 0.0
        return draft_s + self._catch_up_s(rows, passes) + (proposals.other_s if proposals else 0.0)


class RecordedPricing(Pricing):
    """Recorded rounds: every row of the pool drafts k tokens and feeds them, whether or not it can use them.

    A budget may choose another k for each round.

    Attributes:
        pool_rows: of an engine that is given all requests at once, those of its first round; else a whole batch.
    """

    pool_rows = 0

    def price(self, mode: str, members: Members, live: Seq[Request], prefill_s: float, ahead: Members = ()) -> Stages:
        """Of as many rows and drafts in each round."""
        if not members:
            return super().price(mode, members, live, prefill_s)
        k = self.k
        if self.drafting is not None:
            self.proposals = self.drafting.propose(members)
            k = self.proposals.k
        realign_s, self.pool_rows = self.begin(members, k + 1), max(self.pool_rows, len(members))
        draft_s, verify_s, host_s = self.cost.passes_s(self.pool_rows, k, k + 1, 0.0, self.placement.width, False)
        draft_s += self._catch_up_s(members, k)
        self.tokens, self.drafts, self.passes = k + 1.0, k, k
        return Stages(prefill_s, draft_s, verify_s, realign_s, host_s)


def make_pricing(
    engine: Engine, switches: Switches, cost: CostModel, drafting: Drafting | None = None, *, offline: bool = False
) -> Pricing:
    """The engine's pricing, of its execution; that of the published code where a switch is changed.

    With switches that change no seconds, the latter prices rounds as the former does. `offline`: all requests are there
    at the start.
    """
    same = switches == Switches()
    kind = OverlappedPricing if engine.execution == "overlapped" else Pricing if same else PublishedPricing
    if engine.cuda_graphs:
        recorded = RecordedPricing(engine, switches, cost, drafting)
        recorded.pool_rows = 0 if offline else engine.batch_size
        return recorded
    return kind(engine, switches, cost, drafting)
