"""Tie or bug: no healthy run in bfloat16 is called a bug, every fault that changes the output is."""

import json
import random
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from refimpl.commands.judge import app
from refimpl.core.config import LAYOUTS
from refimpl.core.errors import InputError
from refimpl.core.request import Request
from refimpl.faults import FAULTS, Fault
from refimpl.generation import generate
from refimpl.judging.tie_or_bug import (
    Judgement,
    RowJudgement,
    ends_right,
    judge,
    judge_method,
    logits_in_blocks,
    plot_regrets,
    tokens_of,
)
from refimpl.models.adapter import Pair
from refimpl.models.table_model import TableModel, greedy_continuation, table_pair
from refimpl.pairs.random_pairs import random_pair
from refimpl.viz.regrets import regret_histogram

K = 3
RNG = random.Random(1)
PROMPTS = [[RNG.randrange(3, 61) for _ in range(n)] for n in (5, 9, 3, 14, 6, 20)]
PROMPTS[1][4] = PROMPTS[3][2] = 0  # a token that others take for a pad
OTHER_RNG = random.Random(1)
MORE_PROMPTS = [[OTHER_RNG.randrange(3, 61) for _ in range(n)] for n in (5, 9, 3, 14, 6, 20, 7, 8)]


@cache
def pair() -> Pair:
    return random_pair("opt", dtype=torch.bfloat16, draft_noise=0.01)  # learned positions: no shift is invisible


@cache
def oracle(stops: tuple[int, ...], budget: int) -> tuple[tuple[int, ...], ...]:
    run = generate(pair(), PROMPTS, method="autoregressive", max_new_tokens=budget, stop_token_ids=stops)
    return tuple(tuple(s.token_ids) for s in run.sequences)


def workloads() -> list[tuple[tuple[int, ...], int]]:
    """Stop tokens and budgets.

    The first stops are in the middle of two rows, one of them in a prompt as well. The last one and the end of the
    budget fall into one block.
    """
    plain = oracle((), 24)
    return [((plain[0][9], PROMPTS[5][7]), 24), ((), 24), ((), 17), ((), 8), ((plain[3][3],), 5)]


def run_and_judge(method: str, stops: tuple[int, ...], budget: int, fault: Fault | None = None) -> Judgement:
    settings: dict[str, Any] = {"max_new_tokens": budget, "stop_token_ids": stops}
    wanted = oracle(stops, budget)
    with fault.injected() if fault else nullcontext():
        run = generate(pair(), PROMPTS, method=method, batch_size=2, num_speculative_tokens=K, checks="off", **settings)
    outputs = [s.token_ids for s in run.sequences]
    return judge(pair(), PROMPTS, outputs, wanted, num_speculative_tokens=K, **settings)


# --- no healthy run is a bug --------------------------------------------------------------------------------------


@cache
def healthy(method: str) -> Judgement:
    """A run long enough for near ties to fall differently."""
    settings: dict[str, Any] = {"max_new_tokens": 40, "stop_token_ids": (), "checks": "off"}
    return judge_method(pair(), MORE_PROMPTS, method=method, batch_size=4, num_speculative_tokens=K, **settings)


HEALTHY = ["realigned+static", "masked+fifo", "rollback+static", "inplace+grouped", "realigned+grouped"]


@pytest.mark.parametrize("method", HEALTHY)
def test_no_healthy_run_is_a_bug(method: str) -> None:
    found = healthy(method)
    assert found.verdict in ("exact", "tie"), found.as_dict()
    assert found.largest_regret <= found.threshold < 0.1


def test_healthy_runs_do_differ_from_the_oracles() -> None:
    """Else the test before would show nothing."""
    verdicts = [row.verdict for method in HEALTHY for row in healthy(method).rows]
    assert "tie" in verdicts


# --- every fault that changes the output is one -------------------------------------------------------------------

