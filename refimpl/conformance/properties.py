"""What must be true for every case of any engine, and which cases those are."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from refimpl.conformance import cases
from refimpl.conformance.cases import LATE, EngineCase
from refimpl.conformance.limits import Limits
from refimpl.conformance.protocol import Description, NotSupported
from refimpl.conformance.raggedness import ragged_cases, raggedness
from refimpl.conformance.reported import REPORTED, needs
from refimpl.conformance.sampled import OF_SAMPLES, acceptance_follows_the_law
from refimpl.conformance.subject import CaseFailure, Subject, all_equal, require_equal
from refimpl.core.shown import counted
from refimpl.core.tokens import until_stop


def equals_reference(subject: Subject, case: EngineCase) -> None:
    """The output is that of autoregressive decoding, token for token."""
    found = subject.run(case.prompts, case.settings)
    require_equal(found, subject.reference(case.prompts, case.settings), "not the autoregressive output")


def budget_is_exact(subject: Subject, case: EngineCase) -> None:
    """Without stop tokens every row gets exactly its budget."""
    budget = case.settings.max_new_tokens
    for row, tokens in enumerate(subject.run(case.prompts, case.settings)):
        if len(tokens) != budget:
            raise CaseFailure(
                f"row {row} has {counted(len(tokens), 'token')}, the budget is {budget}", row, min(len(tokens), budget)
            )


def stop_is_exact(subject: Subject, case: EngineCase) -> None:
    """A stop token ends its row wherever in a block it falls, stays as the last token, and is no stop in a prompt."""
    stops = case.stops(subject.reference(case.prompts, case.settings))
    prompts = case.prompts + ((*case.prompts[-1], stops[0]),) * case.with_stop_inside
    settings = replace(case.settings, stop_token_ids=stops)
    wanted = [until_stop(tokens, stops) for tokens in subject.reference(prompts, settings)]
    require_equal(subject.run(prompts, settings), wanted, f"stop tokens {list(stops)}")


def rows_are_independent(subject: Subject, case: EngineCase) -> None:
    """Another last prompt changes no other row."""
    others = (*case.prompts[:-1], (*case.prompts[-1], *case.prompts[-1][:1]))
    first, second = subject.run(case.prompts, case.settings), subject.run(others, case.settings)
    require_equal(second[:-1], first[:-1], "another last prompt changes a row")


def order_does_not_matter(subject: Subject, case: EngineCase) -> None:
    """Prompts in reverse give outputs in reverse."""
    back = subject.run(case.prompts[::-1], case.settings)[::-1]
    require_equal(back, subject.run(case.prompts, case.settings), "the reverse order changes a row")


def batch_size_does_not_matter(subject: Subject, case: EngineCase) -> None:
    """One row at a time, or all at once."""
    one = subject.run(case.prompts, replace(case.settings, batch_size=1))
    everything = subject.run(case.prompts, replace(case.settings, batch_size=len(case.prompts)))
    require_equal(everything, one, "all rows at once differ from one at a time")


def draft_length_does_not_matter(subject: Subject, case: EngineCase) -> None:
    """One draft a round, or several."""
    if subject.drafts_itself:
        raise NotSupported("the engine chooses the number of drafts itself")
    if subject.limits.k or subject.limits.max_k == 1:
        raise NotSupported(f"another number of drafts than {subject.limits.k or 1}")
    one = subject.run(case.prompts, replace(case.settings, num_speculative_tokens=1))
    found = subject.run(case.prompts, case.settings)
    require_equal(found, one, f"k = {case.settings.num_speculative_tokens} and 1 differ")


def larger_budget_extends(subject: Subject, case: EngineCase) -> None:
    """More budget continues an output and never changes it."""
    longer = subject.run(case.prompts, replace(case.settings, max_new_tokens=case.settings.max_new_tokens + 4))
    found = subject.run(case.prompts, case.settings)
    cut = [row[: len(tokens)] for row, tokens in zip(longer, found, strict=True)]
    require_equal(found, cut, "a larger budget changes tokens")


def runs_repeat(subject: Subject, case: EngineCase) -> None:
    """The same call gives the same tokens."""
    first = subject.run(case.prompts, case.settings)
    require_equal(subject.run(case.prompts, case.settings), first, "a second run differs")


def prompts_matter(subject: Subject, case: EngineCase) -> None:
    """Many different prompts do not all get the same tokens, as from an engine that ignores them (one fixed test)."""
    if not all_equal(subject.run(case.prompts, case.settings)):
        return
    if not subject.judges_itself and all_equal(subject.reference(case.prompts, case.settings)):
        raise NotSupported("the reference gives the same tokens after every prompt")
    raise CaseFailure(f"{len(case.prompts)} different prompts get the same tokens: prompts are ignored")


def serving_equals_reference(subject: Subject, case: EngineCase) -> None:
    """Prompts that come, and are cancelled, while others run get the reference's tokens, or the first of them.

    Many begin with the same tokens, and some come twice. Of a cancelled row there are no more tokens than its rounds
    can give, one at least where it was alone for long, and all of them where it would have ended long before.
    """
    needs(subject, "serving")
    wanted = subject.reference(case.prompts, replace(case.settings, submit_at=(), cancel_at=()))
    stops = case.stops(wanted)
    found = subject.run(case.prompts, replace(case.settings, stop_token_ids=stops))
    ends = [until_stop(tokens, stops) for tokens in wanted]
    require_equal(found, list(map(_begun, found, ends, case.settings.cancel_at)), "not the autoregressive output")
    a_round = subject.limits.bounded(case.settings).num_speculative_tokens + 1
    for row, (tokens, at) in enumerate(zip(found, case.settings.cancel_at, strict=True)):
        if at is not None and len(tokens) > at * a_round:
            told = f"row {row} has {counted(len(tokens), 'token')}, cancelled after {counted(at, 'round')}"
            raise CaseFailure(told, row, at * a_round)
        if len(found) == 1 and at is not None and at >= 2 * len(case.prompts[0]) + 2 and not tokens:
            raise CaseFailure(f"a row that was alone has no token, cancelled after {at} rounds", row, 0)


def _begun(found: list[int], wanted: list[int], cancel_at: int | None) -> list[int]:
    """What a row must have: all tokens, or as many of the first as were found where it may have ended early."""
    return wanted if cancel_at in (None, LATE) else wanted[: len(found)]


def next_turn_equals_reference(subject: Subject, case: EngineCase) -> None:
    """Prompts that go on with the text of earlier rows get the reference's tokens, in that call and in a later one."""
    wanted = subject.reference(case.prompts, case.settings)
    stops = case.stops(wanted)
    settings = replace(case.settings, stop_token_ids=stops)
    turns = tuple((*p, *until_stop(tokens, stops), p[0]) for p, tokens in zip(case.prompts, wanted, strict=True))
    wanted = [until_stop(tokens, stops) for tokens in subject.reference((*case.prompts, *turns), case.settings)]
    require_equal(subject.run((*case.prompts, *turns), settings), wanted, "prompts and their next turns")
    require_equal(subject.run(turns, settings), wanted[len(turns) :], "next turns of earlier prompts")


