"""Grammars: what llguidance allows, what is drafted and verified under it, and what is said of those that cannot be."""

import json
import random
import sys
from dataclasses import replace
from functools import cache

import pytest
import torch

from refimpl import InputError, InvariantViolation, Request, generate, stream
from refimpl.decoding.grammars import GrammarProcessor, matcher_maker
from refimpl.decoding.passes import EagerPasses
from refimpl.faults import FAULTS
from refimpl.models.table_model import Letters
from refimpl.pairs.random_pairs import random_pair
from refimpl.selfcheck.state_machine import StateMachine
from tests.commands import run_cli
from tests.outputs import tokens

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["class", "def", 3]},
        "parts": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "parts"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
CHOICES = ["yes", "yesterday", "no", "nobody", "a b\n|.*"]
IN_TURN = StateMachine([dict.fromkeys(range(i, 61, 3), (i + 1) % 3) for i in range(3)], (), 61)  # every third token
RUNS = {
    "eqspec": {},
    "exspec": {"drafter": "hybrid"},
    "masked+fifo": {"drafter": "ngram"},
    "rollback": {"temperature": 1.0},
    "inplace+continuous": {"drafter": "head"},
    "paged": {"execution": "overlapped", "temperature": 1.0},
}


@pytest.fixture(scope="module")
def pair():
    return random_pair("llama", draft_noise=0.02)


def test_a_choice_allows_what_goes_on_with_one_of_its_texts(tiny):
    """Compared with all that the vocabulary spells, along random walks that go back now and then.

    Where one character is left to come, llguidance allows the token alone that the tokenizer would take.
    """
    pieces = [tiny.tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in range(tiny.vocab_size)]
    new_matcher = matcher_maker({"choice": CHOICES}, tiny.tokenizer, tiny.vocab_size)
    matcher, rng, read = new_matcher(), random.Random(3), []
    for _ in range(300):
        text, fresh = "".join(pieces[token] for token in read), new_matcher()
        spelt = [t for t, piece in enumerate(pieces) if piece and any(c.startswith(text + piece) for c in CHOICES)]
        found = matcher.allowed().nonzero()[0].tolist()
        free = len({pieces[token][0] for token in spelt}) != 1
        assert found == spelt if free else found and set(found) <= set(spelt), (text, found, spelt)
        assert matcher.can_end == (text in CHOICES)
        assert fresh.advance(read) == len(read)
        assert (fresh.allowed() == matcher.allowed()).all()
        back = rng.randrange(not spelt, len(read) + 1) if not spelt or rng.random() < 0.3 else 0
        matcher.roll_back(back)
        read = read[: len(read) - back] + ([] if back else [rng.choice(spelt)])
        assert matcher.advance([*read[len(read) - (not back) :], tiny.vocab_size - 1]) == (not back)


def parsed(text):
    """What the schema allows, as Python has it."""
    found = json.loads(text)
    assert list(found) == ["name", "kind", "parts"]
    assert len(found["name"]) <= 12
    assert found["kind"] in SCHEMA["properties"]["kind"]["enum"]
    assert all(type(part) is int and 0 <= part <= 99 for part in found["parts"])
    return found


@pytest.fixture(scope="module")
def one_by_one(tiny, bundled_prompts):
    """Requests, and the tokens of each, decoded alone."""

    @cache
    def decode(count, temperature):
        texts = [tiny.tokenizer(text)["input_ids"][: 5 + i] for i, text in enumerate((bundled_prompts * 9)[:count])]
        requests = [*(Request(text, 64, grammar={"json_schema": SCHEMA}) for text in texts), Request(texts[0], 12)]
        return requests, tokens(generate(tiny, requests, method="autoregressive", temperature=temperature, seed=5))

    return decode


