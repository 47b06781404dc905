"""Cases for engines that are not ours, and what must hold for each."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import scipy.stats
from hypothesis import strategies as st

from refimpl.conformance.protocol import (
    EngineFailure,
    EngineSettings,
    EngineTimeout,
    EngineUnderTest,
    NotSupported,
    check_answer,
)
from refimpl.conformance.story import first_difference
from refimpl.conformance.strategies import ragged_prompts

LAW_SAMPLES, LAW_TOKENS, LAW_BATCH = 1024, 3, 64
LAW_FALSE_ALARM_RATE = 1e-6
CELL_SIZE = 20  # outcomes of a cell of the chi-squared test, at least

Prompts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class EngineCase:
    """Prompts and settings of one example."""

    prompts: Prompts
    max_new_tokens: int = 8
    batch_size: int = 4
    num_speculative_tokens: int = 3
    stop_at: int = 0  # offset in the first row's reference whose token is made a stop token

    @property
    def settings(self) -> EngineSettings:
        """Greedy, without stop tokens."""
        return EngineSettings(self.max_new_tokens, self.batch_size, self.num_speculative_tokens)


def engine_cases(vocab_size: int) -> st.SearchStrategy[EngineCase]:
    """Ragged batches, small when shrunk."""
    return st.builds(
        EngineCase,
        ragged_prompts(vocab_size, max_prompts=5, max_tokens=10).map(tuple),
        max_new_tokens=st.integers(1, 12),
        batch_size=st.integers(1, 4),
        num_speculative_tokens=st.integers(1, 4),
        stop_at=st.integers(0, 5),
    )


@dataclass(frozen=True)
class Limits:
    """How far the long case goes; of what an engine does beyond, the kit knows nothing."""

    prompt_tokens: int = 32
    new_tokens: int = 48

    def long_case(self, vocab_size: int) -> EngineCase:
        """A batch of prompts of very different lengths, decoded further than the cases that are searched."""
        rng = random.Random(0)
        lengths = (self.prompt_tokens, 1, -(-self.prompt_tokens // 2), -(-self.prompt_tokens // 5))
        prompts = tuple(tuple(rng.randrange(vocab_size) for _ in range(n)) for n in lengths)
        return EngineCase(prompts, self.new_tokens, stop_at=self.new_tokens - 1)


class CaseFailure(AssertionError):  # noqa: N818 (Hypothesis shrinks it like a failed assertion)
    """A property does not hold for a case.

    Attributes:
        case: the prompts and settings.
        reason: one line.
        row, token: where outputs part first, None when that is not what is wrong.
    """

    def __init__(self, case: EngineCase, reason: str, row: int | None = None, token: int | None = None):
        self.case, self.reason, self.row, self.token = case, reason, row, token
        super().__init__(reason)


class Subject:
    """The engine with its answers checked, and its reference remembered.

    Args:
        engine: see `refimpl.conformance.protocol`.
        limits: how far its long case goes.
    """

    def __init__(self, engine: EngineUnderTest, limits: Limits | None = None):
        self.engine, self.limits = engine, limits or Limits()
        self.calls = 0
        self._known: dict[Any, list[int]] = {}
        self._plain_refused = False

    def run(self, prompts: Iterable[Iterable[int]], settings: EngineSettings) -> list[list[int]]:
        """Ask the engine; every exception but NotSupported becomes an EngineFailure."""
        self.calls += 1
        asked = [list(prompt) for prompt in prompts]
        return _guarded(self.engine, asked, settings, self.engine.vocab_size)

    def reference(self, prompts: Prompts, settings: EngineSettings) -> list[list[int]]:
        """What autoregressive decoding gives for each prompt alone; never asked twice."""
        sampled = settings.temperature > 0  # then a row's sample belongs to its place
        return [self._alone(prompts[: i + 1] if sampled else (prompt,), settings) for i, prompt in enumerate(prompts)]

    def _alone(self, prompts: Prompts, settings: EngineSettings) -> list[int]:
        key = (prompts, settings.max_new_tokens, settings.temperature, settings.seed)
        if key not in self._known:
            plain = replace(settings, batch_size=1, num_speculative_tokens=0, stop_token_ids=())
            self._known[key] = self._plain(prompts, plain)[-1]
        return self._known[key]

    def _plain(self, prompts: Prompts, settings: EngineSettings) -> list[list[int]]:
        asked, own = [list(prompt) for prompt in prompts], getattr(self.engine, "reference", None)
        if own is not None:
            return _guarded(own, asked, settings, self.engine.vocab_size)
        try:
            if not self._plain_refused:
                return self.run(prompts, settings)
        except NotSupported:
            self._plain_refused = True  # no decoding without drafts: one prompt alone, with one draft a round
        return self.run(prompts, replace(settings, num_speculative_tokens=1))


def _guarded(engine: Callable, prompts: list[list[int]], settings: EngineSettings, vocab_size: int) -> list[list[int]]:
    try:
        return check_answer(engine(prompts, settings), prompts, vocab_size)
    except (NotSupported, EngineFailure):
        raise
    except Exception as error:
        raise EngineFailure(f"{type(error).__name__}: {error}") from error


def require_equal(case: EngineCase, found: list[list[int]], wanted: list[list[int]], what: str) -> None:
    """Raise the first difference, row by row."""
    for row, (tokens, expected) in enumerate(zip(found, wanted, strict=True)):
        at = first_difference(tokens, expected)
        if at is not None:
            reason = f"{what}: row {row} differs from token {at} on: {tokens} instead of {expected}"
            raise CaseFailure(case, reason, row, at)


def cut_at_stop(tokens: list[int], stops: tuple[int, ...]) -> list[int]:
    """Tokens up to and with the first stop token."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[:end]


