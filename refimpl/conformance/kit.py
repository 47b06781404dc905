"""Run every property against an engine; report what passes, what fails, and the smallest failing case found."""

import hashlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis.errors import Flaky

from refimpl.conformance.cases import EngineCase
from refimpl.conformance.limits import Limits
from refimpl.conformance.properties import ALL_PROPERTIES, ENGINE_PROPERTIES, OF_BATCHES, cases_of
from refimpl.conformance.protocol import (
    EngineFailure,
    EngineGone,
    EngineLost,
    EngineSettings,
    EngineUnderTest,
    NotSupported,
)
from refimpl.conformance.raggedness import Raggedness
from refimpl.conformance.reach import reach_of
from refimpl.conformance.subject import CaseFailure, Subject
from refimpl.conformance.verdicts import Report, Verdict
from refimpl.conformance.watch import TimeUp, Watch
from refimpl.core.errors import require, shown
from refimpl.core.shown import counted
from refimpl.core.values import split_names

MOST_SEEDS = 2**16  # of samples in fixed cases
SHORT = 4  # new tokens; of the cases that are searched, a quarter has fewer
OF_FAILURES = ("calls", "case", "row", "token", "found", "expected", "no_answer", "place")
MAX_LOSSES = 5  # crashes of a process in one property; each costs a start, so that shrinking ends there


def check_engine(
    engine: EngineUnderTest,
    *,
    name: str = "engine",
    max_examples: int = 20,
    properties: Iterable[str] = ALL_PROPERTIES,
    fail_fast: bool = False,
    shrink: bool = True,
    limits: Limits | None = None,
    seed: int = 0,
    reference: Any = None,
    watch: Watch | None = None,
    saved: Mapping[str, EngineCase] | None = None,
) -> Report:
    """Test an engine.

    Args:
        engine: see `refimpl.conformance.protocol`.
        name: how the report calls it.
        max_examples: cases per property; the long case and those of shrinking come on top.
        properties: names among `ALL_PROPERTIES`.
        fail_fast: run no further property after the first failure.
        shrink: look for the smallest failing case; otherwise the first one found is reported.
        limits: how far the fixed cases go.
        seed: of the search; every property has cases of its own.
        reference: what plain decoding generates, instead of what the engine itself offers.
        watch: sees every case and ends the run when its time is up; later properties are then not finished.
        saved: the only case to ask for, of some properties, see `refimpl.conformance.replay`.

    Raises:
        InputError: an unknown property, or an engine that says of itself what cannot be.
    """
    subject = Subject(engine, limits, reference, watch, name)
    verdicts: list[Verdict] = []
    for wanted in known_properties(properties):
        if fail_fast and any(verdict.status == "fail" for verdict in verdicts):
            verdicts.append(Verdict(wanted, "not run", subject.gone or "after a failure"))
            continue
        trial = Trial(subject, wanted, (saved or {}).get(wanted))
        verdicts.append(trial.verdict(max_examples, shrink=shrink, seed=seed))
    return subject_report(subject, name, verdicts, int(seed))


def subject_report(subject: Subject, name: str, verdicts: Iterable[Verdict], seed: int = 0) -> Report:
    """Put together what was found out about a subject."""
    return Report(
        name,
        tuple(verdicts),
        subject.profile or Raggedness(),
        subject.num_calls,
        subject.limits,
        subject.reference_kind,
        seed,
        subject.law_reference_kind,
    )


def known_properties(names: Iterable[str] | str | None) -> list[str]:
    """Return the names, also of a text with commas, if all of them are properties; None means all.

    Raises:
        InputError: one is not; the message lists what exists. Or there are no names.
    """
    if names is None:
        return list(ALL_PROPERTIES)
    chosen = split_names(names) if isinstance(names, str) else list(names)
    require(bool(chosen), f"properties must be names, in a list or with commas between them, not {shown(names)}")
    unknown = [name for name in chosen if name not in ENGINE_PROPERTIES]
    require(not unknown, f"unknown property {unknown[:1]}: choose {', '.join(ENGINE_PROPERTIES)}")
    return chosen


class _Enough(BaseException):
    """Ends the search; no `Exception`, so that Hypothesis lets it through."""


