"""Stop tokens, budgets, odd prompts, order of outputs."""

import pytest

from refimpl import generate, stream
from refimpl.core.config import NAMED_METHODS
from refimpl.core.sequence import Sequence

METHODS = [m for m in NAMED_METHODS if m != "autoregressive"]


def run(pair, prompts, method="inplace", **settings):
    settings = {"max_new_tokens": 16, "stop_token_ids": [], "batch_size": 4} | settings
    return [s.token_ids for s in generate(pair, prompts, method=method, **settings).sequences]


@pytest.mark.parametrize("method", METHODS)
def test_stop_at_every_offset_in_the_block(llama, ragged_prompts, method):
    free = run(llama, ragged_prompts[7:8], "autoregressive")[0]
    for offset, token in enumerate(free[:7]):
        expected = free[: free.index(token) + 1]
        assert run(llama, ragged_prompts[7:8], method, stop_token_ids=[token]) == [expected], offset


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("budget", [1, 2, 6, 7])
def test_budget_is_exact(llama, ragged_prompts, method, budget):
    assert [len(t) for t in run(llama, ragged_prompts, method, max_new_tokens=budget)] == [budget] * 11


@pytest.mark.parametrize("method", ["eqspec", "exspec", "inplace"])
def test_cancelled_sequences_leave_and_the_rest_is_unchanged(llama, ragged_prompts, method):
    settings = {"method": method, "max_new_tokens": 12, "stop_token_ids": [], "batch_size": 3}
    expected = [s.token_ids for s in generate(llama, ragged_prompts, **settings).sequences]
    events = stream(llama, ragged_prompts, **settings)
    seen = {i: [] for i in range(len(ragged_prompts))}
    for event in events:
        seen[event.index] += event.token_ids
        if event.index % 2:
            events.cancel(event.index)
    assert [seen[i] for i in range(0, 11, 2)] == expected[::2]
    assert all(seen[i] == expected[i][: len(seen[i])] and len(seen[i]) < 12 for i in range(1, 11, 2))


def test_without_stop_strings_nobody_looks_at_the_whole_output(monkeypatch):
    """Else a row of n tokens would take n² steps."""
    monkeypatch.setattr(Sequence, "generated", property(lambda _: pytest.fail("all generated tokens were copied")))
    sequence = Sequence(0, [1], 4, stop_token_ids=frozenset([9]))
    assert [sequence.extend([5, 6]), sequence.extend([9, 7])] == [2, 1]
    assert sequence.stop_reason == "stop"