METHODS = [f"{layout}+{scheduler}" for layout in LAYOUTS for scheduler in ("static", "fifo", "grouped")]
JUDGED = [f for f in FAULTS.values() if f.effect == "output" and not f.settings]  # the others show under sampling
CRASHING = ["sequence-lost-on-refill", "sequence-runs-twice"]
OF_MIXED_BUDGETS = ["clamped-write"]  # drafts behind the end of the longest row, which comes last here and ends alone
HARMLESS = ["draft-positions-off-by-one", "draft-misses-the-first-token", "draft-cache-hole", "no-aging"]


def method_for(fault: Fault) -> str:
    return f"{fault.layouts[0]}+{'fifo' if 'fifo' in fault.schedulers else fault.schedulers[0]}"


@pytest.mark.parametrize("method", METHODS)
def test_without_a_fault_these_workloads_have_no_ties(method: str) -> None:
    stops, budget = workloads()[1]
    run = generate(pair(), PROMPTS, method=method, batch_size=2, max_new_tokens=budget, stop_token_ids=stops)
    assert tokens_of(run) == [list(tokens) for tokens in oracle(stops, budget)]


@pytest.mark.parametrize("name", [f.name for f in JUDGED if f.name not in OF_MIXED_BUDGETS])
def test_the_first_output_that_a_fault_changes_is_a_bug(name: str) -> None:
    judged = (run_and_judge(method_for(FAULTS[name]), *workload, FAULTS[name]) for workload in workloads())
    first = next(found for found in judged if found.verdict != "exact")
    assert first.verdict == "bug"
    far_beyond = first.largest_regret > 4 * first.threshold
    assert far_beyond or not all(row.ends_right for row in first.rows)


