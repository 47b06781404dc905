"""The demonstration: like beside like, the oracle's tokens everywhere, a table that a newcomer can read."""

import json
from dataclasses import asdict, replace

import pytest

from refimpl import generate
from refimpl.bench import demo
from refimpl.bench.demo import DEMO_HEADINGS, NO_DRAFTS, ORACLE, PLAIN, demo_cells, demo_legend, run_demo
from refimpl.core.config import NAMED_METHODS
from refimpl.decoding.timing import StageTimer
from tests.commands import run_cli

PROMPTS = [[i % 50 + 3 + j for j in range(1 + i % 4)] for i in range(7)]


@pytest.fixture(scope="module")
def rows(llama):
    seen = []
    found = run_demo(llama, PROMPTS, batch_size=3, max_new_tokens=6, progress=lambda *args: seen.append(args))
    return found, seen


def test_every_engine_has_a_row_beside_transformers_at_its_batch_size(rows):
    table = {(row.method, row.batch_size): row for row in rows[0]}
    assert set(table) == {(PLAIN, 1), (PLAIN, 3), (NO_DRAFTS, 3), (ORACLE, 1), ("speculative", 1)} | {
        (method, 3) for method in NAMED_METHODS if method not in (ORACLE, "speculative")
    }
    assert all(row.exact == row.prompts == len(PROMPTS) for row in rows[0])
    assert table[PLAIN, 1].ratio_to_transformers == table[PLAIN, 3].ratio_to_transformers == 1
    for row in rows[0]:
        assert (row.rounds is None) == (row.method == PLAIN)
    assert table[NO_DRAFTS, 3].tokens_per_row_round == 1 < table["inplace", 3].tokens_per_row_round


def test_engines_take_turns(rows):
    """Each repeat runs all of them, so that ratios are of neighbours in time."""
    found, seen = rows
    order = [f"{row.method} at batch {row.batch_size}" for row in found]
    assert seen == [(name, repeat, 2) for repeat in (1, 2) for name in order]


def test_ratios_are_to_transformers_at_the_same_batch_size_and_an_output_that_differs_is_counted(llama, monkeypatch):
    seconds = {1: 1e3, 3: 1e6}

    def altered(bench, prompts, size, plain=demo.hf_generate):
        first, *others = (sample := plain(bench, prompts, size)).outputs
        return replace(sample, seconds=seconds[size], outputs=((0, *first[1:]), *others))

    monkeypatch.setattr(demo, "hf_generate", altered)
    found = run_demo(llama, PROMPTS[:3], batch_size=3, max_new_tokens=4, repeats=1)
    for row in found:
        assert row.ratio_to_transformers == pytest.approx(row.tokens_per_s / (12 / seconds[row.batch_size]))
    assert {row.method: row.exact for row in found} == {PLAIN: 2} | dict.fromkeys([*NAMED_METHODS, NO_DRAFTS], 3)


def test_the_oracle_charges_the_prompt_to_prefill(llama, monkeypatch):
    stages, stage = [], StageTimer.stage
    monkeypatch.setattr(
        StageTimer, "stage", lambda self, name, **more: stages.append(name) or stage(self, name, **more)
    )
    result = generate(llama, [[3, 4, 5], [6]], method="autoregressive", max_new_tokens=3, stop_token_ids=())
    assert [stages.count(name) for name in ("prefill", "verify")] == [2, 2 * 3]  # the last one finds the end
    assert stages[0] == "prefill"
    assert result.stats.stage_s["prefill"] > 0


def test_the_legend_explains_rollback_and_grouping(rows):
    data = [asdict(row) for row in rows[0]]
    _, rollback, undrafted, grouped = demo_legend(data, [5, 5, 7])
    assert undrafted.startswith(NO_DRAFTS)
    row = next(row for row in data if row["method"] == "rollback")
    assert f"{row['mean_acceptance_length']:.2f}" in rollback
    assert f"{row['tokens_per_row_round']:.2f}" in rollback
    assert "3 prompts have 2 different lengths" in grouped
    assert all(len(demo_cells(row)) == len(DEMO_HEADINGS) == 7 for row in data)


def test_the_command_prints_a_table_and_writes_all_columns(capsys, monkeypatch, tmp_path):
    path = tmp_path / "demo.json"
    words = f"demo --limit 2 --batch-size 2 --max-new-tokens 3 --repeats 1 --output {path}"
    code, printed = run_cli(monkeypatch, capsys, *words.split())
    assert code == 0
    assert all(words in printed.out for words in (PLAIN, *NAMED_METHODS, "different lengths"))
    data = json.loads(path.read_text())
    assert {"grouping_rate", "share_realign", "rounds", "tokens_per_s"} <= set(data["rows"][0])
    assert len(data["meta"]["prompt_lens"]) == 2
