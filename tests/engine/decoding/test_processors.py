"""Processors of logits: every row of a batch gets what transformers' own `generate` gives it alone."""

import pytest
import torch
from transformers import LogitsProcessorList, NoRepeatNGramLogitsProcessor

from refimpl import InputError, InvariantViolation, Request, generate, stream
from refimpl.decoding.processors import Texts, ThinkingBudget
from refimpl.faults import FAULTS
from refimpl.pairs.random_pairs import random_pair
from tests.outputs import tokens

STOPS = [5, 17, 40]
THINKING = ThinkingBudget(start=9, end=7, budget=3)
SETTINGS = [
    {"repetition_penalty": 1.4},
    {},
    {"repetition_penalty": 0.7, "bad_words_ids": [[3], [9, 44], [9, 9, 2]]},
    {"logit_bias": {7: 0.3, 11: -2.0}, "min_new_tokens": 12},
    {"allowed_token_ids": range(0, 61, 3), "repetition_penalty": 2.0},
    {"logits_processors": [NoRepeatNGramLogitsProcessor(2), THINKING]},
    {"min_new_tokens": 3, "logit_bias": {5: 4.0, 17: 4.0}},
]
REQUESTS = [
    Request([3 + i, 1, 9, 9, 4 * i][: 2 + i % 4], 6 + 3 * i, 2 + i % 4, STOPS, **own) for i, own in enumerate(SETTINGS)
]
RUNS = {
    "eqspec": {},
    "exspec": {"drafter": "hybrid"},
    "masked+fifo": {"drafter": "ngram"},
    "rollback": {},
    "inplace": {"draft_budget": "capacity:4"},
    "inplace+continuous": {"drafter": "head"},
    "paged": {"execution": "overlapped"},
    "paged+continuous": {"joint_prefill": True},
}


@pytest.fixture(scope="module", params=["llama", "opt"])
def pair(request):
    return random_pair(request.param, draft_noise=0.02)


@pytest.fixture(scope="module")
def wanted(pair):
    return [stock(pair.target.model, request) for request in REQUESTS]


def stock(model, request):
    """What transformers makes of a request, greedily."""
    ids, allowed = torch.tensor([request.prompt]), request.allowed_token_ids
    plain = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": STOPS, "pad_token_id": 0}
    output = model.generate(
        ids,
        **plain,
        max_new_tokens=request.max_new_tokens,
        repetition_penalty=request.repetition_penalty,
        bad_words_ids=request.bad_words_ids and [list(word) for word in request.bad_words_ids],
        min_new_tokens=request.min_new_tokens,
        sequence_bias=request.logit_bias and [[[token], bias] for token, bias in request.logit_bias.items()],
        prefix_allowed_tokens_fn=allowed and (lambda *_: list(allowed)),
        logits_processor=LogitsProcessorList(request.logits_processors or []),
    )
    return output[0, len(request.prompt) :].tolist()


def test_the_oracle_gives_what_transformers_gives(pair, wanted):
    assert tokens(generate(pair, REQUESTS, method="autoregressive")) == wanted
    plain = tokens(generate(pair, [Request(r.prompt, r.max_new_tokens, 4, STOPS) for r in REQUESTS]))
    changed = [i for i, (a, b) in enumerate(zip(plain, wanted, strict=True)) if a != b]
    assert len(changed) >= 5
    assert 1 not in changed


@pytest.mark.parametrize("method", RUNS)
def test_a_mixed_batch_gives_what_transformers_gives_each_row_alone(pair, wanted, method):
    found = generate(pair, REQUESTS, method=method, batch_size=3, num_speculative_tokens=5, **RUNS[method])
    assert tokens(found) == wanted
    assert found.stats.acceptance.drafted > 10


def test_log_probabilities_are_those_before_processing(pair):
    """Of the target itself, whatever a processor makes of its logits."""
    request = Request([3, 1, 4], 6, logit_bias={8: 50.0}, logprobs=61)
    (found,) = generate(pair, [request]).sequences
    feed, fed = pair.target.fresh_row(), request.prompt
    assert found.token_ids == [8] * 6
    for entry in found.logprobs:
        assert entry.logprob == pytest.approx(float(feed(list(fed)).log_softmax(dim=-1)[8]), abs=1e-9)
        fed = [8]