# --- properties --------------------------------------------------------------------------------------------------


def equals_reference(subject: Subject, case: EngineCase) -> None:
    """The output is that of autoregressive decoding, token for token."""
    found = subject.run(case.prompts, case.settings)
    require_equal(case, found, subject.reference(case.prompts, case.settings), "not the autoregressive output")


def budget_is_exact(subject: Subject, case: EngineCase) -> None:
    """Without stop tokens every row gets exactly its budget."""
    for row, tokens in enumerate(subject.run(case.prompts, case.settings)):
        if len(tokens) != case.max_new_tokens:
            reason = f"row {row} has {len(tokens)} tokens, the budget is {case.max_new_tokens}"
            raise CaseFailure(case, reason, row, min(len(tokens), case.max_new_tokens))


def stop_is_exact(subject: Subject, case: EngineCase) -> None:
    """A stop token ends its row wherever in a block it falls, stays as the last token, and is no stop in a prompt."""
    free = subject.reference(case.prompts, case.settings)
    stops = (free[0][min(case.stop_at, case.max_new_tokens - 1)],)
    prompts = (*case.prompts[:-1], (*case.prompts[-1], stops[0]))
    settings = replace(case.settings, stop_token_ids=stops)
    wanted = [cut_at_stop(tokens, stops) for tokens in subject.reference(prompts, settings)]
    case = replace(case, prompts=prompts)
    require_equal(case, subject.run(prompts, settings), wanted, f"stop token {stops[0]}")


def rows_are_independent(subject: Subject, case: EngineCase) -> None:
    """Another last prompt changes no other row."""
    others = (*case.prompts[:-1], (*case.prompts[-1], *case.prompts[-1][:1]))
    first, second = subject.run(case.prompts, case.settings), subject.run(others, case.settings)
    require_equal(case, second[:-1], first[:-1], "another last prompt changes a row")


def order_does_not_matter(subject: Subject, case: EngineCase) -> None:
    """Prompts in reverse give outputs in reverse."""
    back = subject.run(case.prompts[::-1], case.settings)[::-1]
    require_equal(case, back, subject.run(case.prompts, case.settings), "the reverse order changes a row")


def batch_size_does_not_matter(subject: Subject, case: EngineCase) -> None:
    """One row at a time, or all at once."""
    one = subject.run(case.prompts, replace(case.settings, batch_size=1))
    everything = subject.run(case.prompts, replace(case.settings, batch_size=len(case.prompts)))
    require_equal(case, everything, one, "all rows at once differ from one at a time")


def draft_length_does_not_matter(subject: Subject, case: EngineCase) -> None:
    """One draft a round, or several."""
    one = subject.run(case.prompts, replace(case.settings, num_speculative_tokens=1))
    found = subject.run(case.prompts, case.settings)
    require_equal(case, found, one, f"k = {case.num_speculative_tokens} and 1 differ")


