"""Requests with their own seed, stops, budget and number of drafts share a batch without noticing each other."""

import pytest

from refimpl import InputError, Request, generate, stream
from refimpl.core.sequence import StopStrings

METHODS = ["eqspec", "exspec", "masked+fifo", "rollback", "rollback+fifo", "inplace"]
SAMPLING = {"temperature": 0.9, "top_p": 0.95}
STOPS = list(range(0, 61, 9))
REQUESTS = [
    Request([3, 1, 4], max_new_tokens=14, num_speculative_tokens=0, seed=1, sequence_id=1),
    Request([1, 5], max_new_tokens=9, num_speculative_tokens=5, seed=1, sequence_id=2),
    Request([9, 2, 6, 5], max_new_tokens=1, num_speculative_tokens=5, seed=2, sequence_id=1),
    Request([3], max_new_tokens=12, num_speculative_tokens=2, seed=3, sequence_id=4, stop_token_ids=STOPS),
    Request([5, 8, 9, 7, 9], max_new_tokens=12, num_speculative_tokens=3, seed=4, sequence_id=5, stop_token_ids=[]),
    Request([2, 7], max_new_tokens=10, sequence_id=6, temperature=0.0, logprobs=0),
    Request([1, 8, 2], max_new_tokens=9, sequence_id=7, temperature=1.7, top_k=9, top_p=1.0, min_p=0.1, logprobs=3),
    Request([8, 1, 8], max_new_tokens=9, sequence_id=8, top_p=0.3),
]


@pytest.fixture(scope="module")
def alone(llama):
    """Each request decoded by the oracle, in a run of its own."""
    return [generate(llama, [r], method="autoregressive", **SAMPLING).sequences[0] for r in REQUESTS]


@pytest.mark.parametrize("method", METHODS)
def test_a_mixed_batch_equals_each_request_alone(llama, alone, method):
    result = generate(llama, REQUESTS, method=method, batch_size=4, checks="oracle", **SAMPLING)
    for found, expected in zip(result.sequences, alone, strict=True):
        assert (found.token_ids, found.stop_reason) == (expected.token_ids, expected.stop_reason)
        assert len(found.logprobs) == len(expected.logprobs)
        for mine, theirs in zip(found.logprobs, expected.logprobs, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-9)
            assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("method", [name for name in METHODS if not name.startswith("rollback")])
def test_a_mixed_batch_draws_what_each_request_draws_alone(llama, method, rule):
    settings = {"checks": "device", "acceptance": rule, **SAMPLING}
    found = generate(llama, REQUESTS, method=method, batch_size=4, **settings).sequences
    for sequence, request in zip(found, REQUESTS, strict=True):
        (alone,) = generate(llama, [request], method=method, **settings).sequences
        assert sequence.token_ids == alone.token_ids


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_request_may_be_colder_or_warmer_than_the_run(llama, temperature):
    """Under the rule that the run takes by itself, whichever that is."""
    rows = [Request([3, 1], 12), Request([3, 1], 12, temperature=0.9), Request([3, 1], 12, temperature=0.0)]
    wanted = [
        generate(llama, [Request([3, 1], 12, sequence_id=i)], method="autoregressive", temperature=t, seed=5).sequences[
            0
        ]
        for i, t in enumerate((temperature, 0.9, 0.0))
    ]
    assert wanted[1].token_ids != wanted[2].token_ids
    for settings in ({}, {"execution": "overlapped"}, {"draft_budget": "capacity:4"}):
        found = generate(llama, rows, temperature=temperature, seed=5, batch_size=3, **settings).sequences
        assert [s.token_ids for s in found] == [s.token_ids for s in wanted]


def test_a_submitted_request_brings_its_own(llama):
    run = stream(llama, [Request([3, 1], 12)], batch_size=2, max_model_len=64)
    run.submit([Request([9, 2], 12, temperature=1.5, top_k=5, seed=3)])
    list(run)
    wanted = Request([9, 2], 12, temperature=1.5, top_k=5, seed=3, sequence_id=1)
    assert (
        run.result().sequences[1].token_ids == generate(llama, [wanted], method="autoregressive").sequences[0].token_ids
    )


@pytest.mark.parametrize(
    ("own", "settings", "message"),
    [
        ({"temperature": 1.0}, {"acceptance": "greedy"}, "needs temperature 0, and prompt 1 has 1.0"),
        ({"top_k": 3}, {"cuda_graphs": True, "temperature": 1.0}, "prompt 1 has sampling of its own: cuda_graphs"),
        ({"logprobs": 62}, {}, "prompt 1 asks for 62 logprobs of a vocabulary of 61"),
    ],
)
def test_settings_that_a_run_cannot_give_a_request_name_it(llama, own, settings, message):
    with pytest.raises(InputError, match=message):
        generate(llama, [[1], Request([2], **own)], **settings)


