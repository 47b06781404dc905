"""The table of planted errors: the page is that of its data, each error can still be planted, nothing goes unseen."""

import ast
import json

import pytest

from proofs import layers

ERRORS = layers.errors()
ROWS = json.loads(layers.DATA.read_text())


def test_the_page_is_that_of_the_data():
    assert layers.PAGE.read_text() == layers.as_markdown(ROWS)


def test_rows_are_of_errors_that_there_are():
    names = [error.name for error in ERRORS]
    assert len(names) == len(set(names)) >= 48
    assert [row["error"] for row in ROWS] == [name for name in names if name in {row["error"] for row in ROWS}]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.name)
def test_an_error_can_be_planted(error):
    mutant = error.mutant()
    assert mutant.source != layers.engine()[mutant.file]
    ast.parse(mutant.source)


def test_every_error_is_seen_and_nine_of_ten_by_a_proof_stage():
    unseen = [row["error"] for row in ROWS if not any(map(layers.seen, row["cells"].values()))]
    assert unseen == []
    assert layers.share_seen(ROWS, layers.PROOFS) >= 0.9
    alone = [row for row in ROWS if not any(layers.seen(row["cells"][name]) for name in layers.PROOFS)]
    assert [row["error"] for row in alone if not row["why"]] == []


def test_a_text_that_is_gone_is_noticed():
    with pytest.raises(ValueError, match="moon: 'the moon is round' is in the engine 0 times, not once"):
        layers.Error("moon", "the moon is round", "").mutant()
