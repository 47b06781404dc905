"""Engines that lie in a corner: the kit sees each, or its report names the corner; honest ones pass."""

from collections.abc import Callable

import pytest
from toy_engines import LIARS, NEVER_SEEN, UNKEYED, Toy, served_otherwise, with_temperature

from refimpl.conformance.kit import check_engine
from refimpl.conformance.limits import Limits
from refimpl.conformance.verdicts import Report


@pytest.mark.parametrize("name", LIARS)
def test_a_liar_is_caught(name: str) -> None:
    """By the property that is there for it: what another one says of the same engine may be no lie."""
    liar = LIARS[name]
    (verdict,) = check_engine(liar.make(), properties=[liar.rule], shrink=False, **liar.needed).verdicts
    assert (verdict.status, verdict.no_answer) == ("fail", False)


def require_named(report: Report, blind: str) -> None:
    assert report.conforms
    assert [told for told in report.not_looked_at if blind in told]


@pytest.mark.parametrize("name", [name for name in LIARS if LIARS[name].needed])
def test_a_liar_that_needs_an_option_is_named_without_it(name: str) -> None:
    require_named(check_engine(LIARS[name].make()), LIARS[name].blind)


@pytest.mark.parametrize("name", NEVER_SEEN)
def test_a_liar_that_is_not_caught_is_named(name: str) -> None:
    make, blind = NEVER_SEEN[name]
    require_named(check_engine(make()), blind)


@pytest.mark.parametrize(
    "make", [served_otherwise(lambda s: s), with_temperature(), with_temperature(supports=UNKEYED)]
)
@pytest.mark.parametrize("seed", range(3))
def test_an_honest_engine_passes(make: Callable[[], Toy], seed: int) -> None:
    report = check_engine(make(), seed=seed)
    assert report.conforms
    assert {verdict.status for verdict in report.verdicts} <= {"pass", "not supported"}


def test_an_honest_engine_passes_further_on() -> None:
    assert check_engine(Toy(), limits=Limits(max_batch=34, max_k=12, prompt_tokens=140)).conforms