def test_thinking_ends_with_its_budget():
    ids, scores = torch.tensor([[9, 4, 9, 1, 2]]), torch.zeros(1, 10)
    assert torch.equal(THINKING(ids, scores), scores)
    assert THINKING(torch.cat([ids, ids[:, :1] * 0 + 3], dim=1), scores).isfinite().nonzero().tolist() == [[0, 7]]
    for ended in ([9, 1, 7, 2, 2, 2], [1, 2, 3, 4]):
        assert torch.equal(THINKING(torch.tensor([ended]), scores), scores)


@pytest.mark.parametrize("name", ["processor-ignores-drafts", "processor-history-one-short", "processor-row-shifted"])
def test_a_processor_that_reads_another_text_is_noticed(pair, name):
    with FAULTS[name].injected(), pytest.raises(InvariantViolation, match="INV-23"):
        generate(pair, REQUESTS, batch_size=3)


def test_a_function_that_is_called_with_another_text_is_noticed(pair, monkeypatch):
    text = Texts.text
    monkeypatch.setattr(Texts, "text", lambda self, row, at: text(self, row, at)[:-1])
    with pytest.raises(InvariantViolation, match="INV-23"):
        generate(pair, REQUESTS[5:6])


def test_a_function_that_keeps_a_state_is_noticed(pair):
    calls = []

    def favour_one_more(ids, scores):
        calls.append(ids)
        return scores.index_fill(1, torch.tensor([len(calls) % 61]), 99.0)

    with pytest.raises(InvariantViolation, match="INV-23"):
        generate(pair, [Request([3, 1], logits_processors=[favour_one_more])])


def test_the_settings_of_another_row_change_tokens(pair, wanted):
    with FAULTS["parameters-of-row-zero"].injected():
        assert tokens(generate(pair, REQUESTS, batch_size=3)) != wanted


def test_what_is_known_of_a_row_leaves_with_it(pair):
    run = stream(pair, REQUESTS, batch_size=3)
    processors = run._engine.context.processors
    list(run)
    assert (processors._tables, processors._biases) == ({}, {})


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"logit_bias": {61: 1.0}}, r"prompt 1 has logit_bias, .* of token \[61\], outside the vocabulary of 61"),
        ({"bad_words_ids": [[1, 99]]}, r"prompt 1 has .* of token \[99\]"),
        ({"min_new_tokens": 9}, "prompt 1 has min_new_tokens 9, and a budget of 4"),
        ({"allowed_token_ids": [2], "bad_words_ids": [[2]]}, "prompt 1 leaves no token that can be generated"),
    ],
)
def test_what_cannot_be_done_for_a_request_names_it_and_leaves_the_others(pair, own, message):
    run = stream(pair, [[3, 1]], max_new_tokens=4, max_model_len=64)
    with pytest.raises(InputError, match=message.replace("prompt 1", "prompt 2")):
        run.submit([[5], Request([2], **own)])
    with pytest.raises(InputError, match=message):
        generate(pair, [[1], Request([2], **own)], max_new_tokens=4)
    list(run)
    assert tokens(run.result()) == tokens(generate(pair, [[3, 1]], max_new_tokens=4))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"repetition_penalty": 0}, "repetition_penalty must be a number > 0, not 0"),
        ({"frequency_penalty": 3}, r"frequency_penalty must be a number in \[-2, 2\], not 3"),
        ({"min_new_tokens": -1}, "min_new_tokens must be an integer ≥ 0, not -1"),
        ({"logit_bias": {"x": 1}}, "a token of logit_bias, .* must be an integer"),
        ({"logit_bias": {3: float("inf")}}, "logit_bias of token 3 must be finite"),
        ({"logit_bias": [3]}, "logit_bias must map token ids to numbers"),
        ({"bad_words_ids": [[]]}, r"bad_words_ids must be lists of token ids, not \(\)"),
        ({"allowed_token_ids": []}, "allowed_token_ids must not be empty"),
        ({"logits_processors": [3]}, "logits_processors must be functions"),
    ],
)
def test_impossible_settings_get_one_line(own, message):
    with pytest.raises(InputError, match=message):
        Request([1], **own)
