"""One server: the engine's scheduler in front, the cost of each round behind, one SimPy timeout per round."""

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

import simpy

from refimpl.core.errors import require
from refimpl.core.sequence import MOST_LAG
from refimpl.scheduling import Chunk, RoundPlan
from simulator.service.admission import require_room, room_bytes
from simulator.service.cost import CostModel, lognormal_factors
from simulator.service.pricing import make_pricing
from simulator.service.proposals import Drafting, note_drafts
from simulator.service.records import BEGUN, EventLog, Request, RoundLine
from simulator.service.schedulers import allocator_of, end_padded, pad_rows, scheduler_of
from simulator.service.streams import Purpose, Streams
from simulator.settings.scenario import Scenario

NOISE_BLOCK = 4096
SLOT = attrgetter("slot")


class Replica:
    """Serves requests round by round.

    Args:
        env: clock.
        scenario: settings.
        cost: seconds of each component.
        log: where rounds are written.
        streams: random numbers of the replication.
        number: which replica this is.
        drafting: what is drafted, where rows are not offered all that they can use.

    Attributes:
        since_s: since when it is paid for; None while it is not there.
        paid_s: begin and end of each time that it was.
    """

    def __init__(
        self,
        env: simpy.Environment,
        scenario: Scenario,
        cost: CostModel,
        log: EventLog,
        streams: Streams,
        number: int,
        drafting: Drafting | None = None,
    ):
        self.env, self.scenario, self.cost, self.log, self.number = env, scenario, cost, log, number
        self.switches, self.drafting = scenario.switches, drafting
        self.padded_key = scenario.switches.group_key == "padded_length"
        self.least_lag = 1 if scenario.runs_draft else 0
        self.marks_rows = self.padded_key or scenario.switches.pad_ends or drafting is not None or not self.least_lag
        self.block_size = scenario.engine.block_size
        self.noise = _noise(streams, number, cost.noise_cv if scenario.noise else 0.0)
        self.round_index = 0
        self.since_s: float | None = env.now
        self.paid_s: list[tuple[float, float]] = []
        require_room(scenario, cost)
        self.start()

    # --- it comes and goes ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve, with nothing cached."""
        scenario, cost, offline = self.scenario, self.cost, self.scenario.study.kind == "offline"
        self.pricing = make_pricing(scenario.engine, scenario.switches, cost, self.drafting, offline=offline)
        self.scheduler = scheduler_of(scenario.engine, scenario.switches)
        capacity = room_bytes(scenario, cost)
        capacity_tokens = None if capacity is None else capacity / max(cost.kv_bytes_per_token, 1e-12)
        self.scheduler.allocator = allocator_of(scenario.engine, capacity_tokens, stateful=cost.state_bytes_per_row > 0)
        self.paged = self.scheduler.allocator.num_blocks is not None
        self.kv_tokens = self.load_tokens = 0
        self.free_slots = list(range(self.scheduler.window_size))[::-1]
        self.begun: RoundLine | None = None  # the round that runs
        self.plan: RoundPlan[Request] | None = None  # of the latest round
        self.chosen: tuple[Request, ...] = ()  # members of the latest round, as the scheduler named them
        self.members: tuple[Request, ...] = ()  # the same, in the order of their slots
        self.closing = False
        self.wake = self.env.event()
        self.process = self.env.process(self._serve_until_failure())

    def _serve_until_failure(self) -> Generator[Any, Any, None]:
        with suppress(simpy.Interrupt):
            yield from self.serve()

    def fail(self) -> list[Request]:
        """Stop at once; all K/V are lost, and the round that runs.

        Returns:
            unfinished requests, those that ran first; they keep the tokens of earlier rounds
        """
        if self.process.is_alive:
            self.process.interrupt()
        self._cut_round()
        pool = self.scheduler.pool
        lost = [each for each in (*pool.window.values(), *pool.waiting) if not each.finished]
        for request in lost:
            request.lose_kv()
        return lost

    def _cut_round(self) -> None:
        """Write down the round that runs: as long as it ran, with no tokens."""
        if self.begun is not None and (whole_s := self.begun.noise * sum(self.begun.stages)):
            noise = self.begun.noise * (self.env.now - self.begun.start_s) / whole_s
            cut = self.begun._replace(noise=noise, live=0)
            self.log.note((*cut[:BEGUN], 0, 0, 0, *self._load(cut.rows)))
            self.round_index += 1
        self.begun = None

    def leave(self) -> None:
        """It is not paid for any more, if it was."""
        if self.since_s is not None:
            self.paid_s.append((self.since_s, self.env.now))
        self.since_s = None

    # --- requests come -------------------------------------------------------------------------------------------

    def submit(self, requests: list[Request]) -> None:
        """Take requests in; they queue for admission until their K/V fits."""
        for request in requests:
            self._require_room(request)
            request.replica, request.k, request.draft_lag = self.number, self.pricing.k, self.least_lag
            self.load_tokens += request.most_tokens
        self.scheduler.submit(requests)
        if not self.wake.triggered:
            self.wake.succeed()

    def _require_room(self, request: Request) -> None:
        blocks = self.scheduler.allocator.num_blocks
        holds = math.inf if blocks is None else blocks * self.block_size
        require(request.most_tokens <= holds, f"the pool holds {holds} tokens; a request needs {request.most_tokens}")

    def prefix_tokens(self, request: Request) -> int:
        """First tokens of a request that the cache holds."""
        return self.scheduler.allocator.prefix_tokens(request)

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run here."""
        return len(self.scheduler.pool.waiting) + len(self.scheduler.pool.window)

    def close(self) -> None:
        """No request will come any more."""
        self.closing = True
        if not self.wake.triggered:
            self.wake.succeed()

    # --- rounds --------------------------------------------------------------------------------------------------

    def serve(self) -> Generator[Any, Any, None]:
        """The server process: one timeout per round."""
        env, scheduler, noise, number = self.env, self.scheduler, self.noise, self.number
        pricing, price_of = self.pricing, self.pricing.price
        waiting, window, size = scheduler.pool.waiting, scheduler.pool.window, scheduler.window_size
        while True:
            if not window and not waiting:
                if self.closing:
                    return
                yield from self._idle()
                continue
            prefill_s = self._admit() if waiting and len(window) < size else 0.0
            plan, preempted = scheduler.choose()
            for request in preempted:
                self._preempt(request)
            members = self._in_pool_order(plan.members)
            live = [row for row in members if not row.finished] if plan.mode == "static" else members
            ahead = tuple(sorted(plan.ahead, key=SLOT)) if plan.ahead else ()
            stages = price_of(plan.mode, members, live, prefill_s, ahead)
            if plan.chunks:
                stages = pricing.with_chunks(stages, plan.chunks, len(members))
            factor, k, passes = next(noise), pricing.drafts, pricing.passes
            width, rows, mode = pricing.placement.width, len(members), plan.mode
            self.begun = RoundLine(number, env.now, factor, *stages, mode, rows, len(live), k, passes, width)
            self.plan = plan
            yield env.timeout(sum(stages) * factor)
            self._finish_round(plan, live, k, passes)

    def _in_pool_order(self, chosen: tuple[Request, ...]) -> tuple[Request, ...]:
        """The members by their slots in the pool, in which order the engine runs them."""
        if chosen != self.chosen:
            self.chosen, self.members = chosen, tuple(sorted(chosen, key=SLOT))
        return self.members

    def _idle(self) -> Generator[Any, Any, None]:
        if self.wake.triggered:
            self.wake = self.env.event()
        yield self.wake
        deadline = self.env.now + self.switches.wait_at_most_s
        while self.num_unfinished < self.switches.wait_for_rows and not self.closing and self.env.now < deadline:
            yield from self._wait(deadline - self.env.now)

    def _wait(self, most_s: float) -> Generator[Any, Any, None]:
        """Wait until a request comes, until none can come any more, or for so many seconds."""
        self.wake = self.env.event()
        yield self.wake | (self.env.timeout(most_s) if most_s < float("inf") else self.env.event())

    def _admit(self) -> float:
        entered, left = self.scheduler.admit(), self.scheduler.left_to_rounds
        for request in entered:
            request.admitted_s, request.last_round = self.env.now, self.round_index - 1
            request.slot = self.free_slots.pop()
            self.kv_tokens += request.seq_len
            self._note_hits(request)
            request.to_prefill = int(min(request.num_cached - request.num_prefix_hits, left))
        return self.pricing.prefill_s(entered)

    def _note_hits(self, request: Request) -> None:
        """Of a request that enters: tokens that must be cached, and those that are."""
        self.log.num_to_cache[self.number] += request.num_cached
        self.log.num_prefix_hits[self.number] += request.num_prefix_hits

    def _preempt(self, request: Request) -> None:
        """Free its slot. It keeps its tokens; they are prefilled when it is admitted again."""
        self.kv_tokens -= request.seq_len
        self.free_slots.append(request.slot)
        request.slot, request.draft_lag, request.has_state = -1, self.least_lag, False
        self.log.num_preemptions += 1

    def _finish_round(self, plan: RoundPlan[Request], live: Sequence[Request], k: int, passes: int) -> None:
        """Commit the round, write its line, and release the requests that have finished."""
        scheduler, begun = self.scheduler, self.begun
        assert begun is not None
        self.log.last_round_s = self.env.now
        tokens = self._advance(live, k, passes, plan.mode, begun.start_s) if live else (0, 0, 0)
        if live:
            self.pricing.placement.append(k + 1)
            if self.marks_rows:
                self._mark_rows(live, plan.mode)
        for chunk in plan.chunks:
            self._cache(chunk, begun.start_s)
        self.log.note(begun[:BEGUN] + tokens + self._load(begun.rows))
        self.begun = None
        self.round_index += 1
        for row in live if plan.mode == "static" else ():  # its client does not wait until the whole batch has finished
            if row.finished:
                row.answer()
        left = scheduler.complete(plan)
        if left:
            self._release(left)

    def _mark_rows(self, live: Sequence[Request], mode: str) -> None:
        """What a draft budget and the published code remember of the rows of a round."""
        if self.pricing.proposals is not None:
            note_drafts(live, self.pricing.proposals)
        if not self.least_lag:
            for row in live:  # no draft, so none that lags behind
                row.draft_lag = 0
        if self.switches.pad_ends and mode == "fallback":
            end_padded(live, self.env.now)
            self.log.end_rows(live)
        if self.padded_key:
            pad_rows(live, mode)

    def _cache(self, chunk: Chunk[Request], start_s: float) -> None:
        """A chunk of a prompt is cached, in a round begun at `start_s`."""
        request = chunk.sequence
        request.begin(start_s)
        request.to_prefill -= chunk.count
        request.longest_wait = max(request.longest_wait, self.round_index - request.last_round - 1)
        request.last_round = self.round_index
        if self.log.chunks is not None:
            self.log.chunks.append((self.number, self.round_index, request.sequence, chunk.count))

    def _load(self, rows: int) -> tuple[int, int, int]:
        """Slots in use with so many rows in the working batch, requests without K/V and with."""
        pool, slots = self.scheduler.pool, self.kv_tokens + rows * self.pricing.placement.columns
        if self.paged:
            slots = (self.scheduler.allocator.num_blocks_used or 0) * self.block_size
        return slots, len(pool.waiting), len(pool.window)

    def stop(self) -> None:
        """The clock has stopped: hand the round that runs to the log."""
        if self.begun is not None and self.plan is not None:
            for row in (*self.plan.members, *[chunk.sequence for chunk in self.plan.chunks]):
                row.begin(self.begun.start_s)
            self.log.cut_lines.append((*self.begun[:BEGUN], 0, 0, 0, *self._load(self.begun.rows)))

    def _advance(self, live: Sequence[Request], k: int, passes: int, mode: str, start_s: float) -> tuple[int, int, int]:
        """Commit each row's tokens of a round begun at `start_s`; return drafted, accepted and kept in all."""
        useless, note_end = self.pricing.useless, self.log.ends_before.append
        enough = k + useless  # tokens left with which a row can use all drafts of the batch
        now, index, row_log = self.log.last_round_s, self.round_index, self.log.rows
        proposals, latest = self.pricing.proposals, index - 1
        minimum = self._minimum(live, k) if self.pricing.placement.commits_minimum else k + 1
        all_drafted = all_accepted = all_kept = 0
        for row in live:
            left, generated, runs = row.left, row.generated, row.runs
            limit = k if left >= enough else left - useless
            accepted = runs[generated] if generated < len(runs) else row.next_run()
            if proposals:
                limit, accepted = proposals.of[row.sequence]
            if accepted > limit:
                accepted = limit
            if accepted == k and not useless and k:
                accepted = k - 1
            kept = accepted + 1
            if kept > minimum:
                kept = minimum
            total = generated + kept
            if total >= row.output_len:
                kept, total = row.output_len - generated, row.output_len
                row.finished, row.finished_s, row.runs = True, now, b""
            if row_log is not None:
                before = (self.number, index, mode, live.index(row), row.sequence, row.seq_len, row.draft_lag, k)
                row_log.append((*before, limit, accepted, kept, row.finished, row.slot))
            if not generated:
                row.begin(start_s)
                row.first_token_s = now
            waited, ended_s = latest - row.last_round, row.last_end_s
            if waited > row.longest_wait:
                row.longest_wait = waited
            if start_s > ended_s and start_s - ended_s > row.longest_gap_s:
                row.longest_gap_s = start_s - ended_s
            note_end(ended_s)
            row.generated, row.left, row.last_kept = total, left - kept, kept
            row.last_round, row.last_end_s = index, now
            row.seq_len += kept
            row.draft_lag = (MOST_LAG if kept > passes else 1) if passes else row.draft_lag + kept
            row.rounds += 1
            row.drafted += limit
            row.accepted += accepted
            all_drafted += limit
            all_accepted += accepted
            all_kept += kept
        self.kv_tokens += all_kept
        return all_drafted, all_accepted, all_kept

    def _minimum(self, live: Sequence[Request], k: int) -> int:
        """Tokens that every row commits under rollback."""
        if self.pricing.proposals:
            return min([proposal.accepted for proposal in self.pricing.proposals.of.values()]) + 1
        return min([min(row.next_run(), k, row.left - 1) for row in live]) + 1

    def _release(self, left: list[Request]) -> None:
        for request in left:
            self.kv_tokens -= request.seq_len
            self.free_slots.append(request.slot)
            self.load_tokens -= request.most_tokens
            self._leaves(request)

    def _leaves(self, request: Request) -> None:
        """This replica has done with a request."""
        request.answer()


def _noise(streams: Streams, number: int, cv: float) -> Iterator[float]:
    """Factors of one replica's rounds, drawn in blocks."""
    block = 0
    while True:
        if cv == 0:
            yield 1.0
            continue
        normal = streams.generator(Purpose.NOISE, block, number).standard_normal(NOISE_BLOCK)
        yield from lognormal_factors(normal, cv).tolist()
        block += 1