@pytest.mark.parametrize("name", CRASHING)
def test_two_faults_end_in_an_exception_which_needs_no_judge(name: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        run_and_judge(method_for(FAULTS[name]), *workloads()[0], FAULTS[name])


@pytest.mark.parametrize("name", HARMLESS)
def test_a_fault_that_changes_no_output_is_no_bug(name: str) -> None:
    assert run_and_judge(method_for(FAULTS[name]), *workloads()[1], FAULTS[name]).verdict == "exact"


# --- the judge itself ---------------------------------------------------------------------------------------------


def test_the_two_block_sizes_agree_where_numbers_are_exact() -> None:
    model, prompt = TableModel(), [3, 1, 4]
    output = greedy_continuation(prompt, 7)
    single, blocks = (logits_in_blocks(model, prompt, output, size) for size in (1, 4))
    assert torch.equal(single, blocks)
    assert single.argmax(dim=-1).tolist() == output


def test_noise_is_measured_without_drafts_and_where_every_output_has_one_token() -> None:
    """Blocks of one token would be compared with themselves."""
    outputs, settings = oracle((), 24), {"max_new_tokens": 24, "stop_token_ids": ()}
    found = [judge(pair(), PROMPTS, outputs, outputs, **settings, num_speculative_tokens=drafts) for drafts in (0, 1)]
    assert found[0].noise == found[1].noise > 0
    outputs, settings = oracle((), 1), {"max_new_tokens": 1, "stop_token_ids": ()}
    short = judge(pair(), PROMPTS, outputs, outputs, **settings)
    assert short.noise > 0
    assert short.num_prefixes == sum(min(len(prompt), 6) for prompt in PROMPTS)
    assert [len(row.regrets) for row in short.rows] == [1] * len(PROMPTS)


@pytest.mark.parametrize("lead", [1, 3, 9])
def test_blocks_may_begin_within_the_prompt(lead: int) -> None:
    model, prompt = TableModel(), [3, 1, 4, 1, 5]
    for count in (1, 6):
        output = greedy_continuation(prompt, count)
        plain, longer = (logits_in_blocks(model, prompt, output, 4, by) for by in (0, lead))
        assert torch.equal(longer[-count:], plain)
        assert len(longer) == count + min(lead, 4)


def test_the_first_wrong_token_is_named() -> None:
    prompt = [3, 1, 4]
    wanted = greedy_continuation(prompt, 5)
    wrong = [*wanted[:2], (wanted[2] + 1) % 17, *wanted[3:]]
    found = judge(table_pair(), [prompt], [wrong], [wanted], max_new_tokens=5)
    assert (found.verdict, found.rows[0].diverges_at, found.threshold) == ("bug", 2, 0)
    assert found.rows[0].regrets[0] == found.rows[0].regrets[1] == 0 < found.rows[0].regrets[2]


@pytest.mark.parametrize(("regret", "verdict"), [(1.9, "tie"), (2.1, "bug")])
def test_a_tie_is_within_twice_the_noise(monkeypatch: pytest.MonkeyPatch, regret: float, verdict: str) -> None:
    """A logit of other tokens differs by 1 between the sizes of blocks; token 7 is better than the last one chosen."""

    def logits(model: Any, prompt: Any, output: list[int], size: int, lead: int) -> torch.Tensor:
        found = torch.zeros(len(output), 17).double()
        found[-1, 7], found[0, 8] = regret, -float(size > 1)
        return found

    monkeypatch.setattr("refimpl.judging.tie_or_bug.logits_in_blocks", logits)
    found = judge(table_pair(), [[3]], [[1, 2]], [[1, 7]], max_new_tokens=2)
    assert (found.verdict, found.noise, found.threshold, found.largest_regret) == (verdict, 1, 2, regret)


def test_equal_tokens_are_exact_and_a_short_row_is_a_bug() -> None:
    prompt, wanted = [3, 1, 4], greedy_continuation([3, 1, 4], 5)
    assert judge(table_pair(), [prompt], [wanted], [wanted], max_new_tokens=5).verdict == "exact"
    assert judge(table_pair(), [prompt], [wanted[:4]], [wanted], max_new_tokens=5).verdict == "bug"


@pytest.mark.parametrize(
    ("tokens", "right"), [([1, 2, 3], True), ([1, 2], False), ([1, 9], True), ([9, 1], False), ([1, 2, 3, 4], False)]
)
def test_ends_right(tokens: list[int], right: bool) -> None:
    assert ends_right(tokens, 3, {9}) == right


# --- histogram and command ----------------------------------------------------------------------------------------


def row(verdict: str, *regrets: float) -> RowJudgement:
    return RowJudgement(0, verdict, None, regrets, True)  # type: ignore[arg-type]


def test_the_histogram_tells_what_is_beyond_the_threshold(tmp_path: Path) -> None:
    mixed = Judgement((row("tie", 0.0, 0.01, 0.02), row("bug", 0.3, 0.0)), 0.05, 5)
    clean = Judgement((row("exact", 0.0, 0.0),), 0.05, 2)
    figure = regret_histogram({"mixed": mixed.regrets, "clean": clean.regrets})
    first, second = figure.axes
    assert first.get_title() == "mixed: bug, 2 of 5 regrets are 0"
    assert second.get_title() == "clean: exact, 2 of 2 regrets are 0"
    told = [text.get_text() for text in first.get_legend().get_texts()]
    assert sorted(told) == ["1 beyond the threshold", "2 within the threshold", "threshold 0.1"]
    assert [[line.get_xdata() for line in axes.lines] for axes in figure.axes] == [[[0.1, 0.1]]] * 2
    assert sum(bar.get_height() for bar in first.patches) == 3
    assert sum(bar.get_height() for bar in second.patches) == 0
    plot_regrets({"mixed": mixed, "clean": clean}, tmp_path / "regret.png")
    assert (tmp_path / "regret.png").read_bytes().startswith(b"\x89PNG")


def run_command(*arguments: str) -> tuple[int, str]:
    short = ["--limit", "2", "--max-prompt-tokens", "8", "--max-new-tokens", "6", "--dtype", "float32"]
    result = CliRunner().invoke(app, [*short, *arguments])
    refusal = str(result.exception) if isinstance(result.exception, InputError) else ""
    return result.exit_code, result.output + refusal


def test_the_command_judges_methods_and_draws_them(tmp_path: Path) -> None:
    """Each at every batch size, to which a window is widened."""
    options = ["--methods", "exspec", "--batch-sizes", "2,5", "--set", "window_size=4", "--plot", f"{tmp_path}/r.svg"]
    status, text = run_command(*options, "--json")
    report = json.loads(text.splitlines()[-1])
    assert list(report["judgements"]) == ["exspec, batch 2", "exspec, batch 5"]
    judged = report["judgements"]["exspec, batch 2"]
    assert report["meta"]["packed_attention"] == {"exspec": "loop: checks device look at masks"}
    assert (status, judged["verdict"], judged["exact"], judged["num_prefixes"]) == (0, "exact", 2, 12)
    assert 0 < judged["threshold"] < 1e-3
    assert "<svg" in (tmp_path / "r.svg").read_text()


def test_the_command_judges_the_tokens_of_other_engines(tmp_path: Path, tiny: Pair, bundled_prompts: list) -> None:
    settings = {"max_prompt_tokens": 8, "max_new_tokens": 6}
    right = tokens_of(generate(tiny, bundled_prompts[:2], method="autoregressive", **settings))
    for name, tokens in (("right", right), ("wrong", [right[0], [*right[1][:5], (right[1][5] + 1) % 100]])):
        lines = [json.dumps({"token_ids": row}) for row in tokens]
        (tmp_path / name).write_text("\n".join(lines))
    assert run_command("--outputs", f"{tmp_path}/right")[0] == 0
    status, text = run_command("--outputs", f"{tmp_path}/wrong", "--json")
    report = json.loads(text.splitlines()[-1])
    assert (status, report["judgements"]["outputs"]["bug"]) == (1, 1)
    assert "packed_attention" not in report["meta"], "no method has run"


REFUSED = {  # what stands in the file, options beside it, and what is told; None: no such file is given
    "no mapping": ("[1]", [], "outputs:1: must hold a mapping"),
    "no list": ('{"token_ids": 3}', [], "must be a list"),
    "another number": ('{"token_ids": [3]}', ["--drafter", "ngram", "-k", "3"], "2 prompts"),
    "idle methods": ('{"token_ids": [3]}', ["--methods", "inplace"], "no effect of --methods, leave it out"),
    "idle sizes": ('{"token_ids": [3]}', ["--batch-sizes", "2"], "no effect of --batch-sizes, leave it out"),
    "idle settings": ('{"token_ids": [3]}', ["--set", "block_size=4"], "no effect of --set, leave it out"),
    "picture": (None, ["--plot", "regret.txt"], "must end in .png"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_judged_is_refused(tmp_path: Path, name: str) -> None:
    """Options of methods have no effect where none runs; those of the budget and of the models have one."""
    content, options, told = REFUSED[name]
    (tmp_path / "outputs").write_text(content or "")
    status, text = run_command(*(["--outputs", f"{tmp_path}/outputs"] if content else []), *options)
    assert status != 0
    assert told in text


def test_only_greedy_output_can_be_judged_together() -> None:
    for settings in ({"temperature": 0.5}, {"stop_strings": ["x"]}):
        with pytest.raises(InputError, match="only greedy output"):
            judge_method(pair(), PROMPTS, **settings)
    with pytest.raises(InputError, match="share their settings"):
        judge_method(pair(), [Request([1, 2])])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_no_numbers_are_no_tie(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """Here the last logit of the second prompt, of a token that was not chosen."""
    outputs = oracle((), 24)
    other = (outputs[1][-1] + 1) % 61

    def changed(model: Any, prompt: Any, output: Any, *sizes: int) -> torch.Tensor:
        logits = logits_in_blocks(model, prompt, output, *sizes).clone()
        logits[-1, other] = value if list(prompt) == PROMPTS[1] else logits[-1, other]
        return logits

    monkeypatch.setattr("refimpl.judging.tie_or_bug.logits_in_blocks", changed)
    wrong = [outputs[0], (*outputs[1][:-1], (outputs[1][-1] + 2) % 61)]
    with pytest.raises(InputError, match="not finite after prompt 1: judge in another dtype"):
        judge(pair(), PROMPTS[:2], wrong, outputs[:2], max_new_tokens=24)
