"""Results in a terminal, in a notebook, as a frame: short, complete, and nothing but what was measured."""

import html
import sys

import pandas as pd
import pytest

from refimpl import Judgement, RowJudgement, generate, verify
from simulator import Scenario, Spec, Study, attribute, compare, find_capacity, read_validation, simulate

SETTINGS = {"max_new_tokens": 6, "num_speculative_tokens": 2, "stop_token_ids": ()}
OPEN = Scenario(
    name="a & b",
    study=Study("open", num_requests=30, arrivals=Spec.of("poisson", rate_per_s=8.0)),
).but({"service.slo_first_token_s": 0.5})


@pytest.fixture(scope="module")
def shown(llama, tiny):
    """Every kind of result, by the name of its class."""
    results = [
        generate(tiny, ["def main(", "x <b> = 1" + "0" * 200], method="exspec", **SETTINGS),
        verify(llama, [[1, 2], [3, 4, 5]], methods="eqspec,inplace", batch_sizes=[2], **SETTINGS),
        simulate(OPEN, 2),
        compare(OPEN, OPEN.but({"engine.batch_size": 1}), 2),
        attribute(OPEN, OPEN.but({"engine.batch_size": 1}), 2),
        find_capacity(OPEN, 0.9, replications=1, tolerance=0.5),
        read_validation(),
    ]
    return {type(result).__name__: result for result in results}


NAMES = ["Result", "VerifyReport", "Results", "Comparison", "Attribution", "Capacity", "Validation"]


@pytest.mark.parametrize("name", NAMES)
def test_one_line_a_table_a_frame(shown, name):
    result = shown[name]
    assert repr(result).startswith(f"{name}(")
    assert "\n" not in repr(result)
    assert len(repr(result)) < 150
    frame, page = result.to_frame(), result._repr_html_()
    assert isinstance(frame, pd.DataFrame)
    assert not frame.empty
    assert page.count("<tr") == len(frame) + (2 if frame.index.name or frame.index.nlevels > 1 else 1)


def test_what_a_run_says(shown, tiny):
    result = shown["Result"]
    assert repr(result).startswith("Result(exspec: 2 sequences, 12 tokens in ")
    frame = result.to_frame()
    assert list(frame["text"]) == [s.text for s in result.sequences]
    assert frame["tokens"].sum() == result.stats.num_generated
    assert list(frame["prompt"]) == ["def main(", "x <b> = 1" + "0" * 200]
    assert list(frame["prompt_tokens"]) == [len(tiny.tokenizer(text)["input_ids"]) for text in frame["prompt"]]
    counts = [s.stats for s in result.sequences]
    assert list(frame["draft_acceptance_rate"]) == [s.accepted / s.drafted for s in counts]
    assert list(frame["mean_acceptance_length"]) == [1 + s.accepted / s.row_rounds for s in counts]
    assert "&lt;b&gt;" in result._repr_html_(), "texts are escaped"
    assert repr(result.sequences[0]).endswith(", 6 tokens, length)")


def test_only_the_prompt_tokens_that_were_used_are_shown(tiny):
    ids = list(tiny.tokenizer("import os, sys").input_ids)
    sequence = generate(tiny, [ids], max_prompt_tokens=2, **SETTINGS).sequences[0]
    assert sequence.prompt == tiny.decode(ids[-2:])
    assert sequence.num_prompt_tokens == 2


def test_what_a_comparison_with_the_oracle_says(shown):
    report = shown["VerifyReport"]
    assert repr(report) == "VerifyReport(2 sequences: 2 of 2 runs exact)"
    assert repr(report.results[0]) == "MethodReport(eqspec at batch 2: 2/2 exact)"
    assert report.to_frame().loc[("inplace", 2), ["exact", "prompts"]].tolist() == [2, 2]
    assert "bitwise" not in report.to_frame()


def test_what_a_pair_says(tiny):
    assert repr(tiny) == "Pair('tiny': target, draft, head, tokenizer; float32 on cpu)"


def test_what_a_judgement_says():
    rows = [RowJudgement(0, "exact", None, (0.0,), True), RowJudgement(1, "tie", 3, (0.0, 0.125), True)]
    judgement = Judgement(tuple(rows), 0.25, 9)
    assert repr(judgement) == "Judgement(2 rows: 1 exact, 1 tie, 0 bug; largest regret 0.125, threshold 0.5)"
    assert judgement.to_frame()["largest_regret"].tolist() == [0, 0.125]


def test_what_simulations_say(shown):
    results = shown["Results"]
    assert repr(results).startswith(f"Results('a & b': 2 replications, {results['tokens_per_s']:.4g} [")
    assert "a &amp; b" in results._repr_html_()
    assert results.to_frame().equals(results.summary())
    assert shown["Comparison"].to_frame() is shown["Comparison"].table
    assert f"{shown['Capacity'].rate_per_s:.4g} requests/s" in repr(shown["Capacity"])


def test_a_notebook_without_pandas_shows_the_line(shown, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = shown["Result"]
    assert result._repr_html_() == f"<p>{html.escape(repr(result))}</p>"