def test_the_mix_covers_both_ends(alone):
    assert [s.stop_reason for s in alone][:5] == ["length", "length", "length", "stop", "length"]
    assert [len(s.token_ids) for s in alone][:3] == [14, 9, 1]


@pytest.mark.parametrize("method", ["autoregressive", "exspec", "inplace"])
def test_a_stop_string_is_found_across_token_boundaries(tiny, bundled_prompts, method):
    settings = {"method": method, "batch_size": 2, "stop_token_ids": [], "max_prompt_tokens": 16, "max_new_tokens": 16}
    free = generate(tiny, bundled_prompts[:2], **settings).sequences
    requests = []
    for prompt, sequence in zip(bundled_prompts[:2], free, strict=True):
        pieces = [tiny.tokenizer.decode([token]) for token in sequence.token_ids]
        at = next(i for i in range(3, 12) if pieces[i].strip() and pieces[i + 1].strip())
        requests.append(Request(prompt, stop_strings=["not in the text", pieces[at][-1] + pieces[at + 1][0]]))
    for request, sequence, stopped in zip(requests, free, generate(tiny, requests, **settings).sequences, strict=True):
        text, stop = tiny.tokenizer.decode(sequence.token_ids), request.stop_strings[1]
        assert len(stopped.token_ids) == _tokens_until(tiny, sequence.token_ids, stop)
        assert stopped.stop_reason == "stop"
        assert stopped.text == text.partition(stop)[0]


def test_stop_strings_are_looked_for_in_the_text_that_is_returned(tiny):
    """Special tokens are not part of it."""
    ids = [*tiny.tokenizer("foo")["input_ids"], tiny.tokenizer.eos_token_id, *tiny.tokenizer("bar")["input_ids"]]
    assert tiny.decode(ids) == "foobar"
    stops = StopStrings(("oob",), tiny.decode)
    assert stops.appear_in(ids)
    assert stops.cut(tiny.decode(ids)) == "f"
    assert not StopStrings((tiny.tokenizer.eos_token,), tiny.decode).appear_in(ids)


def _tokens_until(pair, token_ids, stop):
    return next(n for n in range(1, len(token_ids) + 1) if stop in pair.tokenizer.decode(token_ids[:n]))


def test_text_is_cut_at_the_earliest_stop_string(tiny, bundled_prompts):
    settings = {"max_new_tokens": 12, "stop_token_ids": [], "max_prompt_tokens": 16}
    text = generate(tiny, bundled_prompts[:1], **settings).sequences[0].text
    early, late = text[2:4], text[3:5]
    for stops in ([early, late], [late, early]):
        stopped = generate(tiny, bundled_prompts[:1], stop_strings=stops, **settings).sequences[0].text
        assert stopped == text[: min(text.find(early), text.find(late))]


@pytest.mark.parametrize("method", ["autoregressive", "exspec", "inplace"])
def test_a_stop_string_beats_the_budget_and_may_be_longer_than_eight_tokens(tiny, bundled_prompts, method):
    """It is completed by the last token of the budget."""
    settings = {"method": method, "stop_token_ids": [], "max_prompt_tokens": 16, "max_new_tokens": 16}
    free = generate(tiny, bundled_prompts[:1], **settings).sequences[0]
    stop = tiny.decode(free.token_ids)[len(tiny.decode(free.token_ids[:3])) :]
    assert len(free.token_ids) - 3 > 8
    stopped = generate(tiny, bundled_prompts[:1], stop_strings=[stop], **settings).sequences[0]
    assert stopped.token_ids == free.token_ids
    assert (free.stop_reason, stopped.stop_reason) == ("length", "stop")
    assert stopped.text == free.text.removesuffix(stop)


@pytest.mark.parametrize("method", ["autoregressive", "inplace"])
def test_a_seed_and_a_sequence_id_of_zero_count(llama, method):
    """Of the request, not those that would be taken in their place."""
    settings = {"method": method, "max_new_tokens": 24, "stop_token_ids": [], **SAMPLING}

    def tokens(*requests, seed):
        return [s.token_ids for s in generate(llama, requests, seed=seed, **settings).sequences]

    (own,) = tokens(Request([3, 1], sequence_id=4), seed=0)
    assert (
        tokens(Request([3, 1], seed=0, sequence_id=4), seed=5)
        == [own]
        != tokens(Request([3, 1], sequence_id=4), seed=5)
    )
    (first,) = tokens(Request([3, 1]), seed=5)
    assert tokens(Request([9], sequence_id=1), Request([3, 1], sequence_id=0), seed=5)[1] == first
    assert tokens(Request([9]), Request([3, 1]), seed=5)[1] != first
