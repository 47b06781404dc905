"""Run every property against an engine and say what holds, what fails and how small a failure can be."""

import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import scipy.stats
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Flaky

from refimpl.conformance.engine_cases import (
    ENGINE_PROPERTIES,
    ONCE,
    CaseFailure,
    EngineCase,
    Limits,
    Subject,
    engine_cases,
)
from refimpl.conformance.protocol import EngineFailure, EngineSettings, EngineTimeout, EngineUnderTest, NotSupported
from refimpl.errors import InputError

DECIDING = "equals_reference"  # without it nothing shows that the output is the right one
Status = Literal["pass", "fail", "not supported", "not run"]
SPREADS = (0, 2, 6, 12)  # tokens between the shortest and the longest prompt of a batch
BATCHES_PER_SPREAD = 3
CHANCE = 0.02  # that a profile without a trend is said to grow


@dataclass(frozen=True)
class Verdict:
    """What became of one property.

    Attributes:
        status: a failure comes with the smallest case that was found; one answered case is enough for a pass.
        reason: one line, empty on a pass.
        case: prompts and settings of the smallest failing case.
        row, token: where the outputs part first.
        asked, answered: cases that the engine was given, those of shrinking included, and those it did not refuse.
    """

    property: str
    status: Status
    reason: str = ""
    case: EngineCase | None = None
    row: int | None = None
    token: int | None = None
    asked: int = 0
    answered: int = 0


@dataclass(frozen=True)
class Raggedness:
    """Wrong rows by spread of prompt lengths."""

    spreads: tuple[int, ...] = ()
    wrong_rows: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of rows that differ from the reference."""
        return tuple(w / n for w, n in zip(self.wrong_rows, self.rows, strict=True))

    @property
    def p_value(self) -> float:
        """Fisher's exact test, one-sided, that rows of equally long prompts are wrong as often as all others."""
        (even, *ragged), (num_even, *num_ragged) = self.wrong_rows, self.rows
        table = [[even, num_even - even], [sum(ragged), sum(num_ragged) - sum(ragged)]]
        return float(scipy.stats.fisher_exact(table, alternative="less").pvalue)

    @property
    def verdict(self) -> str:
        """One of four sentences."""
        if not self.rows:
            return "not measured"
        if not any(self.wrong_rows):
            return "no wrong rows at any spread"
        return "grows with raggedness" if self.p_value < CHANCE else "does not grow with raggedness"


@dataclass(frozen=True)
class Report:
    """Verdicts of a run of the kit, and the raggedness profile."""

    engine: str
    verdicts: tuple[Verdict, ...]
    raggedness: Raggedness = field(default_factory=Raggedness)
    calls: int = 0
    limits: Limits = field(default_factory=Limits)

    @property
    def passed(self) -> bool:
        """Whether nothing failed and something passed: `equals_reference`, where that was among the properties."""
        found = {v.status for v in self.verdicts}
        decided = all(v.status == "pass" for v in self.verdicts if v.property == DECIDING)
        return decided and "pass" in found and found <= {"pass", "not supported"}

    @property
    def conforms(self) -> bool:
        """Whether it passed, `equals_reference` included; other properties may be not supported."""
        return self.passed and any(v.property == DECIDING for v in self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "schema": "raggedspec.conformance/1",
            "engine": self.engine,
            "passed": self.passed,
            "conforms": self.conforms,
            "properties": [asdict(verdict) for verdict in self.verdicts],
            "raggedness": {**asdict(self.raggedness), "verdict": self.raggedness.verdict},
            "calls": self.calls,
            "limits": asdict(self.limits),
        }


def check_engine(
    engine: EngineUnderTest,
    *,
    name: str = "engine",
    max_examples: int = 20,
    properties: Iterable[str] = ENGINE_PROPERTIES,
    fail_fast: bool = False,
    shrink: bool = True,
    raggedness: bool = True,
    limits: Limits | None = None,
) -> Report:
    """Test an engine.

    Args:
        engine: see `refimpl.conformance.protocol`.
        name: how the report calls it.
        max_examples: cases per property, beside the long one and those that shrinking takes.
        properties: names among `ENGINE_PROPERTIES`.
        fail_fast: run no further property after the first failure.
        shrink: look for the smallest failing case; otherwise the first one found is reported.
        raggedness: measure wrong rows by spread of prompt lengths.
        limits: how far the long case goes.

    Raises:
        InputError: an unknown property.
    """
    wanted_properties = known_properties(properties)
    subject = Subject(engine, limits)
    verdicts: list[Verdict] = []
    dead: EngineTimeout | None = None
    for wanted in wanted_properties:
        if dead or (fail_fast and any(v.status == "fail" for v in verdicts)):
            verdicts.append(Verdict(wanted, "not run", str(dead or "after a failure")))
            continue
        try:
            verdicts.append(check_property(subject, wanted, max_examples, shrink))
        except _Hung as hung:
            dead = hung.timeout
            verdicts.append(hung.verdict(wanted))
    skip = dead or not raggedness or (fail_fast and any(v.status == "fail" for v in verdicts))
    profile = Raggedness() if skip else measure_raggedness(subject)
    return Report(name, tuple(verdicts), profile, subject.calls, subject.limits)


