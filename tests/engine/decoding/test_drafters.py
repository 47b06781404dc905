"""Every drafter gives the oracle's tokens; what is looked up is what stood there; wrong choices get one clear line."""

import contextlib
import dataclasses
import itertools
import random
from typing import get_args
from unittest.mock import Mock

import pytest
import torch

from refimpl import InputError, Request, generate, load_pair, make_pair
from refimpl.core.config import LAYOUTS, SCHEDULERS, make_config
from refimpl.core.drafting import DRAFTERS, DrafterName
from refimpl.core.records import RowOutcome
from refimpl.core.sequence import Sequence
from refimpl.core.stats import drafter_stats
from refimpl.decoding.acceptance import Proposal, RowNumbers
from refimpl.decoding.drafters import DRAFTER_MAKERS
from refimpl.decoding.drafters.base import Drafts
from refimpl.decoding.drafters.hybrid import HybridDrafter
from refimpl.decoding.drafters.lookup import lookup_drafts
from refimpl.decoding.drafters.model import ModelDrafter
from refimpl.decoding.sampling import RowKeys
from refimpl.drafting import NgramIndex
from refimpl.pairs.random_pairs import random_pair
from tests.outputs import tokens

METHODS = ["+".join(parts) for parts in itertools.product(LAYOUTS, SCHEDULERS)]
RULES = {"greedy": {}, "coupled": {"temperature": 0.5, "seed": 3}}
SETTINGS = {"max_new_tokens": 24, "num_speculative_tokens": 4, "stop_token_ids": [5]}
LOOKUP = [name for name, facts in DRAFTERS.items() if not facts.has_probabilities]
COPIES = "def total(values):\n    return sum(values)\n\n\ndef total("


def looked_up(result, drafter):
    return result.stats.drafters[DRAFTERS[drafter].lookup]


@pytest.mark.parametrize("vocab_size", [2, 3, 6, 20])
def test_an_index_finds_what_followed_before(vocab_size):
    """Of the latest place where most tokens agree, four at most; however the row was read."""
    rng = random.Random(vocab_size)
    for _ in range(60):
        row, index = [rng.randrange(vocab_size) for _ in range(rng.randrange(30))], NgramIndex()
        for end in sorted(rng.choices(range(len(row) + 1), k=5)):
            index.read(row[:end])
            assert index.propose(limit := rng.randrange(1, 9)) == slow_lookup(row[:end], limit)


def slow_lookup(row, limit):
    for n in (4, 3, 2):
        for end in range(len(row) - 1, n - 1, -1):
            if len(row) > n and row[end - n : end] == row[-n:]:
                return row[end : end + limit]
    return []


@pytest.fixture(scope="module")
def small():
    """A pair whose few tokens often repeat, ragged prompts, and what the oracle makes of them."""
    pair, rng = random_pair("gpt2", draft_noise=0.01, vocab_size=17), random.Random(0)
    prompts = [[rng.randrange(17) for _ in range(length)] for length in (1, 9, 9, 2, 14, 9, 5)]
    wanted = {
        rule: tokens(generate(pair, prompts, method="autoregressive", **SETTINGS, **given))
        for rule, given in RULES.items()
    }
    return pair, prompts, wanted


@pytest.mark.parametrize(
    ("method", "drafter", "rule"),
    [(*each, rule) for each, rule in zip(itertools.product(METHODS, LOOKUP), itertools.cycle(RULES), strict=False)],
)
def test_equal_to_the_oracle(small, method, drafter, rule):
    pair, prompts, wanted = small
    result = generate(pair, prompts, method=method, batch_size=3, drafter=drafter, **SETTINGS, **RULES[rule])
    assert tokens(result) == wanted[rule]
    assert looked_up(result, drafter).accepted > 0
    assert ("model" in result.stats.drafters) == (drafter == "hybrid")


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("method", ["exspec", "masked", "inplace"])
def test_kv_equal_to_a_fresh_forward_pass(small, method, drafter):
    pair, prompts, wanted = small
    result = generate(pair, prompts, method=method, batch_size=3, drafter=drafter, checks="oracle", **SETTINGS)
    assert tokens(result) == wanted["greedy"]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_equal_on_the_bundled_pair(temperature):
    """In float32; the prompt holds the answer."""
    pair, given = load_pair("tiny"), {"temperature": temperature, "max_new_tokens": 24}
    wanted = generate(pair, [COPIES, "import os"], method="autoregressive", **given)
    for drafter, method in zip(itertools.cycle(LOOKUP), ("exspec", "inplace", "masked+fifo", "rollback"), strict=False):
        found = generate(pair, [COPIES, "import os"], method=method, batch_size=2, drafter=drafter, **given)
        assert tokens(found) == tokens(wanted)
        assert looked_up(found, drafter).accepted > 0