class Trial:
    """One property of one engine, case after case.

    Args:
        subject: the engine.
        name: of the property.
        saved: the only case to ask for; None searches.
    """

    def __init__(self, subject: Subject, name: str, saved: EngineCase | None = None):
        self.subject, self.name, self.saved = subject, name, saved
        self._asked, self._planned, self._refusals, self._told = 0, 0, list[str](), list[str]()
        self._right = list[EngineCase]()
        self._case: EngineCase | None = None
        self._shapes = set[tuple[tuple[int, ...], EngineSettings]]()
        self._failures, self._num_losses, self._searching = list[CaseFailure](), 0, False

    def verdict(self, max_examples: int, *, shrink: bool = True, seed: int = 0) -> Verdict:
        """Search for a case that breaks the property, and shrink it; unless the engine has gone in an earlier trial."""
        if self.subject.gone:
            return Verdict(self.name, "not run", self.subject.gone)
        batches_before = self.subject.num_batches
        self._planned = 1
        try:
            self._run(max_examples, shrink, seed)
            verdict = self._without_failure(self.subject.num_batches > batches_before)
        except CaseFailure as failure:
            verdict = self._failed(failure)
        except _Enough:
            verdict = self._failed(min(self._failures, key=_size))
        except (TimeUp, KeyboardInterrupt) as cause:
            verdict = self._cut_short(self.subject.watch.end(cause))
        except Flaky:
            if not self._failures:
                raise
            again = "the same case fails once and passes once: the engine does not repeat"
            verdict = self._failed(self._failures[0], f"{again}; it failed with: ")
        self.subject.watch.tell(self.name, self._asked, self._asked)
        answered = self._asked - len(self._refusals)
        shrunk = shrink and self._searching and len(self._failures) > 1  # a case that fails is asked again first
        refused, reach = "".join(self._refusals[:1]), reach_of(self._right, self.subject.limits.bounded)
        return replace(verdict, asked=self._asked, answered=answered, shrunk=shrunk, refused=refused, reach=reach)

    def _run(self, max_examples: int, shrink: bool, seed: int) -> None:
        if self.saved:
            return self._check_case(self.saved)
        searched, fixed = cases_of(self.name, self.subject.limits, self.subject.stated)
        self._planned = len(fixed) + (0 if searched is None else max_examples)
        if searched is not None:
            self._search(searched, max_examples, shrink, seed)
        for case in fixed:  # their samples alone depend on the seed of the search
            own = case.settings.seed + seed % MOST_SEEDS
            self._check_case(replace(case, settings=replace(case.settings, seed=own)))
        return None

    def _search(self, searched: Any, max_examples: int, shrink: bool, seed: int) -> None:
        @hypothesis.seed(int.from_bytes(hashlib.sha256(f"{seed}:{self.name}".encode()).digest()[:8]))
        @settings(
            max_examples=int(max_examples),
            deadline=None,
            database=None,
            derandomize=False,
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            report_multiple_bugs=False,
        )
        @given(case=searched)
        def search(case: EngineCase) -> None:
            if not self._failures and not self._is_new(case):
                reject()
            self._shuffle()
            self._check_case(case)

        self._searching = True
        search()
        self._searching = False

    def _shuffle(self) -> None:
        """Let each case find the global generators in a state of its own, where Hypothesis gives all the same one.

        Else an engine that is wrong by chance has the same luck in every case.
        """
        random.seed(self._asked)
        np.random.seed(self._asked)

    def _is_new(self, case: EngineCase) -> bool:
        """Whether no case had this shape; the search likes to vary what it had, and to keep budgets small."""
        shape, short = (tuple(map(len, case.prompts)), case.settings), case.settings.max_new_tokens < SHORT
        num_short = sum(settings.max_new_tokens < SHORT for _, settings in self._shapes)
        if shape in self._shapes or (short and 4 * num_short > len(self._shapes)):
            return False
        self._shapes.add(shape)
        return True

    def _check_case(self, case: EngineCase) -> None:
        settled = getattr(self.subject.engine, "settled", lambda prompt: prompt)
        case = self._case = replace(case, prompts=tuple(map(settled, case.prompts)))
        self.subject.watch.require_time()
        self.subject.watch.tell(self.name, self._asked, self._planned)
        self._asked += 1
        self.subject.calls.clear()
        try:
            told = ENGINE_PROPERTIES[self.name](self.subject, case)
            self._told += [told] if told else []
            self._right.append(case)
        except (TimeUp, KeyboardInterrupt):
            self._asked -= 1
            raise
        except NotSupported as refusal:
            self._refusals.append(str(refusal))
        except CaseFailure as failure:
            raise self._noted(failure) from None
        except EngineFailure as broken:
            lost = self._noted(CaseFailure(str(broken), no_answer=True, place=broken.place))
            self._end_if_lost(broken)
            raise lost from broken

    def _noted(self, failure: CaseFailure) -> CaseFailure:
        failure.calls, failure.case = failure.calls or tuple(self.subject.calls), self._case
        self._failures.append(failure)
        return failure

    def _end_if_lost(self, broken: EngineFailure) -> None:
        """End the search where the engine cannot be asked again, or was lost too often."""
        self._num_losses += isinstance(broken, EngineLost)
        if isinstance(broken, EngineGone):
            self.subject.gone = str(broken)
            if len(self._failures) > 1:
                self._failures.pop()  # what came before says more
        if self.subject.gone or self._num_losses >= MAX_LOSSES:
            raise _Enough from broken

    def _failed(self, failure: CaseFailure, before: str = "") -> Verdict:
        told = {name: getattr(failure, name) for name in OF_FAILURES}
        return Verdict(self.name, "fail", before + failure.reason, **told)

    def _cut_short(self, why: str) -> Verdict:
        if self._failures:
            smallest = min(self._failures, key=_size)
            return self._failed(smallest, f"{why} before the smallest case was found; it fails with: ")
        return Verdict(self.name, "not finished", f"{why} after {counted(self._asked, 'case')}")

    def _without_failure(self, in_batches: bool) -> Verdict:
        refusal = "".join(self._refusals[:1])
        if self._asked == len(self._refusals):
            return Verdict(self.name, "not supported", refusal)
        alone = self.saved or self.subject.limits.max_batch == 1  # by intent
        if self.name in OF_BATCHES and not in_batches and not alone:
            return Verdict(self.name, "not supported", f"no batch of several rows was answered: {refusal}")
        return Verdict(self.name, "pass", "; ".join(self._told))


def _size(failure: CaseFailure) -> int:
    return sum(1 + len(prompt) for call in failure.calls for prompt in call.prompts)
