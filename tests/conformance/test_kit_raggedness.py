"""Whether wrong rows grow with the spread of prompt lengths."""

from functools import cache
from typing import Any

import pytest
import scipy.stats
from toy_engines import Prompts, Toy, next_id

from refimpl.conformance import adapters
from refimpl.conformance.kit import check_engine
from refimpl.conformance.protocol import NotSupported
from refimpl.conformance.raggedness import CHANCE, Raggedness
from refimpl.faults.engine import faulty_unchecked


@cache
def grows(*by_batch: tuple[int, ...]) -> bool:
    found = Raggedness((0, 2, 6, 12), tuple(map(sum, by_batch)), (20,) * 4, by_batch)
    return found.verdict == "grows with raggedness"


@pytest.mark.parametrize(
    ("by_batch", "told"),
    [
        (((0, 0, 1, 0, 0), (0, 1, 0, 1, 0), (0, 0, 0, 1, 0), (1, 1, 0, 1, 0)), False),
        (((4, 4, 4, 4, 4),) * 4, False),
        (((2, 1, 3, 2, 2), (4, 4, 3, 4, 4), (3, 4, 2, 4, 4), (3, 3, 4, 2, 3)), True),
    ],
)
def test_growth_is_told_from_chance(by_batch: tuple[tuple[int, ...], ...], told: bool) -> None:
    assert grows(*by_batch) == told


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_growth_is_rarely_claimed_where_batches_are_wrong_by_chance(rate: float) -> None:
    """All rows of a batch share their fate."""
    even, ragged = scipy.stats.binom(5, rate), scipy.stats.binom(15, rate)
    claimed = 0.0
    for num_even in range(5):
        for num_ragged in range(1, 16):
            first, others = [4 * (i < num_even) for i in range(5)], [4 * (i < num_ragged) for i in range(15)]
            told = grows(tuple(first), *(tuple(others[i : i + 5]) for i in (0, 5, 10)))
            claimed += told * even.pmf(num_even) * ragged.pmf(num_ragged)
    assert claimed < CHANCE


def test_errors_that_grow_with_raggedness_are_told_from_those_that_do_not() -> None:
    ragged = check_engine(faulty_unchecked("pads-visible"), properties=["raggedness"]).raggedness
    constant = check_engine(faulty_unchecked("positions-off-by-one"), properties=["raggedness"]).raggedness
    healthy = check_engine(adapters.method("eqspec"), properties=["raggedness"]).raggedness
    assert ragged.verdict == "grows with raggedness"
    assert constant.verdict == "does not grow with raggedness"
    assert healthy.verdict == "no wrong rows at any spread"
    assert Raggedness().verdict == "not measured"


def wrong_at_6(prompts: Prompts, _: Any, outputs: Prompts) -> Prompts:
    return [next_id(outputs[0]), *outputs[1:]] if sorted(map(len, prompts)) == [4, 6, 8, 10] else outputs


def crash_at_6(prompts: Prompts, settings: Any, outputs: Prompts) -> Prompts:
    if wrong_at_6(prompts, settings, outputs) != outputs:
        raise RuntimeError("out of memory")
    return outputs


def refuse_12(prompts: Prompts, settings: Any, outputs: Prompts) -> Prompts:
    if max(map(len, prompts)) == 16:
        raise NotSupported("prompts of 16 tokens")
    return wrong_at_6(prompts, settings, outputs)


@pytest.mark.parametrize(
    ("change", "wrong_rows", "token"), [(wrong_at_6, (0, 0, 5, 0), 11), (crash_at_6, (), None), (refuse_12, (), 11)]
)
def test_wrong_rows_and_crashes_of_the_profile_count(change: Any, wrong_rows: tuple[int, ...], token: Any) -> None:
    """Also where a later batch is refused."""
    report = check_engine(Toy(change, reference=Toy()), max_examples=1, properties=["raggedness"])
    (verdict,) = report.verdicts
    assert (verdict.status, verdict.token, report.passed) == ("fail", token, False)
    assert report.raggedness.wrong_rows == wrong_rows
    assert sorted(map(len, verdict.calls[-1].prompts)) == [4, 6, 8, 10]
    assert verdict.no_answer == (change is crash_at_6)
