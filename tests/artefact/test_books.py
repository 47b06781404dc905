"""What the stage `books` records fits the engine. Its replayer needs Coq; that its listeners hear does not."""

from collections import Counter
from contextlib import nullcontext
from functools import partial

import pytest

from proofs.conformance import books, reach, runs
from proofs.conformance.borders import small_borders
from refimpl.faults import FAULTS
from refimpl.scheduling import GroupedScheduler
from refimpl.selfcheck.fraction_model import fraction_pair


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small borders, and a pair that is a `CausalLM` by its types, too."""
    pair = fraction_pair(runs.VOCAB_SIZE, seed=0)
    for module in (runs, reach):
        monkeypatch.setattr(module, "sampled_pair", lambda: pair)
    with small_borders():
        yield


def words(lines):
    return Counter(line.split()[0] for line in lines)


def test_the_listeners_hear_a_run():
    """Rows alike in a pool that is too small have every event; no function that is wrapped is gone."""
    heard = words(next(books.small_runs("paged+fifo")))
    assert {*heard} == {*books.WORDS, "run", "begins", "take", "commits", "counts", "left", "end"}


def test_a_row_that_is_fed_before_what_it_shares_is_written_is_told(monkeypatch):
    monkeypatch.setattr(GroupedScheduler, "admit", lambda self: books.ADMIT(self)[::-1])
    assert any(words(lines)["unwritten"] for lines in books.small_runs("paged+grouped"))


def test_a_text_that_two_rows_hold_is_among_the_runs():
    """The fourth row would share two blocks, were the second copy of the first row's text numbered as the other's."""
    shared = []
    for injected in (nullcontext(), FAULTS["second-copy-numbered-as-the-latest-text"].injected()):
        with injected:
            engine_of = partial(
                runs.engine_for, "paged+continuous", books.TWINS, runs.sampled_pair(), runs.SAMPLINGS[0]
            )
            shared.append(words(books.recorded(partial(engine_of, checks="off")))["share"])
    assert shared == [1, 2]