def test_a_target_alone(small):
    pair, prompts, wanted = small
    alone = make_pair(pair.target.model, stop_token_ids=(), name="alone")
    both = generate(pair, prompts, method="inplace", drafter="ngram", **SETTINGS)
    result = generate(alone, prompts, method="inplace", drafter="ngram", **SETTINGS)
    assert tokens(result) == tokens(both) == wanted["greedy"]
    assert result.stats.kv_bytes == both.stats.kv_bytes
    assert generate(pair, prompts, method="inplace", **SETTINGS).stats.kv_bytes == 2 * result.stats.kv_bytes
    assert tokens(generate(alone, prompts, method="autoregressive", **SETTINGS)) == wanted["greedy"]
    with pytest.raises(InputError, match="the pair 'alone' has no draft: choose drafter ngram or suffix, or load one"):
        generate(alone, prompts, method="inplace", drafter="hybrid")


def test_a_target_is_loaded_alone():
    pair = load_pair("tiny", drafter="ngram")
    assert pair.draft is None
    assert generate(pair, [COPIES], drafter="ngram", max_new_tokens=8).stats.drafters["ngram"].drafted
    with pytest.raises(InputError, match="drafter 'ngram' runs no draft: leave some/draft out"):
        load_pair("some/target", "some/draft", drafter="ngram")


@pytest.mark.parametrize("drafter", [*LOOKUP, "head"])
def test_what_the_host_decides_is_not_recorded(drafter):
    with pytest.raises(
        InputError, match=f"cuda_graphs record passes, but drafter '{drafter}' with draft_budget 'fixed' decides on"
    ):
        make_config(method="inplace", cuda_graphs=True, drafter=drafter)


def test_a_row_is_offered_no_more_than_it_can_use(small):
    pair, _, _ = small
    prompts = [Request([3, 1, 4, 3, 1], 6, num_speculative_tokens=k) for k in (0, 1, 5)]
    result = generate(pair, prompts, method="inplace", drafter="ngram", stop_token_ids=())
    drafted = [[row.drafted for r in result.rounds for row in r.rows if row.sequence == i] for i in range(3)]
    assert set(drafted[0]) == {0}
    assert max(drafted[1]) <= 1
    assert max(drafted[2]) <= 5


def test_looked_up_drafts_say_so_and_are_as_wide_as_the_longest():
    drafts = lookup_drafts([[4, 9], [], [7]], torch.device("cpu"))
    assert (drafts.lengths, drafts.looked_up, drafts.passes) == ([2, 0, 1], [2, 0, 1], 0)
    assert drafts.proposal.looked_up.tolist() == [[True, True]] * 3
    assert [row[:n] for row, n in zip(drafts.proposal.tokens.tolist(), (2, 0, 1), strict=True)] == [[4, 9], [], [7]]


def test_no_position_is_left_of_drafts_that_are_cut_to_none():
    cut = Proposal(torch.tensor([[5, 6]]), torch.ones(1, 2, 9).double() / 9).cut(0)
    assert cut.tokens.shape == (1, 0)
    assert cut.probabilities is cut.looked_up is None


def test_a_token_of_any_id_may_be_looked_up():
    drawn = Proposal(torch.tensor([[5, 6, 7]]))
    found = drawn.overruled(torch.tensor([[0, -1, 1]]))
    assert found.tokens.tolist() == [[0, 6, 1]]
    assert found.looked_up.tolist() == [[True, False, True]]


