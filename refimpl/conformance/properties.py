"""What must be true for every case of any engine."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from refimpl.conformance.betting import Bets
from refimpl.conformance.cases import (
    HOT,
    LATE,
    LAW_BATCH,
    LAWS,
    MELTED,
    EngineCase,
    control_cases,
    drafted_cases,
    law_cases,
    mixed_cases,
    seed_cases,
    short_cases,
    told_cases,
    warm_cases,
)
from refimpl.conformance.laws import compare_laws
from refimpl.conformance.limits import Limits
from refimpl.conformance.protocol import EngineFailure, EngineGone, EngineLost, NotSupported
from refimpl.conformance.reported import REPORTED, needs
from refimpl.conformance.subject import ITSELF, CaseFailure, Subject, require_equal
from refimpl.core.shown import counted
from refimpl.core.tokens import until_stop

LAW_FALSE_ALARM_RATE = 1e-6 / len(LAWS)  # of one of them
SHARP = 0.999  # probability of the likeliest token from which on samples hardly vary
COLD, COOL, WARM = 0.05, 0.4, 1.6  # temperatures below `HOT`
FAR_SEED = 2**16 * 5**6  # equal to 0 modulo every power of two up to 65,536 and of ten up to a million
OTHER_SEEDS = (1, FAR_SEED, 2, 3, 4, 5, 6)  # beyond the first; from the third on where a row has stayed the same


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
    free = subject.reference(case.prompts, case.settings)[case.stop_row]
    stops = tuple(dict.fromkeys(free[offset] for offset in case.stop_at))
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
    if not _all_equal(subject.run(case.prompts, case.settings)):
        return
    if not subject.judges_itself and _all_equal(subject.reference(case.prompts, case.settings)):
        raise NotSupported("the reference gives the same tokens after every prompt")
    raise CaseFailure(f"{len(case.prompts)} different prompts get the same tokens: prompts are ignored")


def _all_equal(outputs: list[list[int]]) -> bool:
    return all(tokens == outputs[0] for tokens in outputs)


def samples_are_keyed(subject: Subject, case: EngineCase) -> None:
    """A sample depends on the seed and the place of the prompt, not on batch or drafts."""
    needs(subject, "keyed_sampling")
    found = subject.run(case.prompts, case.settings)
    require_equal(found, subject.reference(case.prompts, case.settings), "not the autoregressive sample")


def seeds_give_different_samples(subject: Subject, case: EngineCase) -> None:
    """Seeds near and far apart do not give the same tokens throughout, nor eight in any row (one fixed test, hot).

    As long as two samples of a token agree with a chance below 93 %, all of 8 × 32 tokens agree with less than 1e-6,
    and so do those of some row with seven other seeds. A target may be sharper than that: then samples of a temperature
    at which any varies must differ, and the property is not supported.
    """
    _needs_sampling(subject)
    _unless_sharp(subject, case, _seeds_differ)
    try:  # without drafts every token is one that the target adds after them
        _seeds_differ(subject, replace(case, settings=replace(case.settings, num_speculative_tokens=0)))
    except NotSupported:
        subject.calls.pop()


def _unless_sharp(subject: Subject, case: EngineCase, ask: Callable[[Subject, EngineCase], None]) -> None:
    """Ask; where that fails, ask at a temperature at which samples of any target vary, and fail if it does again."""
    try:
        return ask(subject, case)
    except CaseFailure as failure:
        failure.calls = tuple(subject.calls)
        try:
            ask(subject, replace(case, settings=replace(case.settings, temperature=MELTED)))
        except (EngineLost, EngineGone):
            raise
        except (CaseFailure, NotSupported, EngineFailure):
            raise failure from None
    told = f"samples at temperature {case.settings.temperature:g} hardly vary, as they do at {MELTED:g}"
    raise NotSupported(told)


def _seeds_differ(subject: Subject, case: EngineCase) -> None:
    first, *others = (replace(case.settings, seed=case.settings.seed + more) for more in (0, *OTHER_SEEDS))
    at = f"at temperature {first.temperature:g}, k = {first.num_speculative_tokens}: seed or temperature is ignored"
    found, same = subject.run(case.prompts, first), list(range(len(case.prompts)))
    for number, settings in enumerate(others):
        if number > 1 and not same:
            return
        other = subject.run(case.prompts, settings)
        if other == found:
            tokens = len(found) * first.max_new_tokens
            raise CaseFailure(f"seeds {first.seed} and {settings.seed} give the same {tokens} tokens {at}")
        same = [row for row in same if other[row] == found[row]]
    told = f"row {same[0]} has the same {first.max_new_tokens} tokens with {1 + len(OTHER_SEEDS)} seeds"
    raise CaseFailure(f"{told} {at}", same[0])


def temperature_matters(subject: Subject, case: EngineCase) -> None:
    """Samples at a high temperature are not those at a low one, nor at the next one if keyed (one fixed test).

    With keyed sampling the tokens differ, else their law does: 256 continuations show that as long as the likeliest one
    has less than 80 % at the high temperature. A target may be sharper than that: then samples of a temperature at
    which any varies must differ, and the property is not supported.
    """
    _needs_sampling(subject)
    _unless_sharp(subject, case, _temperature_matters)
    if "keyed_sampling" in subject.engine.supports:
        _neighbours_differ(subject, case)


def _temperature_matters(subject: Subject, case: EngineCase) -> None:
    keyed = "keyed_sampling" in subject.engine.supports
    hot, cold = (_at(subject, case, temperature) for temperature in (case.settings.temperature, COLD))
    samples = ([tuple(tokens) for tokens in outputs] for outputs in (hot, cold))
    if hot == cold or (not keyed and compare_laws(*samples).p_value >= LAW_FALSE_ALARM_RATE):
        raise _alike(case, COLD, case.settings.temperature, "ignored")


def _neighbours_differ(subject: Subject, case: EngineCase) -> None:
    """A clamped temperature gives the tokens of its neighbour.

    Judged where a right engine's tokens change for sure: below, where less than 80 % of the rows are the likeliest one
    at the higher temperature; above, where over half of them change on the way up from it.
    """
    subject.calls.clear()
    cold, cool, warm, hot = (_at(subject, case, temperature) for temperature in (COLD, COOL, WARM, HOT))
    likeliest = Counter(map(tuple, cool)).most_common(1)[0][1]
    changed = sum(a != b for a, b in zip(cool, warm, strict=True))
    if cold == cool and likeliest < 0.8 * len(cool):
        raise _alike(case, COLD, COOL, "clamped")
    if warm == hot and changed > len(cool) / 2:
        raise _alike(case, WARM, HOT, "clamped")


def _at(subject: Subject, case: EngineCase, temperature: float) -> list[list[int]]:
    return subject.run(case.prompts, replace(case.settings, temperature=temperature))


def _alike(case: EngineCase, low: float, high: float, what: str) -> CaseFailure:
    many = f"{len(case.prompts)} continuations"
    return CaseFailure(f"{many} at temperatures {low:g} and {high:g} are alike: temperature is {what}")


def samples_follow_the_law(subject: Subject, case: EngineCase) -> str:
    """Many continuations of one prompt are distributed as the reference's (fixed tests: two prompts, cold and hot).

    A reference that tells its law is bet against, call by call; else its samples are compared with the engine's.
    """
    _needs_sampling(subject)
    where = f"{list(case.prompts[0])} at temperature {case.settings.temperature:g}"
    if subject.law is None:
        return _compare_with_samples(subject, case, where)
    return _bet_on_the_law(subject, case, where, Bets(subject.law, case.settings.temperature))


def _bet_on_the_law(subject: Subject, case: EngineCase, where: str, bets: Bets) -> str:
    prompt, most = case.prompts[0], len(case.prompts)
    for call, start in enumerate(range(0, most, LAW_BATCH)):
        subject.calls.clear()
        settings = replace(case.settings, seed=case.settings.seed + call)
        found = subject.run(case.prompts[start : start + LAW_BATCH], settings)
        for row, tokens in enumerate(found):
            if len(tokens) != settings.max_new_tokens:
                has = f"{counted(len(tokens), 'token')}, not {settings.max_new_tokens}"
                raise CaseFailure(f"row {row} of the continuations of {where} has {has}", row)
            bets.see(prompt, tokens)
        if bets.log_wealth > -math.log(LAW_FALSE_ALARM_RATE):
            told = f"{start + len(found)} of {most} continuations of {where} are not distributed as the reference's"
            raise CaseFailure(f"{told} (a bet on it has won {bets.log_wealth / math.log(10):.0f} digits)")
    likely, bias = bets.visible_bias(LAW_FALSE_ALARM_RATE, prompt)
    if likely > SHARP:
        raise NotSupported(f"the reference's samples after {where} hardly vary")
    return f"after {where} {most} continuations: a bias of {bias:.2f} in a token of {likely:.2f} is surely seen"


def _compare_with_samples(subject: Subject, case: EngineCase, where: str) -> str:
    if subject.drafts_itself and subject.law_reference_kind.startswith(ITSELF):
        raise NotSupported("the law of samples without a reference: name one that samples")
    found = subject.run(case.prompts, case.settings)
    wanted = subject.plain(case.prompts, replace(case.settings, seed=case.settings.seed + 1)).tokens
    law = compare_laws(*([tuple(tokens) for tokens in outputs] for outputs in (found, wanted)))
    itself = f"; judged by its own samples without drafts: {subject.law_refusal}" * bool(subject.law_refusal)
    if law.p_value < LAW_FALSE_ALARM_RATE:
        many = f"{len(case.prompts)} continuations of {where}"
        why = "; they are all the same: do rows share their random numbers?" if _all_equal(found) else ""
        raise CaseFailure(f"{many} are not distributed as the reference's (p = {law.p_value:.1e}){why}{itself}")
    if law.num_cells == 1:
        raise NotSupported(f"the reference's samples after {where} hardly vary")
    visible = law.visible_difference(LAW_FALSE_ALARM_RATE)
    return (
        f"after {where} {law.num_cells} outcomes told apart; a total variation of {visible:.2f} is surely seen{itself}"
    )


def samples_end_right(subject: Subject, case: EngineCase) -> None:
    """When sampling, too, a row ends with its first stop token, or else has its whole budget.

    Stop tokens are taken from samples, so that keyed ones come again, and others often.
    """
    _needs_sampling(subject)
    settings = case.settings
    free = subject.run(case.prompts, settings)
    _require_ends(free, (), settings.max_new_tokens)
    stops = tuple(dict.fromkeys(free[case.stop_row][offset] for offset in case.stop_at))
    _require_ends(subject.run(case.prompts, replace(settings, stop_token_ids=stops)), stops, settings.max_new_tokens)


def _require_ends(found: list[list[int]], stops: tuple[int, ...], budget: int) -> None:
    for row, tokens in enumerate(found):
        until = until_stop(tokens, stops)
        if len(until) < len(tokens):
            raise CaseFailure(f"row {row} goes on behind the stop token {until[-1]}: {tokens}", row, len(until))
        if len(tokens) != budget and not (tokens and tokens[-1] in stops and len(tokens) < budget):
            has = f"row {row} has {counted(len(tokens), 'token')}"
            told = f"{has}, the budget is {budget}, the stop tokens are {list(stops)}"
            raise CaseFailure(told, row, min(len(tokens), budget))


def serving_equals_reference(subject: Subject, case: EngineCase) -> None:
    """Prompts that come, and are cancelled, while others run get the reference's tokens, or the first of them.

    Many begin with the same tokens, and some come twice. Of a cancelled row there are no more tokens than its rounds
    can give, one at least where it was alone for long, and all of them where it would have ended long before.
    """
    needs(subject, "serving")
    wanted = subject.reference(case.prompts, replace(case.settings, submit_at=(), cancel_at=()))
    stops = tuple(dict.fromkeys(wanted[case.stop_row][offset] for offset in case.stop_at))
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


def _needs_sampling(subject: Subject) -> None:
    needs(subject, "keyed_sampling" if "keyed_sampling" in subject.engine.supports else "sampling")


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
        samples_are_keyed,
        seeds_give_different_samples,
        temperature_matters,
        samples_follow_the_law,
        samples_end_right,
        serving_equals_reference,
        *REPORTED,
    )
}
SAMPLED = {"samples_are_keyed", "samples_end_right"}  # their cases have a temperature and a seed
STOPPED = {"stop_is_exact", "samples_end_right"}  # their cases have stop tokens
SERVED = {"serving_equals_reference"}  # their prompts come and go while others run
OF_BATCHES = SERVED | {  # say nothing of an engine that answers for one prompt at a time
    "equals_reference", "rows_are_independent", "order_does_not_matter", "batch_size_does_not_matter",
}  # fmt: skip
FixedCases = Callable[[Limits, int], tuple[EngineCase, ...]]
FIXED: dict[str, FixedCases] = {  # the cases of others are searched
    "prompts_matter": control_cases,
    "seeds_give_different_samples": seed_cases,
    "temperature_matters": warm_cases,
    "samples_follow_the_law": law_cases,
    "counters_count_what_is_delivered": short_cases,
    "settings_are_of_the_row": mixed_cases,
    "given_drafts_change_nothing": drafted_cases,
    "acceptance_follows_the_drafts": drafted_cases,
    "logprobs_equal_reference": told_cases,
    "texts_are_decoded": told_cases,
    "streams_are_whole": told_cases,
    "cancelled_rows_leave_no_trace": told_cases,
}