def larger_budget_extends(subject: Subject, case: EngineCase) -> None:
    """More budget continues an output and never changes it."""
    longer = subject.run(case.prompts, replace(case.settings, max_new_tokens=case.max_new_tokens + 4))
    found = subject.run(case.prompts, case.settings)
    cut = [row[: len(tokens)] for row, tokens in zip(longer, found, strict=True)]
    require_equal(case, found, cut, "a larger budget changes tokens")


def runs_repeat(subject: Subject, case: EngineCase) -> None:
    """The same call gives the same tokens."""
    first = subject.run(case.prompts, case.settings)
    require_equal(case, subject.run(case.prompts, case.settings), first, "a second run differs")


def samples_are_keyed(subject: Subject, case: EngineCase) -> None:
    """At temperature 1 the sample depends on the seed and the place of the prompt, not on batch or drafts."""
    if "keyed_sampling" not in subject.engine.supports:
        raise NotSupported("keyed sampling")
    settings = replace(case.settings, temperature=1.0, seed=case.stop_at)
    found = subject.run(case.prompts, settings)
    require_equal(case, found, subject.reference(case.prompts, settings), "not the autoregressive sample")


def samples_follow_the_law(subject: Subject, case: EngineCase) -> None:
    """At temperature 1 many continuations of one prompt are distributed as the reference's (one fixed test)."""
    if "sampling" not in subject.engine.supports:
        raise NotSupported("sampling")
    settings = EngineSettings(LAW_TOKENS, LAW_BATCH, 2, temperature=1.0, seed=1)
    prompts = [[4, 1]] * LAW_SAMPLES
    found = [tuple(tokens) for tokens in subject.run(prompts, settings)]
    reference = getattr(subject.engine, "reference", None) or subject.engine
    plain = replace(settings, num_speculative_tokens=0, seed=2)
    wanted = [tuple(tokens) for tokens in _guarded(reference, prompts, plain, subject.engine.vocab_size)]
    p_value = law_p_value(found, wanted)
    if p_value < LAW_FALSE_ALARM_RATE:
        reason = f"{LAW_SAMPLES} continuations of [4, 1] are not distributed as the reference's (p = {p_value:.1e})"
        raise CaseFailure(EngineCase(((4, 1),), LAW_TOKENS, LAW_BATCH, 2), reason)


Tokens = tuple[int, ...]


def law_p_value(found: list[Tokens], wanted: list[Tokens]) -> float:
    """P-value of the null that both samples of continuations have one law: of the whole, and of each of its tokens."""
    longest = max(len(tokens) for tokens in found + wanted)
    views = [slice(None), *(slice(i, i + 1) for i in range(longest))]
    p_values = [two_sample_p_value(*(Counter(tokens[v] for tokens in s) for s in (found, wanted))) for v in views]
    return min(1.0, len(views) * min(p_values))


def two_sample_p_value(first: Counter[Tokens], second: Counter[Tokens]) -> float:
    """Pearson's chi-squared test that two equally large samples have one law.

    Outcomes that are rare in both together share a cell with their neighbours in order, so that a large vocabulary
    leaves cells to compare, also where no outcome occurs twice.
    """
    both, cells = first + second, [[0, 0]]
    for key in sorted(both, key=lambda key: (both[key] >= CELL_SIZE, key)):
        if sum(cells[-1]) >= CELL_SIZE:
            cells.append([0, 0])
        cells[-1][0] += first[key]
        cells[-1][1] += second[key]
    if len(cells) > 1 and sum(cells[-1]) < CELL_SIZE:
        last = cells.pop()
        cells[-1] = [a + b for a, b in zip(cells[-1], last, strict=True)]
    return float(scipy.stats.chi2_contingency(list(zip(*cells, strict=True))).pvalue) if len(cells) > 1 else 1.0


Property = Callable[[Subject, EngineCase], None]
ENGINE_PROPERTIES: dict[str, Property] = {
    p.__name__: p
    for p in (
        equals_reference,
        budget_is_exact,
        stop_is_exact,
        rows_are_independent,
        order_does_not_matter,
        batch_size_does_not_matter,
        draft_length_does_not_matter,
        larger_budget_extends,
        runs_repeat,
        samples_are_keyed,
        samples_follow_the_law,
    )
}
ONCE = {"samples_follow_the_law"}  # one fixed case; the others are searched
__all__ = ["ENGINE_PROPERTIES", "CaseFailure", "EngineCase", "EngineTimeout", "Subject", "engine_cases"]