class TestHybrid:
    """The draft runs if some row that can use drafts finds none, and is told what the other rows have found."""

    FOUND, NEW = [7, 1, 2, 9, 8, 7, 1, 2], [1, 2, 3]  # the first goes on with 9, 8, 7

    def draft(self, rows, limits):
        members = [Sequence(index, row, 9) for index, row in enumerate(rows)]
        limited = torch.tensor(limits)
        position = torch.zeros(len(rows), max(limits) + 1, dtype=torch.long)
        model = Mock(spec=ModelDrafter)
        model.draft.side_effect = lambda _, limits, numbers, given: Drafts(
            Proposal(given), limits, [0] * len(limits), max(limits)
        )
        drafter = HybridDrafter(model)
        return drafter, drafter.draft(members, limits, RowNumbers(RowKeys(limited, limited), position, limited)), model

    @pytest.mark.parametrize(
        ("rows", "limits", "lengths"),
        [([FOUND, FOUND], [3, 2], [3, 2]), ([FOUND, NEW], [2, 0], [2, 0]), ([NEW, NEW], [0, 0], [0, 0])],
    )
    def test_the_draft_rests_where_nothing_is_missing(self, rows, limits, lengths):
        _, drafts, model = self.draft(rows, limits)
        assert (drafts.lengths, drafts.looked_up, drafts.passes) == (lengths, lengths, 0)
        assert not model.draft.called

    def test_the_draft_is_given_what_was_found(self):
        _, drafts, model = self.draft([self.FOUND, self.NEW], [2, 3])
        assert (drafts.lengths, drafts.looked_up, drafts.passes) == ([2, 3], [2, 0], 3)
        assert model.draft.call_args.args[3].tolist() == [[9, 8, -1], [-1, -1, -1]]

    def test_a_row_that_has_left_is_forgotten(self):
        drafter, _, _ = self.draft([self.FOUND], [1])
        left, other = Sequence(0, self.FOUND, 9), Sequence(0, [5, 5, 5, 5], 9)
        drafter.forget(left)
        assert drafter.lookup._find(other, 2) == [5]


@contextlib.contextmanager
def counted_tokens(model):
    """What a model is fed: the number of tokens of each pass."""
    fed = []
    hook = model.model.register_forward_pre_hook(
        lambda _, args, kwargs: fed.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    yield fed
    hook.remove()


@pytest.mark.parametrize(
    "more", [{}, {"method": "exspec"}, {"method": "paged+continuous"}, {"cuda_graphs": True}], ids=str
)
def test_without_drafts_the_draft_neither_runs_nor_has_kv(llama, ragged_prompts, more):
    settings = {"num_speculative_tokens": 0, "max_new_tokens": 8, "batch_size": 3, "stop_token_ids": []} | more
    with counted_tokens(llama.draft) as fed:
        found = generate(llama, ragged_prompts, **settings)
    assert fed == []
    alone = generate(llama, ragged_prompts, **settings | {"drafter": "ngram", "cuda_graphs": False})
    assert (found.stats.kv_bytes, found.stats.num_prefix_hits) == (alone.stats.kv_bytes, alone.stats.num_prefix_hits)
    with counted_tokens(llama.draft) as fed:
        generate(
            llama, [*ragged_prompts, Request((5, 7), num_speculative_tokens=2)], **settings | {"cuda_graphs": False}
        )
    assert fed


def test_a_drafter_is_one_line_of_each_table():
    assert get_args(DrafterName) == tuple(DRAFTERS) == tuple(DRAFTER_MAKERS)


def test_offers_are_counted_by_drafter():
    row = RowOutcome(0, 9, 1, 4, 4, 3, 4, "recovered", False, looked_up=2, draft_passes=4)
    rows = [
        row,
        dataclasses.replace(row, accepted=1, kept=2),
        dataclasses.replace(row, looked_up=0, accepted=0, kept=1),
    ]
    stats = drafter_stats(rows)
    assert dataclasses.astuple(stats["model"]) == (3, 8, 1)
    assert dataclasses.astuple(stats["ngram"]) == (2, 4, 3)
    assert drafter_stats([]) == {}
