"""Properties of what an engine tells beside its tokens, of settings of single rows, and of given drafts."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product

from refimpl.conformance.cases import COLD, EngineCase
from refimpl.conformance.protocol import Answer, Counters, EngineSettings, NotSupported, Prompts, RowSettings
from refimpl.conformance.subject import CaseFailure, Subject, require_equal
from refimpl.core.shown import counted
from refimpl.core.tokens import first_difference, until_stop

LOGPROB_TOLERANCE = 1e-3  # of float32
CUT = "\ufffd"  # stands for bytes of a character that is not whole
SCRIPTS: dict[str, Callable[[random.Random, int], tuple[int, int]]] = {  # k: drafts that are right, and all
    "oracle": lambda rng, k: (k, k),
    "wrong": lambda rng, k: (0, k),
    "ragged": lambda rng, k: (rng.randint(0, most := rng.randint(0, k)), most),
    "empty": lambda rng, k: (0, 0),
}
RowDrafts = tuple[tuple[int, ...], ...]  # by the number of generated tokens
Drafts = tuple[RowDrafts, ...]
FROM_THE_FIRST, ALWAYS_A_BONUS = (0, 1), (1, 0, None)
PENALTIES, MILD = (1.0, 1.8, 0.6), 1.05


def needs(subject: Subject, *abilities: str) -> None:
    """Raise NotSupported for the first ability that the engine does not state."""
    for ability in abilities:
        if ability not in subject.stated.supports:
            raise NotSupported(ability.replace("_", " "))


def logprobs_equal_reference(subject: Subject, case: EngineCase) -> None:
    """The log-probability of each token is the reference's, up to where the tokens part.

    Also of cold samples and of mildly penalized rows, whose first tokens are mostly the same.
    """
    needs(subject, "logprobs")
    supports, budget = subject.stated.supports, case.settings.max_new_tokens
    penalized = (RowSettings(budget, repetition_penalty=MILD),) * len(case.prompts)
    settings = [case.settings]
    settings += [replace(case.settings, temperature=COLD)] * bool(supports & {"sampling", "keyed_sampling"})
    settings += [replace(case.settings, rows=penalized)] * ("penalties" in supports)
    wanted = subject.reference_reports(case.prompts, case.settings)
    for each in settings:
        subject.calls.clear()
        _require_logprobs(subject.answer(case.prompts, replace(each, report=("logprobs",))), wanted)


def _require_logprobs(found: Answer, wanted: list[Answer]) -> None:
    for row, (tokens, logprobs, plain) in enumerate(zip(found.tokens, found.logprobs, wanted, strict=True)):
        same = first_difference(tokens, plain.tokens[0])
        for at, (own, right) in enumerate(zip(logprobs[:same], plain.logprobs[0], strict=False)):
            if not abs(own - right) <= LOGPROB_TOLERANCE:
                raise CaseFailure(f"row {row}, token {at}: log-probability {own:.4f} instead of {right:.4f}", row, at)


def texts_are_decoded(subject: Subject, case: EngineCase) -> None:
    """The text of each row is that of its ids."""
    needs(subject, "text")
    decode = getattr(subject.engine, "decode", None)
    if decode is None:
        raise NotSupported("text: no tokenizer decodes the ids (--tokenizer)")
    answer = subject.answer(case.prompts, replace(case.settings, report=("text",)))
    for row, (prompt, tokens, text) in enumerate(zip(case.prompts, answer.tokens, answer.texts, strict=True)):
        alone, behind = decode(tokens), decode([*prompt, *tokens]).removeprefix(decode(list(prompt)))
        if text.strip(CUT) not in (alone.strip(CUT), behind.strip(CUT)):
            raise CaseFailure(f"row {row} has the text {text!r}, its ids decode to {alone!r}", row)


def streams_are_whole(subject: Subject, case: EngineCase) -> None:
    """What comes piece by piece is together the reference's output."""
    needs(subject, "streaming")
    found = subject.run(case.prompts, replace(case.settings, stream=True))
    require_equal(found, subject.reference(case.prompts, case.settings), "streamed, not the autoregressive output")


def cancelled_rows_leave_no_trace(subject: Subject, case: EngineCase) -> None:
    """Clients of every other row leave early: their tokens are right so far, those of others and of later calls are."""
    needs(subject, "cancelling")
    wanted = subject.reference(case.prompts, case.settings)
    leaves = tuple(1 + row % 3 if row % 2 else None for row in range(len(wanted)))
    found = subject.run(case.prompts, replace(case.settings, cancel_after=leaves))
    pairs = zip(found, wanted, leaves, strict=True)
    begun = [whole if at is None else whole[: max(at, len(tokens))] for tokens, whole, at in pairs]
    require_equal(found, begun, "clients of other rows leave")
    require_equal(subject.run(case.prompts, case.settings), wanted, "clients of rows before have left")


def settings_are_of_the_row(subject: Subject, case: EngineCase) -> None:
    """Rows of one batch have settings of their own: budgets, stop tokens, temperatures and, where offered, penalties.

    Of hot rows only lengths are known.
    """
    needs(subject, "row_settings")
    penalties = PENALTIES if subject.penalizes else (1.0,)
    hot = 1.0 if {"sampling", "keyed_sampling"} & subject.stated.supports else 0.0
    free, rows = list[list[int]](), list[RowSettings]()
    for row, prompt in enumerate(case.prompts):
        penalty, heat = penalties[row % len(penalties)], hot * (row % 4 == 2)
        free += subject.reference((prompt,), case.settings, penalty)
        stops = (free[row][row % len(free[row])],) if row % 5 == 1 and not heat else ()
        rows.append(RowSettings(1 + (5 * row + 3) % len(free[row]), stops, heat, row, penalty))
    found = subject.run(case.prompts, replace(case.settings, rows=tuple(rows)))
    for row, (tokens, own) in enumerate(zip(found, rows, strict=True)):
        right = until_stop(free[row][: own.max_new_tokens], own.stop_token_ids)
        if (len(tokens) != len(right)) if own.temperature else (tokens != right):
            told = f"row {row} with {own} gives {tokens}" + f" instead of {right}" * (not own.temperature)
            raise CaseFailure(told, row, first_difference(tokens, right))


