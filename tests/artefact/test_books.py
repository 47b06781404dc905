"""What the stage `books` records fits the engine. Its replayer needs Coq; that its listeners hear does not."""

from collections import Counter

from proofs.conformance import books, reach, runs
from proofs.conformance.borders import small_borders
from refimpl.selfcheck.fraction_model import fraction_pair


def test_the_listeners_hear_a_run(monkeypatch):
    """Rows alike in a pool that is too small have every event; no function that is wrapped is gone."""
    pair = fraction_pair(runs.VOCAB_SIZE, seed=0)
    for module in (runs, reach):
        monkeypatch.setattr(module, "sampled_pair", lambda: pair)
    with small_borders():
        lines = next(books.small_runs("paged+fifo"))
    heard = Counter(line.split()[0] for line in lines)
    assert {*heard} >= {*books.WORDS, "run", "begins", "take", "commits", "counts", "left", "end"}
