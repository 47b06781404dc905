"""Tie or bug: no healthy run in bfloat16 is called a bug, every fault that changes the output is."""

import random
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from refimpl.conformance.table_model import TableModel, greedy_continuation, table_pair
from refimpl.faults import FAULTS, Fault
from refimpl.generation import generate
from refimpl.model import Pair
from refimpl.pairs.loading import random_pair
from refimpl.tie_or_bug import Judgement, ends_right, judge, logits_in_blocks

K = 3
RNG = random.Random(1)
PROMPTS = [[RNG.randrange(3, 61) for _ in range(n)] for n in (5, 9, 3, 14, 6, 20)]
PROMPTS[1][4] = PROMPTS[3][2] = 0  # a token that others take for a pad


@cache
def pair() -> Pair:
    return random_pair("opt", dtype=torch.bfloat16, draft_noise=0.01)  # learned positions: no shift is invisible


@cache
def oracle(stops: tuple[int, ...], budget: int) -> tuple[tuple[int, ...], ...]:
    run = generate(pair(), PROMPTS, method="autoregressive", max_new_tokens=budget, stop_token_ids=stops)
    return tuple(tuple(s.token_ids) for s in run.sequences)


def workloads() -> list[tuple[tuple[int, ...], int]]:
    """Stop tokens and budgets. The stops stand in the middle of two rows, one of them in a prompt as well."""
    return [((oracle((), 24)[0][9], PROMPTS[5][7]), 24), ((), 24), ((), 17), ((), 8)]


def run_and_judge(method: str, stops: tuple[int, ...], budget: int, fault: Fault | None = None) -> Judgement:
    settings: dict[str, Any] = {"max_new_tokens": budget, "stop_token_ids": stops}
    wanted = oracle(stops, budget)
    with fault.injected() if fault else nullcontext():
        run = generate(pair(), PROMPTS, method=method, batch_size=2, num_speculative_tokens=K, checks="off", **settings)
    outputs = [s.token_ids for s in run.sequences]
    return judge(pair(), PROMPTS, outputs, wanted, num_speculative_tokens=K, **settings)


@pytest.mark.parametrize("layout", ["realigned", "masked", "rollback", "inplace"])
@pytest.mark.parametrize("scheduler", ["static", "grouped"])
def test_no_healthy_run_is_a_bug(layout: str, scheduler: str) -> None:
    found = run_and_judge(f"{layout}+{scheduler}", *workloads()[0])
    assert found.verdict != "bug", found.as_dict()
    assert 0 < found.threshold < 1


JUDGED = [f for f in FAULTS.values() if f.effect == "output" and not f.settings]
CRASHING = {"sequence-lost-on-refill", "sequence-runs-twice"}  # end in an exception, which needs no judge


@pytest.mark.parametrize("name", [fault.name for fault in JUDGED if fault.name not in CRASHING])
def test_every_fault_of_the_output_is_a_bug(name: str) -> None:
    fault = FAULTS[name]
    scheduler = "fifo" if "fifo" in fault.schedulers else fault.schedulers[0]
    judged = (run_and_judge(f"{fault.layouts[0]}+{scheduler}", *workload, fault) for workload in workloads())
    assert any(found.verdict == "bug" for found in judged)


def test_the_two_block_sizes_agree_where_numbers_are_exact() -> None:
    model, prompt = TableModel(), [3, 1, 4]
    output = greedy_continuation(prompt, 7)
    single, blocks = (logits_in_blocks(model, prompt, output, size) for size in (1, 4))
    assert torch.equal(single, blocks)
    assert single.argmax(dim=-1).tolist() == output


def test_the_first_wrong_token_is_named() -> None:
    prompt = [3, 1, 4]
    wanted = greedy_continuation(prompt, 5)
    wrong = [*wanted[:2], (wanted[2] + 1) % 17, *wanted[3:]]
    found = judge(table_pair(), [prompt], [wrong], [wanted], max_new_tokens=5)
    assert (found.verdict, found.rows[0].diverges_at, found.threshold) == ("bug", 2, 0)
    assert found.rows[0].regrets[0] == found.rows[0].regrets[1] == 0 < found.rows[0].regrets[2]


def test_equal_tokens_are_exact_and_a_short_row_is_a_bug() -> None:
    prompt, wanted = [3, 1, 4], greedy_continuation([3, 1, 4], 5)
    assert judge(table_pair(), [prompt], [wanted], [wanted], max_new_tokens=5).verdict == "exact"
    assert judge(table_pair(), [prompt], [wanted[:4]], [wanted], max_new_tokens=5).verdict == "bug"


@pytest.mark.parametrize(
    ("tokens", "right"), [([1, 2, 3], True), ([1, 2], False), ([1, 9], True), ([9, 1], False), ([1, 2, 3, 4], False)]
)
def test_ends_right(tokens: list[int], right: bool) -> None:
    assert ends_right(tokens, 3, {9}) == right


def test_the_histogram_is_drawn(tmp_path: Path) -> None:
    run_and_judge("masked+fifo", (), 24).plot(tmp_path / "regret.png")
    assert (tmp_path / "regret.png").stat().st_size > 1000
