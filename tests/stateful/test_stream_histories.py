"""Requests come, are read and leave in any order; each has the tokens that it has alone, and nothing is lost."""

import asyncio
from contextlib import ExitStack
from functools import cache
from itertools import accumulate, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from refimpl import InputError, Request, generate, stream
from refimpl.decoding.engine import Engine
from refimpl.pairs.random_pairs import random_pair
from simulator.engine_runs.parity import check_parity
from tests.second_by_round import second_by_round

PAIR = random_pair("llama", draft_noise=0.01)
PROMPTS = [[1], [2, 3], [4, 5, 6], [7], [8, 9, 10, 11], [12, 13]]
METHODS = ["inplace", "eqspec", "exspec", "masked+fifo", "rollback", "paged", "paged+continuous", "inplace+continuous"]
RULES = [{}, {"temperature": 0.9, "seed": 5}, {"temperature": 1.0, "acceptance": "rejection"}]
SETTINGS = {
    "num_speculative_tokens": 3,
    "max_new_tokens": 6,
    "stop_token_ids": [2, 40],
    "logprobs": 1,
    "checks": "host",
}
GAPS_S = strategies.sampled_from([0.0, 0.0, 0.5, 3.0, 9.0])
RUN_ONE_ROUND = Engine.run_one_round
SOME = strategies.sampled_from(range(len(PROMPTS)))


@cache
def alone(prompt, index, method, rule):
    """The sequence by itself, by ordinary decoding where the rule allows that."""
    method = method if "acceptance" in RULES[rule] else "autoregressive"
    request = Request(PROMPTS[prompt], sequence_id=index)
    with mock.patch.object(Engine, "run_one_round", RUN_ONE_ROUND):
        return generate(PAIR, [request], method=method, **SETTINGS, **RULES[rule]).sequences[0]


def asked(prompt, arrival_s=0.0):
    """A request for it, with a priority that changes none of its tokens."""
    return Request(PROMPTS[prompt], arrival_s=arrival_s, priority=prompt % 3)


class Streamed(RuleBasedStateMachine):
    """A stream, and what is known of it from outside: what rounds have committed, what was read, who was cancelled."""

    @initialize(
        method=strategies.sampled_from(METHODS),
        rule=strategies.sampled_from(range(len(RULES))),
        known=strategies.lists(strategies.tuples(SOME, GAPS_S), min_size=1, max_size=4),
        one_by_one=strategies.booleans(),
    )
    def open(self, method, rule, known, one_by_one):
        self.method, self.rule = method, 0 if method == "rollback" else rule  # others' drafts may cut a row's there
        self.prompts, self.arrival_s = [prompt for prompt, _ in known], list(accumulate(gap for _, gap in known))
        self.num_known, self.began_s, self.events, self.cancelled = len(known), None, [], {}
        self.exits = ExitStack()
        self.clock = self.exits.enter_context(second_by_round())
        requests = [asked(p, s) for p, s in zip(self.prompts, self.arrival_s, strict=True)]
        settings = SETTINGS | RULES[self.rule] | {"batch_size": 2, "max_model_len": 16}
        self.run = stream(PAIR, iter(requests) if one_by_one else requests, method=method, **settings)

    def committed(self, index):
        rows = [row for record in self.clock.records for row in record.rows if row.sequence == index]
        return [token for row in rows for token in row.tokens]

    def seen(self, index):
        return [token for event in self.events if event.index == index for token in event.token_ids]

    def alone(self, index):
        return alone(self.prompts[index], index, self.method, self.rule)

    def elapsed_s(self):
        return 0.0 if self.began_s is None else self.clock.now_s - self.began_s

    def come(self, ended):
        """Those that have come for certain: rounds have seen them, or they were submitted."""
        come = [i for i in range(len(self.prompts)) if i >= self.num_known or self.committed(i)]
        return [i for i in come if (i in self.cancelled or self.committed(i) == self.alone(i).token_ids) == ended]

    @rule(prompts=strategies.lists(SOME, min_size=1, max_size=3))
    @precondition(lambda self: self.committed(self.num_known - 1))
    def submit(self, prompts):
        indices = self.run.submit([asked(prompt) for prompt in prompts])
        self.arrival_s += [self.elapsed_s()] * len(prompts)
        self.prompts += prompts
        assert indices == list(range(len(self.prompts)))[-len(prompts) :]

    @rule(data=strategies.data())
    @precondition(lambda self: self.come(ended=False))
    def cancel(self, data):
        index = data.draw(strategies.sampled_from(self.come(ended=False)))
        self.run.cancel(index)
        self.cancelled[index] = self.committed(index), self.seen(index)

    @rule(data=strategies.data())
    @precondition(lambda self: self.come(ended=True))
    def cancel_in_vain(self, data):
        self.run.cancel(data.draw(strategies.sampled_from(self.come(ended=True))))

    @rule(seconds=GAPS_S)
    def pass_time(self, seconds):
        self.clock.now_s += seconds

    @rule()
    def run_a_round(self):
        if self.run.done:
            with pytest.raises(InputError, match="the run has ended"):
                self.run.run_one_round()
        else:
            self.began_s = self.began_s or self.clock.now_s
            assert self.run.run_one_round() is self.clock.records[-1]

    @rule(count=strategies.integers(1, 4), asynchronously=strategies.booleans())
    def read(self, count, asynchronously):
        async def read_some():
            found = []
            async for event in self.run:
                found.append(event)
                if len(found) == count:
                    break
            return found

        self.began_s = self.began_s or self.clock.now_s
        for event in asyncio.run(read_some()) if asynchronously else islice(self.run, count):
            self.note(event)

    def note(self, event):
        assert event.token_ids
        assert event.index not in self.cancelled
        assert self.arrival_s[event.index] + 1 <= event.time_s <= self.elapsed_s()
        assert not self.events or self.events[-1].time_s <= event.time_s
        self.events.append(event)
        wanted = self.alone(event.index)
        assert event.stop_reason == (wanted.stop_reason if self.seen(event.index) == wanted.token_ids else None)

    def teardown(self):
        if hasattr(self, "run"):
            with self.exits:
                self.read(10**6, asynchronously=False)
                self.require_whole_result()

    def require_whole_result(self):
        """Who was cancelled has what it had, everybody else all."""
        result = self.run.result()
        assert self.run.num_finished == self.run.num_sequences == len(self.prompts) == len(result.sequences)
        for index, found in enumerate(result.sequences):
            wanted = self.alone(index)
            tokens, seen = self.cancelled.get(index, (wanted.token_ids,) * 2)
            assert (found.token_ids, self.seen(index)) == (tokens, seen)
            assert found.stop_reason == ("cancelled" if index in self.cancelled else wanted.stop_reason)
            assert [entry.token_id for entry in found.logprobs] == tokens
        assert result.stats.wall_s == len(result.rounds) == len(self.clock.records)
        if not self.cancelled:  # a replay cancels nobody
            with TemporaryDirectory() as folder:
                result.write_trace(Path(folder) / "run.ndjson")
                assert check_parity(Path(folder) / "run.ndjson").exact


def test_a_stream_gives_each_request_what_it_has_alone():
    cancelled = []

    class Counted(Streamed):
        def teardown(self):
            super().teardown()
            cancelled.append(len(getattr(self, "cancelled", ())))

    run_state_machine_as_test(Counted, settings=settings(stateful_step_count=15))
    assert sum(cancelled) >= 5