@pytest.mark.parametrize("count", [4, pytest.param(64, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("method", RUNS)
def test_every_output_parses_and_is_that_of_decoding_one_by_one(tiny, one_by_one, method, count):
    requests, alone = one_by_one(count, RUNS[method].get("temperature", 0.0))
    found = generate(tiny, requests, method=method, batch_size=4, seed=5, **RUNS[method])
    assert tokens(found) == alone
    ended = [parsed(s.text) for s in found.sequences[:-1] if s.stop_reason == "stop"]
    assert len(ended) >= 0.9 * count
    assert found.stats.acceptance.accepted > 0


@pytest.mark.parametrize("method", RUNS)
def test_no_token_is_verified_that_the_grammar_forbids(pair, monkeypatch, method):
    verify, drafted, looked_up = EagerPasses.verify, [], []

    def look(self, members, drafts, numbers, chunks):
        for row, length in enumerate(drafts.lengths):
            matcher, text = IN_TURN(), members[row].generated
            text = text + drafts.proposal.tokens[row, :length].tolist()
            assert matcher.advance(text) == len(text)
            drafted.append(length)
            looked_up.append(drafts.looked_up[row])
        return verify(self, members, drafts, numbers, chunks)

    monkeypatch.setattr(EagerPasses, "verify", look)
    requests = [Request([i, 1, 2] * 4, 12, 4, stop_token_ids=[], grammar=IN_TURN) for i in range(3)]
    generate(pair, requests, method=method, batch_size=2, **RUNS[method])
    assert sum(drafted) > 5
    assert any(looked_up) == (RUNS[method].get("drafter") in ("ngram", "hybrid"))


def test_what_is_looked_up_ends_where_the_grammar_forbids_it():
    processor = GrammarProcessor(IN_TURN, 0, [4, 6])
    assert processor.followed([3, 1], [2, 9, 2, 3]) == [2, 9]
    assert processor.followed([3, 1], [4]) == []  # a stop token, and the text is never whole
    ends = GrammarProcessor(StateMachine([{1: 1}, {}], (1,), 9), 0, [4, 6])
    assert ends.followed([], [1, 6, 6]) == [1, 6]
    assert ends.followed([], [4]) == []


def test_a_position_that_does_not_count_stays_as_it_is():
    scores, processor = torch.zeros(1, 9), GrammarProcessor(StateMachine([{1: 1}, {2: 0}], (1,), 9), 1, [4])
    for ids, allowed in (([7], {1}), ([7, 1], {2, 4}), ([7, 1, 2], {1})):
        assert set(processor(torch.tensor([ids]), scores).isfinite()[0].nonzero()[:, 0].tolist()) == allowed
    for ids in ([7, 1, 4], [7, 1, 4, 1], [7, 2], [7, 1, 1]):
        assert torch.equal(processor(torch.tensor([ids]), scores), scores)


def test_a_text_that_cannot_go_on_stops():
    """Although it is not whole."""
    machine = StateMachine([{3: 1}, {}], (), 61)
    pair = random_pair("llama")
    for method in ("autoregressive", "inplace"):
        found = generate(pair, [Request([1], 9, stop_token_ids=[5, 7], grammar=machine), [1]], method=method)
        assert tokens(found)[0] in ([3, 5], [3, 7])


@pytest.mark.parametrize("name", ["bonus-row-unmasked", "matcher-not-rolled-back"])
def test_a_matcher_in_another_state_is_noticed(pair, name):
    request = Request([3, 1], 24, grammar=IN_TURN)
    wanted = tokens(generate(pair, [request], method="autoregressive"))
    with FAULTS[name].injected():
        with pytest.raises(InvariantViolation, match="INV-25"):
            generate(pair, [request])
        assert tokens(generate(pair, [request], checks="off")) != wanted


def test_a_matcher_leaves_with_its_row_and_none_is_made_without_a_grammar(pair):
    requests = [Request([3, 1], 6, grammar=IN_TURN), Request([2], 20, repetition_penalty=1.1)]
    run = stream(pair, requests)
    kept, rows = run._engine.context.processors._grammars, set()
    while not run.done:
        run.run_one_round()
        rows |= {len(kept)}
    assert rows == {1, 0}


def test_a_line_of_a_prompt_file_brings_its_grammar(tmp_path, monkeypatch, capsys):
    file = tmp_path / "p.jsonl"
    lines = [{"prompt": "x", "grammar": {"choice": ["yes", "no"]}}, {"prompt": "x", "grammar": {"json_schema": False}}]
    for used, expected in ((lines[:1], 0), (lines, 2)):
        file.write_text("\n".join(map(json.dumps, used)))
        code, printed = run_cli(monkeypatch, capsys, "generate", "--prompts", str(file), "--json")
        assert code == expected
        if code:
            assert printed.err == "error: the grammar of prompt 1: Unsatisfiable schema: schema is false\n"
        else:
            assert json.loads(printed.out)["text"] in ("yes", "no")


WRONG = [
    ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 2}}, "Unsatisfiable schema: minimum"),
    ({"json_schema": {"allOf": [{"type": "string"}, {"type": "null"}]}}, "Unsatisfiable schema"),
    ({"json_schema": {"type": "nonsense"}}, "Invalid type: nonsense"),
    ({"regex": "a("}, ".*invalid regex .* unclosed group"),
    ({"regex": "[^\\x00-\\U0010FFFF]"}, "no text fulfils it"),
]


@pytest.mark.parametrize(("grammar", "message"), WRONG)
def test_a_grammar_that_cannot_be_fulfilled_names_its_request_and_leaves_the_others(tiny, grammar, message):
    run = stream(tiny, ["import"], max_new_tokens=4, max_model_len=64)
    with pytest.raises(InputError, match="^the grammar of prompt 2: " + message) as found:
        run.submit(["def", Request("x", grammar=grammar)])
    assert "\n" not in str(found.value)
    list(run)
    assert tokens(run.result()) == tokens(generate(tiny, ["import"], max_new_tokens=4))


def test_what_a_grammar_cannot_go_with_is_said(tiny, pair, monkeypatch):
    letters = {"choice": ["a"]}
    for own, message in (
        ({"min_new_tokens": 2}, r"prompt 1 has a grammar and \['min_new_tokens'\], which together can leave no token"),
        ({"bad_words_ids": [[1]]}, r"prompt 1 has a grammar and \['bad_words_ids'\]"),
        ({"stop_token_ids": []}, "prompt 1 has a grammar, and no stop token where its text could end"),
    ):
        with pytest.raises(InputError, match=message):
            generate(tiny, ["a", Request("b", grammar=letters, **own)])
    with pytest.raises(InputError, match="the grammar of prompt 1: the pair has no tokenizer"):
        generate(pair, [[1], Request([2], stop_token_ids=[3], grammar=letters)])
    with pytest.raises(InputError, match="prompt 1: llguidance does not read the tokenizer: Only fast tokenizers"):
        generate(replace(tiny, tokenizer=Letters()), [[1], Request([2], grammar=letters)])
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InputError, match=r"prompt 1: llguidance is not installed: pip install 'raggedspec\[grammar\]'"):
        generate(tiny, ["a", Request("b", grammar=letters)])


NO_GRAMMAR = ["json", {}, {"regex": 3}, {"choice": "ab"}, {"json_schema": "{}"}, {"lark": "a"}]
NO_GRAMMAR += [{"choice": []}, {"choice": [1]}, {"regex": "a", "choice": ["a"]}]


@pytest.mark.parametrize("grammar", NO_GRAMMAR)
def test_what_is_no_grammar_gets_one_line(grammar):
    with pytest.raises(InputError, match="grammar must have one of json_schema with a mapping, regex with"):
        Request([1], grammar=grammar)