def counters_count_what_is_delivered(subject: Subject, case: EngineCase) -> None:
    """Tokens, drafts and rounds that a budget or a stop token cuts off do not count."""
    needs(subject, "counters")
    settings = replace(case.settings, report=("counters",))
    _require_counts(subject.answer(case.prompts, settings))
    stops = case.stops(subject.reference(case.prompts, case.settings))
    try:
        stopped = subject.answer(case.prompts, replace(settings, stop_token_ids=stops))
    except NotSupported:
        subject.calls.pop()
    else:
        _require_counts(stopped)


def _require_counts(answer: Answer) -> None:
    """Each round delivers a token of the target, too, which may be cut off in the last round of a row alone."""
    generated, drafted, accepted, rounds = answer.counters
    if answer.counters == Counters():
        raise NotSupported("counters: the engine has none")
    delivered, most = sum(map(len, answer.tokens)), sum(map(len, answer.tokens)) + len(answer.tokens)
    told = f"{counted(delivered, 'token')} in {counted(len(answer.tokens), 'row')} were delivered"
    if generated not in (None, delivered):
        raise CaseFailure(f"{told}, {generated} counted")
    if accepted is not None and accepted > min(delivered, delivered if drafted is None else drafted):
        raise CaseFailure(f"{told}, {drafted} drafts and {accepted} accepted ones counted")
    if accepted is not None and rounds is not None and accepted + rounds > most:
        raise CaseFailure(f"{told}, {accepted} accepted drafts in {rounds} rounds counted")


def given_drafts_change_nothing(subject: Subject, case: EngineCase) -> None:
    """Whatever drafts are tried (all right, all wrong, ragged, none), the output is the reference's."""
    needs(subject, "drafts")
    wanted = subject.reference(case.prompts, case.settings)
    for name in SCRIPTS:
        found = subject.run(case.prompts, replace(case.settings, drafts=_scripted(subject, case, name)))
        require_equal(found, wanted, f"{name} drafts: not the autoregressive output")


def acceptance_follows_the_drafts(subject: Subject, case: EngineCase) -> None:
    """Of given drafts those are accepted, and no others, that are the tokens which come."""
    needs(subject, "drafts", "counters")
    for name in SCRIPTS:
        answer_with(subject, case.prompts, case.settings, _scripted(subject, case, name), f"{name} drafts")


def answer_with(subject: Subject, prompts: Prompts, settings: EngineSettings, drafts: Drafts, what: str) -> Answer:
    """What the engine answers when it is given drafts.

    Engines may or may not draft before a row's first token, and may draft no more than its budget leaves.

    Raises:
        CaseFailure: its counters do not say so many drafts, or so many accepted, as its tokens show.
        NotSupported: it does not count both.
    """
    answer = subject.answer(prompts, replace(settings, drafts=drafts, report=("counters",)))
    _, drafted, accepted, _ = answer.counters
    if drafted is None or accepted is None:
        raise NotSupported("counters of drafted and accepted drafts")
    rows = [*zip(answer.tokens, drafts, strict=True)]
    ways = [
        tuple(map(sum, zip(*(_followed(*row, *way) for row in rows), strict=True)))
        for way in product(FROM_THE_FIRST, ALWAYS_A_BONUS)
    ]
    if (drafted, accepted) not in ways:
        right = " or ".join(f"{a} of {d}" for d, a in sorted(set(ways)))
        raise CaseFailure(f"{what}: {accepted} of {drafted} accepted, must be {right}")
    return answer


def _scripted(subject: Subject, case: EngineCase, name: str) -> Drafts:
    """Drafts at each place of each row: how many, and how many of them are right, is drawn by the script."""
    rng, k = random.Random(name), subject.limits.bounded(case.settings).num_speculative_tokens
    budget, size = case.settings.max_new_tokens, subject.stated.vocab_size
    further = subject.reference(case.prompts, replace(case.settings, max_new_tokens=budget + k))

    def proposed(row: list[int], at: int) -> tuple[int, ...]:
        right, drafted = SCRIPTS[name](rng, k)
        return tuple((token + (i >= right)) % size for i, token in enumerate(row[at : at + drafted]))

    return tuple(tuple(proposed(row, at) for at in range(budget)) for row in further)


def _followed(tokens: list[int], drafts: RowDrafts, at: int, bonus: int | None) -> tuple[int, int]:
    """Drafts that a row was given, and those that it took; `bonus`: places that drafts leave free."""
    drafted = accepted = 0
    while at < len(tokens):
        offered = drafts[at] if at < len(drafts) else ()
        offered = offered if bonus is None else offered[: max(0, len(tokens) - at - bonus)]
        wrong = first_difference(offered, tokens[at : at + len(offered)])
        right = len(offered) if wrong is None else wrong
        drafted, accepted, at = drafted + len(offered), accepted + right, at + right + 1
    return drafted, accepted


REPORTED = (
    logprobs_equal_reference,
    texts_are_decoded,
    streams_are_whole,
    cancelled_rows_leave_no_trace,
    settings_are_of_the_row,
    counters_count_what_is_delivered,
    given_drafts_change_nothing,
    acceptance_follows_the_drafts,
)
