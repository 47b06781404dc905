"""Stop tokens, budgets, odd prompts, order of outputs."""

import pytest

from refimpl import Request, generate, stream
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


def test_stop_beats_the_budget(llama, ragged_prompts):
    free = run(llama, ragged_prompts[:1])[0]
    budget = free.index(free[3]) + 1
    result = generate(llama, ragged_prompts[:1], max_new_tokens=budget, stop_token_ids=[free[3]])
    assert result.sequences[0].stop_reason == "stop"
    assert len(result.sequences[0].token_ids) == budget


def test_stop_token_in_the_prompt_does_not_stop(llama):
    prompt = [[2, 2, 0, 9, 2]]
    free = run(llama, prompt)[0]
    assert run(llama, prompt, stop_token_ids=[2]) == [free[: free.index(2) + 1] if 2 in free else free]


def test_outputs_come_back_in_input_order(llama, ragged_prompts):
    alone = [run(llama, [prompt], max_new_tokens=6)[0] for prompt in ragged_prompts]
    for method in METHODS:
        assert run(llama, ragged_prompts, method, batch_size=3, max_new_tokens=6) == alone


def test_each_request_has_its_own_wishes(llama, ragged_prompts):
    wishes = [
        Request(ragged_prompts[4], max_new_tokens=3),
        Request(ragged_prompts[5], num_speculative_tokens=0, max_new_tokens=12),
        Request(ragged_prompts[6], num_speculative_tokens=2, stop_token_ids=list(range(20))),
        ragged_prompts[7],
    ]
    for method in METHODS:
        assert run(llama, wishes, method) == run(llama, wishes, "autoregressive"), method


def test_stop_reason_and_generated_part_only(llama, ragged_prompts):
    result = generate(llama, ragged_prompts, max_new_tokens=9, stop_token_ids=[])
    assert {s.stop_reason for s in result.sequences} == {"length"}
    assert [s.num_prompt_tokens for s in result.sequences] == [len(p) for p in ragged_prompts]


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
