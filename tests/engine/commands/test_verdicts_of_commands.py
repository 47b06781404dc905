"""What `verify`, `demo` and `law` say of an engine that is wrong; exit codes."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from refimpl import generate, verify
from refimpl.bench.demo import DemoRow
from refimpl.cli import app
from refimpl.core.records import TokenLogprobs
from refimpl.core.tokens import first_difference
from refimpl.faults import FAULTS
from refimpl.judging import equivalence
from refimpl.judging.equivalence import Comparison, Divergence, MethodReport, VerifyReport, compare
from refimpl.selfcheck.law import LawRow

SETTINGS = {"max_new_tokens": 6, "num_speculative_tokens": 3, "stop_token_ids": ()}
WRONG_TOKENS, BROKEN = FAULTS["dsd-next-token-from-draft"], FAULTS["bsp-as-shipped"]
COMMAND = ["verify", "--limit", "2", "--max-prompt-tokens", "8", "--max-new-tokens", "6", "--batch-sizes", "2"]


def test_a_comparison_by_hand():
    """Equal; another third token; one token too few of four; one too many; nothing at all where nothing was wanted."""
    found = compare([[1, 2], [1, 2, 3], [1, 2, 3, 4], [5], []], [[1, 2], [1, 2, 9], [1, 2, 3], [5, 6], []])
    assert found == Comparison(
        prompts=5,
        exact=2,
        partial=pytest.approx((1 + 2 / 3 + 3 / 4 + 1 + 1) / 5),
        divergences=(Divergence(1, 2, 3, 9), Divergence(2, 3, 4, None), Divergence(3, 1, None, 6)),
    )


def test_a_report_is_exact_where_all_of_it_is():
    right, wrong = Comparison(2, 2, 1.0), Comparison(2, 1, 0.5, (Divergence(0, 0, 1, 2),))
    rows = {
        "tokens": (MethodReport("inplace", 1, right, None), True),
        "bits": (MethodReport("inplace", 1, right, None, bitwise=2), True),
        "other tokens": (MethodReport("inplace", 1, wrong, None), False),
        "other bits": (MethodReport("inplace", 1, right, None, bitwise=1), False),
        "a broken invariant": (MethodReport("inplace", 1, None, None, ("INV-2",)), False),
    }
    assert {name: row.exact for name, (row, _) in rows.items()} == {name: exact for name, (_, exact) in rows.items()}
    for row, exact in rows.values():
        assert VerifyReport(2, {}, [rows["tokens"][0], row]).exact == exact


def test_wrong_tokens_are_counted_where_they_are(llama, ragged_prompts, monkeypatch):
    """One of two methods is wrong."""
    right = generate(llama, ragged_prompts, method="autoregressive", **SETTINGS)
    with WRONG_TOKENS.injected():
        wrong = generate(llama, ragged_prompts, method="eqspec", batch_size=3, checks="off", **SETTINGS)
    run = equivalence.generate
    monkeypatch.setattr(
        equivalence, "generate", lambda *a, method, **k: wrong if method == "eqspec" else run(*a, method=method, **k)
    )
    report = verify(llama, ragged_prompts, methods="eqspec,inplace", batch_sizes=[3], checks="off", **SETTINGS)
    broken, healthy = report.results
    assert [(row.method, row.exact) for row in report.results] == [("eqspec", False), ("inplace", True)]
    assert not report.exact
    tokens = [(a.token_ids, b.token_ids) for a, b in zip(right.sequences, wrong.sequences, strict=True)]
    at = {i: first_difference(*pair) for i, pair in enumerate(tokens) if pair[0] != pair[1]}
    assert {d.index: d.at for d in broken.comparison.divergences} == at
    assert all(tokens[d.index][0][d.at] == d.expected for d in broken.comparison.divergences)
    assert broken.comparison.exact == len(tokens) - len(at) < healthy.comparison.exact == len(tokens)
    assert broken.as_dict()["divergences"][0]["index"] == min(at)


def test_a_broken_invariant_is_a_row_and_the_others_run(llama, ragged_prompts):
    with BROKEN.injected():
        report = verify(llama, ragged_prompts, methods="masked,inplace", batch_sizes=[3], checks="device", **SETTINGS)
    broken, healthy = (row.as_dict() for row in report.results)
    assert broken["violations"][0].startswith("INV-2")
    assert (broken["exact"], healthy["violations"], report.exact) == (0, [], False)


def test_bits_that_differ_are_no_equal_bits(llama, monkeypatch):
    run = equivalence.generate

    def one_bit_off(*given, method, **settings):
        result = run(*given, method=method, **settings)
        first, *others = result.sequences
        token = first.logprobs[0]
        off = replace(
            first, logprobs=(TokenLogprobs(token.token_id, token.logprob * (1 + 2**-52)), *first.logprobs[1:])
        )
        return result if method == "autoregressive" else replace(result, sequences=[off, *others])

    monkeypatch.setattr(equivalence, "generate", one_bit_off)
    report = verify(llama, [[1, 2], [3]], methods="inplace", batch_sizes=[2], bitwise=True, **SETTINGS)
    (row,) = report.results
    assert (row.comparison.exact, row.bitwise, row.exact, report.exact) == (2, 1, False, False)


def command(*arguments):
    done = CliRunner().invoke(app, [*COMMAND, *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_fails_for_wrong_tokens_and_names_them():
    with WRONG_TOKENS.injected():
        code, printed, told = command("--methods", "eqspec", "--dtype", "float32", "--checks", "off", "--json")
    (row,) = json.loads(printed)["results"]
    assert (code, row["exact"]) == (1, 2 - len(row["divergences"]))
    first = row["divergences"][0]
    assert f"prompt {first['index']} diverges at token {first['at']}, expected {first['expected']}" in told


@pytest.mark.parametrize(("fault", "checks", "code"), [(WRONG_TOKENS, "off", 0), (BROKEN, "device", 1)])
def test_the_command_fails_for_a_broken_invariant_in_16_bit_too(fault, checks, code):
    """Where tokens may differ by rounding, and are not judged."""
    with fault.injected():
        assert command("--methods", "masked", "--dtype", "bfloat16", "--checks", checks)[0] == code


def test_the_command_fails_for_other_bits_in_16_bit_too(monkeypatch):
    """Those are promised."""
    monkeypatch.setattr(equivalence, "_equal_bits", lambda *_: 1)
    assert command("--methods", "inplace", "--dtype", "bfloat16", "--bitwise")[0] == 1


@pytest.mark.parametrize(("exact", "code"), [((2, 2), 0), ((2, 1), 1), ((0, 0), 1)])
def test_the_demonstration_fails_where_an_output_differs(monkeypatch, exact, code):
    def rows(*_, **__):
        names = zip(("rollback", "exspec"), exact, strict=True)
        return [DemoRow(name, 8, each, 2, 9.0, 1.0, 3, 1.0, 1.0, 0.0, share_realign=0.0) for name, each in names]

    monkeypatch.setattr("refimpl.bench.demo.run_demo", rows)
    assert CliRunner().invoke(app, ["demo", "--limit", "2"]).exit_code == code


@pytest.mark.parametrize(("allowed", "variation", "code"), [(True, 0.0, 0), (False, 0.25, 0), (True, 0.25, 1)])
def test_law_fails_where_a_combination_that_runs_has_another_distribution(monkeypatch, allowed, variation, code):
    names = ("model", "fixed", "block")
    monkeypatch.setattr("refimpl.selfcheck.law.law_settings", lambda: [names] * 2)
    monkeypatch.setattr("refimpl.selfcheck.law.law_row", lambda *given: LawRow(*given, allowed, variation))
    done = CliRunner().invoke(app, ["law", "--json"])
    assert done.exit_code == code
    assert [row["total_variation"] for row in json.loads(done.stdout)["rows"]] == [variation] * 2
