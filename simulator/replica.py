"""One server: the engine's scheduler in front, the cost of each round behind, one SimPy timeout per round."""

from collections import deque
from collections.abc import Generator, Iterator
from operator import attrgetter
from typing import Any

import simpy

from refimpl.scheduling import GroupedScheduler, RoundPlan, Scheduler, SchedulingOptions, make_scheduler
from simulator.cost import CostModel, lognormal_factors
from simulator.errors import require
from simulator.movement import make_movement
from simulator.records import EventLog, Request
from simulator.scenario import Scenario, Switches
from simulator.streams import Purpose, Streams

NOISE_BLOCK = 4096
SLOT = attrgetter("slot")


class PaddedKeyScheduler(GroupedScheduler[Request]):
    """Groups as the published code does: by padded length, which the rows of a round have in common after it."""

    def group_key(self, sequence: Request) -> tuple[int, int]:
        """Padded length, and whether there is a cache."""
        return sequence.padded_len, int(sequence.rounds > 0)


class Replica:
    """Serves requests round by round.

    Args:
        env: clock.
        scenario: settings.
        cost: seconds of each component.
        log: where rounds are written.
        streams: random numbers of the replication.
        number: which replica this is.
    """

    def __init__(
        self, env: simpy.Environment, scenario: Scenario, cost: CostModel, log: EventLog, streams: Streams, number: int
    ):
        self.env, self.cost, self.log, self.number = env, cost, log, number
        self.engine, self.switches = scenario.engine, scenario.switches
        self.departs = scenario.switches != Switches()
        self.scheduler = self._make_scheduler()
        self.movement = make_movement(self.engine.layout, cost, self.engine.compaction_threshold)
        self.noise = self._noise(streams, cost.noise_cv if scenario.noise else 0.0)
        self.gate: deque[Request] = deque()
        capacity = scenario.service.kv_capacity_bytes
        self.capacity_tokens = None if capacity is None else capacity / max(cost.kv_bytes_per_token, 1e-12)
        self.reserved_tokens = self.kv_tokens = self.load_tokens = self.widest = 0
        self.free_slots = list(range(self.scheduler.window_size))[::-1]
        self.round_index = 0
        self.closing = False
        self.wake = env.event()
        self.process = env.process(self.serve())

    def _make_scheduler(self) -> Scheduler[Request]:
        engine, switches = self.engine, self.switches
        lean_static = engine.scheduler == "static" and not switches.zombies
        options = SchedulingOptions(
            refill=switches.refill and not lean_static,
            choice=switches.group_choice,
            partial_groups=switches.partial_groups,
            bucket_tokens=switches.bucket_tokens,
            estimate=self.seconds_per_token if switches.cost_aware else None,
        )
        name = "fifo" if lean_static else engine.scheduler
        if name == "grouped" and switches.group_key == "padded_length":
            window = engine.resolved_window_size
            return PaddedKeyScheduler(engine.batch_size, window, engine.aging_bound, options=options)
        return make_scheduler(name, engine.batch_size, engine.resolved_window_size, engine.aging_bound, options=options)

    # --- requests come -------------------------------------------------------------------------------------------

    def submit(self, requests: list[Request]) -> None:
        """Take requests in; they queue at the gate until their K/V fits."""
        for request in requests:
            request.replica = self.number
            self.load_tokens += request.prompt_len + request.left
        self.gate.extend(requests)
        self._pass_gate()
        if not self.wake.triggered:
            self.wake.succeed()

    def _pass_gate(self) -> None:
        if self.capacity_tokens is None:
            self.scheduler.submit(self.gate)
            self.gate.clear()
            return
        while self.gate:
            need = self.gate[0].prompt_len + self.gate[0].left
            fits = need <= self.capacity_tokens
            require(fits, f"service.kv_capacity_bytes holds {self.capacity_tokens:.0f} tokens; a request needs {need}")
            if self.reserved_tokens + need > self.capacity_tokens:
                return
            self.reserved_tokens += need
            self.scheduler.submit([self.gate.popleft()])

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run here."""
        return len(self.gate) + len(self.scheduler.pool.waiting) + len(self.scheduler.pool.window)

    def close(self) -> None:
        """No request will come any more."""
        self.closing = True
        if not self.wake.triggered:
            self.wake.succeed()

    # --- rounds --------------------------------------------------------------------------------------------------

    def serve(self) -> Generator[Any, Any, None]:
        """The server process: one timeout per round."""
        env, scheduler = self.env, self.scheduler
        while True:
            if scheduler.done:
                if self.closing:
                    return
                yield from self._idle()
                continue
            prefill_s = self._admit()
            plan = scheduler.select()
            members = tuple(sorted(plan.members, key=SLOT))  # the engine runs rows in pool order
            seconds, entry = self._price(plan.mode, members, prefill_s)
            yield env.timeout(seconds)
            self._finish_round(plan, members, entry)

    def _idle(self) -> Generator[Any, Any, None]:
        if self.wake.triggered:
            self.wake = self.env.event()
        yield self.wake
        deadline = self.env.now + self.switches.wait_at_most_s
        while self.num_unfinished < self.switches.wait_for_rows and not self.closing and self.env.now < deadline:
            self.wake = self.env.event()
            patience = self.env.timeout(deadline - self.env.now) if deadline < float("inf") else self.env.event()
            yield self.wake | patience

    def _admit(self) -> float:
        entered = self.scheduler.admit()
        if not entered:
            return 0.0
        for request in entered:
            request.admitted_s, request.last_round = self.env.now, self.round_index
            request.slot = self.free_slots.pop()
            self.kv_tokens += request.prompt_len
        return self._prefill_s(entered)

    def _prefill_s(self, rows: list[Request]) -> float:
        """The engine prefills up to a batch of rows at a time, padded to the longest prompt of those, less a token."""
        size, total = self.engine.batch_size, 0.0
        for start in range(0, len(rows), size):
            chunk = rows[start : start + size]
            tokens = max([row.seq_len for row in chunk]) - 1
            total += self.cost.point("prefill", len(chunk), tokens) if tokens else 0.0
        return total

    def _price(self, mode: str, members: tuple[Request, ...], prefill_s: float) -> tuple[float, tuple[Any, ...]]:
        """Seconds of the round to come, and its line of the log up to what the round will tell."""
        movement = self.movement
        live = [row for row in members if not row.finished] if mode == "static" else members
        k = self._num_drafts(live)
        realign_s = movement.begin(members, live, k + 1)
        width, rows = movement.width, len(members)
        if self.departs:
            realign_s = self._published_moves(mode, rows, realign_s, width)
            prefill_s += self._mixed_prefill(live)
        draft_s = self._draft_s(rows, k, width, movement.scattered)
        verify_s = self.cost.line("verify", rows, k + 1, movement.scattered)[width]
        host_s = self.cost.point("host", rows, k + 1)
        noise = next(self.noise)
        if width > self.widest:
            self.widest = width
        seconds = (prefill_s + draft_s + verify_s + realign_s + host_s) * noise
        stages = (prefill_s, draft_s, verify_s, realign_s, host_s)
        return seconds, (self.number, self.env.now, noise, *stages, mode, rows, len(live), k)

    def _num_drafts(self, live: Any) -> int:
        """Drafts of the batch: the largest that some row can use; the smallest under the published policy."""
        k = self.engine.num_speculative_tokens
        if not self.departs:
            most = max([row.left for row in live]) - 1
            return k if k < most else most
        for rows, limit in self.switches.k_by_load:
            if len(live) >= rows:
                k = min(k, limit)
        useless = 1 if self.switches.keep_bonus else 0  # without a bonus a round yields k tokens at most
        choose = max if self.switches.k_policy == "per_row" else min
        return max(0, min(k, choose([row.left for row in live]) - useless))

    def _draft_s(self, rows: int, k: int, width: int, scattered: bool) -> float:
        if k == 0:
            return 0.0
        seconds = self.cost.line("draft", rows, k, scattered)[width]
        return seconds if self.switches.draft_cache else seconds + self.cost.point("draft_prefill", rows, width)

    def _published_moves(self, mode: str, rows: int, realign_s: float, width: int) -> float:
        switches = self.switches
        if switches.free_realign:
            return 0.0
        if switches.copy_groups and mode == "grouped" and realign_s == 0:
            realign_s = self.cost.line("regroup", rows, 0)[width]
        if realign_s > 0 and mode != "grouped":  # rows of equal length need no realignment
            realign_s += (6 * rows + 2) * switches.realign_layers * switches.realign_read_s
        return realign_s

    def _mixed_prefill(self, live: Any) -> float:
        """Prefill of a batch that the published code strips of its caches because some of its rows have none yet."""
        if not self.switches.discard_mixed_caches:
            return 0.0
        fresh = sum([row.rounds == 0 for row in live])
        return self._prefill_s(list(live)) if 0 < fresh < len(live) else 0.0

    def _finish_round(self, plan: RoundPlan[Request], members: tuple[Request, ...], entry: tuple[Any, ...]) -> None:
        k = entry[-1]
        live = [row for row in members if not row.finished] if plan.mode == "static" else members
        drafted, accepted, kept = self._advance(live, k, plan.mode)
        self.movement.commit(live, k + 1)
        if self.departs:
            padded = max([row.seq_len for row in live])
            for row in live:
                row.padded_len = padded
        waiting = len(self.gate) + len(self.scheduler.pool.waiting)
        kv_tokens = self.kv_tokens + self.movement.working_tokens
        window = len(self.scheduler.pool.window)
        self.log.rounds.append((*entry, drafted, accepted, kept, self.movement.width, kv_tokens, waiting, window))
        self.round_index += 1
        left = self.scheduler.complete(plan)
        if left:
            self._release(left)

    def _advance(self, live: Any, k: int, mode: str) -> tuple[int, int, int]:
        """Commit each row's tokens; return drafted, accepted and kept in all."""
        histogram, useless = self.log.accepted_histogram, 1 if self.switches.keep_bonus else 0
        now, index, row_log = self.env.now, self.round_index, self.log.rows
        minimum = self._minimum(live, k) if self.movement.commits_minimum else k + 1
        all_drafted = all_accepted = all_kept = 0
        for at, row in enumerate(live):
            left, generated = row.left, row.generated
            limit = left - useless if left - useless < k else k
            accepted = row.runs[generated]
            if accepted > limit:
                accepted = limit
            if not useless and accepted == k and k:
                accepted = k - 1
            kept = accepted + 1 if accepted < minimum else minimum
            if kept >= row.output_len - generated:
                kept = row.output_len - generated
                row.finished, row.finished_s = True, now
            if not generated:
                row.first_token_s = now
            if row_log is not None:
                before = (self.number, index, mode, at, row.index, row.seq_len, row.cache_state, k)
                row_log.append((*before, limit, accepted, kept, row.finished, row.slot))
            row.generated = generated + kept
            row.seq_len += kept
            row.left = left - kept
            row.last_kept = kept
            row.cache_state = (2 if kept > k else 1) if k else row.cache_state + kept
            waited = index - row.last_round
            if waited > row.longest_wait:
                row.longest_wait = waited
            row.last_round = index
            row.rounds += 1
            row.drafted += limit
            row.accepted += accepted
            histogram[accepted] += 1
            all_drafted += limit
            all_accepted += accepted
            all_kept += kept
        self.kv_tokens += all_kept
        return all_drafted, all_accepted, all_kept

    def _minimum(self, live: Any, k: int) -> int:
        """Tokens that every row commits under rollback."""
        return min([min(row.runs[row.generated], k, row.left - 1) for row in live]) + 1

    def _release(self, left: list[Request]) -> None:
        for request in left:
            need = request.prompt_len + request.generated + request.left
            self.kv_tokens -= request.seq_len
            self.free_slots.append(request.slot)
            self.load_tokens -= need
            if self.capacity_tokens is not None:
                self.reserved_tokens -= need
            if request.on_finish is not None:
                request.on_finish()
        if self.gate:
            self._pass_gate()

    # --- helpers -------------------------------------------------------------------------------------------------

    def seconds_per_token(self, members: tuple[Request, ...]) -> float:
        """Estimate for the cost-aware choice: seconds of the round over the tokens it may be expected to yield."""
        k, rows = self._num_drafts(members), len(members)
        width = max([row.seq_len for row in members])
        lengths = {(row.seq_len, row.cache_state) for row in members}
        moves = self.engine.layout != "inplace" and members != getattr(self.movement, "members", ())
        seconds = self._draft_s(rows, k, width, False) + self.cost.line("verify", rows, k + 1)[width]
        if moves or (self.engine.layout != "inplace" and len(lengths) > 1):
            seconds += self.cost.line("regroup" if moves else "realign", rows, 0)[width]
        seen = sum([row.accepted for row in members]) + 1
        expected = rows + rows * k * seen / (sum([row.drafted for row in members]) + 2)
        return (seconds + self.cost.point("host", rows, k + 1)) / expected

    def _noise(self, streams: Streams, cv: float) -> Iterator[float]:
        block = 0
        while True:
            if cv == 0:
                yield 1.0
                continue
            normal = streams.generator(Purpose.NOISE, block, self.number).standard_normal(NOISE_BLOCK)
            yield from lognormal_factors(normal, cv).tolist()
            block += 1
