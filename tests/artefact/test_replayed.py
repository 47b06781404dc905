"""Real rounds that the machine extracted from Coq has replayed: how many, of which method."""

import json
from pathlib import Path

from refimpl.core.config import LAYOUTS, SCHEDULERS

PROOFS = Path(__file__).parents[2] / "proofs"
DATA = json.loads((PROOFS / "conformance" / "replayed.json").read_text())


def test_ten_thousand_rounds_were_replayed_and_none_was_refused():
    assert sum(DATA["rounds"].values()) >= 10_000
    assert DATA["faults"] == []


def test_rounds_are_of_every_layout_with_every_scheduler():
    assert {*DATA["rounds"]} == {f"{layout}+{scheduler}" for layout in LAYOUTS for scheduler in SCHEDULERS}
    assert min(DATA["rounds"].values()) >= 100


def test_the_page_says_how_many_of_which_prompts():
    rounds, cut = f"{sum(DATA['rounds'].values()):,}", DATA["max_prompt_tokens"]
    said = f"[{rounds} rounds](conformance/replayed.json) on the last {cut} tokens of Spec-Bench's prompts"
    assert said in (PROOFS / "README.md").read_text()
