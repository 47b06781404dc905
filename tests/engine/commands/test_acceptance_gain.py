"""Expected numbers of accepted drafts: by hand, ordered as the theory says, and refused where they mean nothing."""

import json
from dataclasses import asdict
from fractions import Fraction

import pytest
import torch
from typer.testing import CliRunner

from refimpl import InputError
from refimpl.bench import acceptance
from refimpl.bench.acceptance import AcceptanceSettings, measure_acceptance, survival
from refimpl.cli import app
from refimpl.commands.law import rule_cells
from refimpl.core.config import SamplingConfig
from refimpl.models.adapter import Pair
from refimpl.selfcheck.fraction_model import FractionModel

CONTEXTS = [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]


def test_survival_by_hand():
    """Drafts from (2/3, 1/3) for a target of (1/3, 2/3): a likely second draft makes up for an unlikely first."""
    laws = [Fraction(1, 3), Fraction(2, 3)], [Fraction(2, 3), Fraction(1, 3)]
    pair = Pair(*(FractionModel(dict.fromkeys(CONTEXTS, law)) for law in laws), vocab_size=2, name="example")
    generator, found = torch.Generator().manual_seed(0), set()
    for _ in range(24):
        alone, block = survival(pair, [0], 2, SamplingConfig(1.0), generator)
        found.add((*(round(x, 9) for x in alone), *(round(x, 9) for x in block)))
    assert found == {(0.5, 0.25, 0.5, 0.25), (0.5, 0.5, 0.5, 1.0), (1.0, 0.5, 1.0, 0.5), (1.0, 1.0, 1.0, 1.0)}


def test_block_accepts_more_of_the_same_drafts(llama):
    settings = AcceptanceSettings(temperatures=(1.0,), drafts=(1, 4), contexts=2, new_tokens=6)
    one, four = measure_acceptance(llama, [[1, 2, 3], [4], [5, 6]], settings)
    assert one.rounds == four.rounds == 6
    assert one.gain == pytest.approx(0)
    assert 0 < one.rejection < four.rejection <= four.block <= 4
    assert four.low <= four.gain <= four.high
    assert four.token_gain <= four.gain
    assert [row.num_speculative_tokens for row in (one, four)] == [1, 4]


@pytest.mark.parametrize(
    ("drafts", "message"),
    [((65,), "drafts must be at most 64, not 65"), ((64,), "3000 new tokens and 64 drafts need a context of 3067")],
    ids=str,
)
def test_drafts_that_do_not_fit(llama, drafts, message):
    with pytest.raises(InputError, match=message):
        measure_acceptance(llama, [[1, 2, 3]], AcceptanceSettings((1.0,), drafts, 1, new_tokens=3000))


def test_where_nothing_can_be_accepted_there_is_nothing_to_compare():
    laws = [Fraction(1), Fraction(0)], [Fraction(0), Fraction(1)]
    pair = Pair(*(FractionModel(dict.fromkeys(CONTEXTS, law)) for law in laws), vocab_size=2, name="example")
    with pytest.raises(InputError, match="no draft can be accepted at temperature 1"):
        measure_acceptance(pair, [[0]], AcceptanceSettings((1.0,), (1,), 1, new_tokens=1))


def test_every_prompt_has_drafts_of_its_own(llama, monkeypatch):
    """So that prompts are independent."""
    numbers = []

    def draw(pair, context, k, sampling, generator):
        numbers.append(float(torch.rand(1, generator=generator)))
        return [1.0], [1.0]

    monkeypatch.setattr(acceptance, "survival", draw)
    measure_acceptance(llama, [[1, 2], [1, 2]], AcceptanceSettings((1.0,), (1,), 1, new_tokens=2))
    assert numbers[0] != numbers[1]


def test_gains_and_their_error_by_hand():
    """Two prompts, with two rounds and with one: 1.0 and 0.5 drafts by rejection, 1.2 and 0.9 by block verification.

    Their ratio is 1.4; by it the prompts are 0.2 too low and 0.2 too high, so that its variance is 2 · 0.08 / 1.5².
    """
    found = [[([0.5, 9.0], [0.6, 9.0]), ([0.5, 9.0], [0.6, 9.0])], [([0.5, 9.0], [0.9, 9.0])]]
    row = acceptance._row(0.7, 1, found)
    assert (row.temperature, row.num_speculative_tokens, row.rounds) == (0.7, 1, 3)
    assert (row.rejection, row.block, row.gain) == pytest.approx((0.5, 0.7, 0.4))
    half = 1.96 * (2 * 0.08) ** 0.5 / 1.5
    assert (row.low, row.high) == pytest.approx((0.4 - half, 0.4 + half))
    assert row.token_gain == pytest.approx((3 + 2.1) / (3 + 1.5) - 1)


def test_a_line_of_the_table():
    row = {"temperature": 1.0, "num_speculative_tokens": 3, "rejection": 1.5, "block": 1.6, "gain": 0.0667,
           "low": 0.04, "high": 0.09, "token_gain": 0.04}  # fmt: skip
    assert rule_cells(row) == ["1", "3", "1.500", "1.600", "+6.7 %", "+4.0 … +9.0 %", "+4.0 %"]


def test_the_command_compares_rules_on_a_pair_and_has_pairs_of_its_own_without(monkeypatch, llama):
    monkeypatch.setattr("refimpl.commands.options.PairOptions.load", lambda self: llama)
    row = acceptance._row(1.0, 1, [[([0.5], [0.6])], [([0.5], [0.6])]])
    monkeypatch.setattr(acceptance, "measure_acceptance", lambda pair, prompts, *_: [row] * (pair is llama))
    monkeypatch.setattr("refimpl.bench.settings.prompt_ids", lambda pair, texts, limit, *_: [[1]] * limit)
    done = CliRunner().invoke(app, ["law", "--rules", "--limit", "3", "--json"])
    report = json.loads(done.stdout)
    assert (done.exit_code, report["meta"]["prompts"], report["rows"]) == (0, 3, [asdict(row)])
    refused = CliRunner().invoke(app, ["law", "--pair", "qwen3"])
    assert "no effect of --pair, leave it out" in str(refused.exception)
