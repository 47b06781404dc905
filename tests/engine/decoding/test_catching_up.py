"""A draft that sat out rounds: it caches what was committed meanwhile as prompts are, and then drafts as ever."""

from itertools import count, product

import pytest

from refimpl import Request, generate, stream
from refimpl.core.config import LAYOUTS, SCHEDULERS
from refimpl.decoding import assembly
from refimpl.decoding import prefill as prefilling
from refimpl.decoding.passes import EagerPasses
from refimpl.models.table_model import table_pair
from refimpl.pairs.random_pairs import random_pair
from tests.outputs import tokens

METHODS = ["+".join(parts) for parts in product(LAYOUTS, SCHEDULERS)]
ALONE = {"draft_budget": "by_load:2=0"}  # two rows have no drafts, and a row alone has some
REQUESTS = [Request([1, 2, 3], 24), Request([4, 5], 60)]
SETTINGS = {"batch_size": 2, "window_size": 2, "num_speculative_tokens": 4, **ALONE}
BEHIND = 25  # tokens of the longer row that its draft has not cached when the other one has finished


@pytest.fixture(scope="module")
def sure():
    """A pair whose draft is the target: it is wrong only where its K/V are."""
    return random_pair("llama", draft_noise=0.0)


@pytest.fixture(scope="module")
def wanted(sure):
    return tokens(generate(sure, REQUESTS, method="autoregressive"))


@pytest.fixture
def widths(sure, monkeypatch):
    """Tokens a row of the draft's rectangles, which are those of rounds alone."""
    seen, forward = [], sure.draft.forward
    monkeypatch.setattr(sure.draft, "forward", lambda block, n: seen.append(block.tokens.shape[1]) or forward(block, n))
    return seen


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("step", [512, 7])
def test_it_drafts_as_if_it_had_never_rested(sure, wanted, monkeypatch, widths, method, step):
    monkeypatch.setattr(prefilling, "PREFILL_CHUNK_TOKENS", step)
    result = generate(sure, REQUESTS, method=method, checks="oracle", **SETTINGS)
    assert tokens(result) == wanted
    assert result.stats.acceptance.accepted == result.stats.acceptance.drafted > 0
    assert max(widths) == 2, "rows that lag by 1 or 2 tokens are fed no more"


@pytest.mark.parametrize("method", METHODS)
def test_it_goes_on_where_it_has_drafted_before(sure, wanted, monkeypatch, widths, method):
    """Four rounds with drafts and six without, in turn: what rectangles hold of the rows is not up to date any more."""
    rounds, budgeted = count(), EagerPasses.budgeted

    def in_turn(self, members, limits):
        return budgeted(self, members, limits if next(rounds) % 10 < 4 else [0] * len(limits))

    monkeypatch.setattr(EagerPasses, "budgeted", in_turn)
    result = generate(sure, REQUESTS, method=method, checks="oracle", batch_size=2, num_speculative_tokens=3)
    assert tokens(result) == wanted
    assert result.stats.acceptance.accepted == result.stats.acceptance.drafted > 0
    assert max(widths) == 2


@pytest.mark.parametrize("method", ["inplace", "paged+fifo", "masked+fifo", "realigned+fifo"])
def test_a_recurrent_draft_is_fed_no_token_twice(method):
    """The third row has sat out one round when the fourth joins it, which has sat out none."""
    pair = table_pair(recurrent=True)
    requests = [Request([1, 2], 1), Request([3], 1), Request([4, 5, 6], 9), Request([7, 8], 9)]
    settings = {"batch_size": 3, "window_size": 3, "num_speculative_tokens": 3, "draft_budget": "by_load:3=0"}
    wanted = generate(pair, requests, method="autoregressive").sequences
    result = generate(pair, requests, method=method, checks="oracle", **settings)
    assert [s.token_ids for s in result.sequences] == [s.token_ids for s in wanted]
    assert result.stats.acceptance.accepted == result.stats.acceptance.drafted > 0
    assert {row.draft_lag for r in result.rounds for row in r.rows if row.k} == {1, 2}
    assert result.header["recurrent_draft"], "a replay refuses it"


def test_a_round_says_how_far_the_draft_was_behind(sure):
    lags = [row.draft_lag for r in generate(sure, REQUESTS, method="inplace", **SETTINGS).rounds for row in r.rows]
    assert max(lags) == BEHIND
    assert lags[-1] <= 2


@pytest.mark.parametrize("method", ["masked+fifo", "realigned+fifo", "rollback+fifo"])
def test_it_takes_no_more_memory_than_was_computed(sure, monkeypatch, method):
    need, require_room = [], assembly.require_room
    monkeypatch.setattr(
        assembly, "require_room", lambda *sizes, **options: need.append(sizes[:2]) or require_room(*sizes, **options)
    )
    requests = [Request([1, 2, 3], 240, 0), Request([4, 5], 200, 0), Request([7] * 190, 40, 4)]
    run = stream(sure, requests, method=method, checks="off", batch_size=2, num_speculative_tokens=4)
    assert max(len(event.token_ids) for event in run) == (1 if "rollback" in method else 5)
    buffers = [each for layout in run._engine.layouts for each in (layout._buffer, layout._spare)]
    (num_slots, per_token), used = need[0], sum(each.numel() * each.element_size() for each in buffers)
    assert used + run._engine.kv_bytes <= num_slots * per_token


@pytest.mark.parametrize("settings", [{"num_speculative_tokens": 0}, SETTINGS], ids=["no drafts", "seldom drafts"])
def test_rows_whose_draft_rests_form_groups(sure, settings):
    """How far it is behind does not matter: it begins with a lag of 1, whatever it has missed."""
    requests = [Request([1] * n, 24) for n in range(1, 9)]
    stats = generate(sure, requests, method="exspec", **settings | {"batch_size": 2, "window_size": 8}).stats
    assert stats.num_grouped_rounds > stats.num_rounds / 3