def known_properties(names: Iterable[str]) -> list[str]:
    """Return the names if all of them are properties.

    Raises:
        InputError: one is not; the message lists what exists.
    """
    chosen = list(names)
    unknown = [name for name in chosen if name not in ENGINE_PROPERTIES]
    if unknown:
        raise InputError(f"unknown property {unknown[0]!r}: choose {', '.join(ENGINE_PROPERTIES)}")
    return chosen


class _Hung(BaseException):
    def __init__(self, case: EngineCase, timeout: EngineTimeout, asked: int, answered: int):
        self.case, self.timeout, self.asked, self.answered = case, timeout, asked, answered

    def verdict(self, name: str) -> Verdict:
        return Verdict(name, "fail", str(self.timeout), self.case, asked=self.asked, answered=self.answered)


def check_property_or_hang(subject: Subject, name: str, max_examples: int) -> Verdict:
    """Like `check_property`; an engine that does not answer in time is a failure like others."""
    try:
        return check_property(subject, name, max_examples)
    except _Hung as hung:
        return hung.verdict(name)


def check_property(subject: Subject, name: str, max_examples: int, shrink: bool = True) -> Verdict:
    """Search for a case that breaks one property and shrink it; where there is none, try the long case."""
    refused: list[str] = []
    asked = 0

    def check(case: EngineCase) -> None:
        nonlocal asked
        asked += 1
        try:
            ENGINE_PROPERTIES[name](subject, case)
        except NotSupported as refusal:
            refused.append(str(refusal))
        except EngineTimeout as timeout:
            raise _Hung(case, timeout, asked, asked - len(refused) - 1) from timeout
        except EngineFailure as failure:
            raise CaseFailure(case, str(failure)) from failure

    @settings(
        max_examples=1 if name in ONCE else max_examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink] if shrink and name not in ONCE else [Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(case=engine_cases(subject.engine.vocab_size))
    def search(case: EngineCase) -> None:
        check(case)

    try:
        search()
        if name not in ONCE:
            check(subject.limits.long_case(subject.engine.vocab_size))
        nothing = Verdict(name, "not supported", "".join(refused[:1]))
        verdict = Verdict(name, "pass") if asked > len(refused) else nothing
    except CaseFailure as failure:
        verdict = Verdict(name, "fail", failure.reason, failure.case, failure.row, failure.token)
    except Flaky:
        verdict = Verdict(name, "fail", "the same case fails once and passes once: the engine does not repeat")
    return replace(verdict, asked=asked, answered=asked - len(refused))


def measure_raggedness(subject: Subject) -> Raggedness:
    """Count wrong rows in batches of four prompts of more and more different lengths."""
    wrong, total = [], []
    try:
        for spread in SPREADS:
            outcomes = [_wrong_rows(subject, spread, number) for number in range(BATCHES_PER_SPREAD)]
            wrong.append(sum(outcomes))
            total.append(4 * BATCHES_PER_SPREAD)
    except (NotSupported, EngineFailure):
        return Raggedness()
    return Raggedness(SPREADS, tuple(wrong), tuple(total))


def _wrong_rows(subject: Subject, spread: int, number: int) -> int:
    rng = random.Random(f"{spread}:{number}")
    lengths = [4 + round(i * spread / 3) for i in range(4)]
    rng.shuffle(lengths)
    prompts = tuple(tuple(rng.randrange(subject.engine.vocab_size) for _ in range(n)) for n in lengths)
    asked = EngineSettings(max_new_tokens=12, batch_size=4, num_speculative_tokens=3)
    found, wanted = subject.run(prompts, asked), subject.reference(prompts, asked)
    return sum(f != w for f, w in zip(found, wanted, strict=True))
