"""Properties of samples: their seeds, their temperature, their law, and where they end."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from refimpl.conformance.betting import Bets, law_at
from refimpl.conformance.cases import COLD, HOT, LAW_BATCH, LAWS, MELTED, EngineCase
from refimpl.conformance.laws import binomial_p_value, compare_laws, visible_rate
from refimpl.conformance.protocol import EngineFailure, EngineGone, EngineLost, EngineSettings, NotSupported, Prompts
from refimpl.conformance.reported import answer_with, needs
from refimpl.conformance.subject import ITSELF, CaseFailure, Subject, all_equal, require_equal
from refimpl.core.shown import counted
from refimpl.core.tokens import until_stop

LAW_FALSE_ALARM_RATE, ACCEPTANCE_FALSE_ALARM_RATE = 1e-6 / len(LAWS), 1e-6  # of one of them
SHARP = 0.999  # probability of the likeliest token from which on samples hardly vary
COOL, WARM = 0.4, 1.6  # temperatures between `COLD` and `HOT`
FAR_SEED = 2**16 * 5**6  # equal to 0 modulo every power of two up to 65,536 and of ten up to a million
OTHER_SEEDS = (1, FAR_SEED, 2, 3, 4, 5, 6)  # beyond the first; from the third on where a row has stayed the same


def _needs_sampling(subject: Subject) -> None:
    needs(subject, "keyed_sampling" if "keyed_sampling" in subject.stated.supports else "sampling")


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
    if "keyed_sampling" in subject.stated.supports:
        _neighbours_differ(subject, case)


def _temperature_matters(subject: Subject, case: EngineCase) -> None:
    keyed = "keyed_sampling" in subject.stated.supports
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
    prompt, most, seen = case.prompts[0], len(case.prompts), 0
    for rows, settings in _calls(subject, case):
        for row, tokens in enumerate(subject.run(rows, settings)):
            if len(tokens) != settings.max_new_tokens:
                has = f"{counted(len(tokens), 'token')}, not {settings.max_new_tokens}"
                raise CaseFailure(f"row {row} of the continuations of {where} has {has}", row)
            bets.see(prompt, tokens)
        seen += len(rows)
        if bets.log_wealth > -math.log(LAW_FALSE_ALARM_RATE):
            told = f"{seen} of {most} continuations of {where} are not distributed as the reference's"
            raise CaseFailure(f"{told} (a bet on it has won {bets.log_wealth / math.log(10):.0f} digits)")
    likely, bias = bets.visible_bias(LAW_FALSE_ALARM_RATE, prompt)
    if likely > SHARP:
        raise NotSupported(f"the reference's samples after {where} hardly vary")
    return f"after {where} {most} continuations: a bias of {bias:.2f} in a token of {likely:.2f} is surely seen"


def _calls(subject: Subject, case: EngineCase) -> Iterator[tuple[Prompts, EngineSettings]]:
    """The prompts of a case a few at a time, with seeds of their own; a failure shows the last call alone."""
    for call, start in enumerate(range(0, len(case.prompts), LAW_BATCH)):
        subject.calls.clear()
        yield case.prompts[start : start + LAW_BATCH], replace(case.settings, seed=case.settings.seed + call)


def _compare_with_samples(subject: Subject, case: EngineCase, where: str) -> str:
    if subject.drafts_itself and subject.law_reference_kind.startswith(ITSELF):
        raise NotSupported("the law of samples without a reference: name one that samples")
    found = subject.run(case.prompts, case.settings)
    wanted = subject.plain(case.prompts, replace(case.settings, seed=case.settings.seed + 1)).tokens
    law = compare_laws(*([tuple(tokens) for tokens in outputs] for outputs in (found, wanted)))
    itself = f"; judged by its own samples without drafts: {subject.law_refusal}" * bool(subject.law_refusal)
    if law.p_value < LAW_FALSE_ALARM_RATE:
        many = f"{len(case.prompts)} continuations of {where}"
        why = "; they are all the same: do rows share their random numbers?" if all_equal(found) else ""
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
    stops = case.stops(free)
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


def acceptance_follows_the_law(subject: Subject, case: EngineCase) -> str:
    """When sampling, a given draft is accepted as often as the reference draws it (one fixed test, exact binomial).

    The draft is the likeliest second token after the likeliest first one.
    """
    _needs_sampling(subject)
    needs(subject, "drafts", "counters")
    if subject.law is None:
        raise NotSupported("the law of samples: no reference tells it")
    prompt, temperature = case.prompts[0], case.settings.temperature
    first = int(law_at(temperature, subject.law(list(prompt))).argmax())
    after = law_at(temperature, subject.law([*prompt, first]))
    draft, chance = int(after.argmax()), float(after.max())
    second: list[list[int]] = []
    for rows, settings in _calls(subject, case):
        answer = answer_with(subject, rows, settings, (((), (draft,)),) * len(rows), "sampled")
        second += [tokens[1:2] for tokens in answer.tokens if tokens[:1] == [first]]
    told = f"of probability {chance:.2f}, given after {[*prompt, first]} at temperature {temperature:g}"
    accepted = second.count([draft])
    if not second or chance > SHARP:
        raise NotSupported(f"{counted(len(second), 'draft')} {told}, show nothing")
    if binomial_p_value(accepted, len(second), chance) < ACCEPTANCE_FALSE_ALARM_RATE:
        raise CaseFailure(f"{accepted} of {counted(len(second), 'draft')} {told}, are accepted")
    visible = visible_rate(len(second), chance, ACCEPTANCE_FALSE_ALARM_RATE)
    return f"{counted(len(second), 'draft')} {told}: acceptance that differs by {visible:.2f} is surely seen"


OF_SAMPLES = (
    samples_are_keyed,
    seeds_give_different_samples,
    temperature_matters,
    samples_follow_the_law,
    samples_end_right,
)