Property = Callable[[Subject, EngineCase], str | None]  # returns what a pass is worth, where that can be told
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
        prompts_matter,
        *OF_SAMPLES,
        serving_equals_reference,
        next_turn_equals_reference,
        *REPORTED,
        acceptance_follows_the_law,
        raggedness,
    )
}
ALL_PROPERTIES = tuple(ENGINE_PROPERTIES)
OF_BATCHES = {  # say nothing of an engine that answers for one prompt at a time
    "equals_reference", "rows_are_independent", "order_does_not_matter", "batch_size_does_not_matter",
    "serving_equals_reference",
}  # fmt: skip
SEARCHED: dict[str, Callable[[Description], Any]] = {  # strategies of cases, where they are special
    "stop_is_exact": partial(cases.engine_cases, stopped=True),
    "samples_are_keyed": partial(cases.engine_cases, sampled=True),
    "samples_end_right": partial(cases.engine_cases, sampled=True, stopped=True),
    "serving_equals_reference": cases.serving_cases,
}
FixedCases = Callable[[Limits, Description], tuple[EngineCase, ...]]
FURTHER: dict[str, FixedCases] = {  # behind those that are searched; of others the long case
    "equals_reference": cases.far_cases,
    "stop_is_exact": cases.stopped_cases,
    "samples_are_keyed": partial(cases.long_cases, sampled=True),
    "samples_end_right": partial(cases.long_cases, sampled=True),
    "serving_equals_reference": cases.served_cases,
}
FIXED: dict[str, FixedCases] = {  # in place of cases that are searched
    "next_turn_equals_reference": cases.turn_cases,
    "prompts_matter": cases.control_cases,
    "seeds_give_different_samples": cases.seed_cases,
    "temperature_matters": cases.warm_cases,
    "samples_follow_the_law": cases.law_cases,
    "counters_count_what_is_delivered": cases.short_cases,
    "settings_are_of_the_row": cases.mixed_cases,
    "given_drafts_change_nothing": cases.drafted_cases,
    "acceptance_follows_the_drafts": cases.drafted_cases,
    "acceptance_follows_the_law": partial(cases.law_cases, laws=cases.LAWS_OF_DRAFTS),
    "logprobs_equal_reference": cases.told_cases,
    "texts_are_decoded": cases.told_cases,
    "streams_are_whole": cases.told_cases,
    "cancelled_rows_leave_no_trace": cases.told_cases,
    "raggedness": ragged_cases,
}


def cases_of(name: str, limits: Limits, engine: Description) -> tuple[Any, tuple[EngineCase, ...]]:
    """The strategy of the cases of a property that are searched, None for none; and its fixed ones."""
    if name in FIXED:
        return None, FIXED[name](limits, engine)
    return SEARCHED.get(name, cases.engine_cases)(engine), FURTHER.get(name, cases.long_cases)(limits, engine)
