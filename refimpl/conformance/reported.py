"""Properties of what an engine tells beside its tokens, of settings of single rows, and of given drafts."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

from refimpl.conformance.cases import EngineCase
from refimpl.conformance.protocol import Counters, NotSupported, RowSettings
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
Script = list[tuple[int, int]]  # by the number of generated tokens
FROM_THE_FIRST, ALWAYS_A_BONUS = (0, 1), (1, 0, None)


def needs(subject: Subject, *abilities: str) -> None:
    """Raise NotSupported for the first ability that the engine does not state."""
    for ability in abilities:
        if ability not in subject.engine.supports:
            raise NotSupported(ability.replace("_", " "))


def logprobs_equal_reference(subject: Subject, case: EngineCase) -> None:
    """The log-probability of each token is the reference's, up to where the tokens part."""
    needs(subject, "logprobs")
    found = subject.answer(case.prompts, replace(case.settings, report=("logprobs",)))
    for row, wanted in enumerate(subject.reference_reports(case.prompts, case.settings)):
        same = first_difference(found.tokens[row], wanted.tokens[0])
        for at, (own, right) in enumerate(zip(found.logprobs[row][:same], wanted.logprobs[0], strict=False)):
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
    """Rows of one batch have budgets, stop tokens and temperatures of their own; of hot rows only lengths are known."""
    needs(subject, "row_settings")
    free, rows = subject.reference(case.prompts, case.settings), list[RowSettings]()
    hot = 1.0 if {"sampling", "keyed_sampling"} & set(subject.engine.supports) else 0.0
    for row, tokens in enumerate(free):
        stops = (tokens[row % len(tokens)],) if row % 3 == 1 else ()
        rows.append(RowSettings(1 + (5 * row + 3) % len(tokens), stops, hot if row % 4 == 2 else 0.0, row))
    found = subject.run(case.prompts, replace(case.settings, rows=tuple(rows)))
    for row, (tokens, own) in enumerate(zip(found, rows, strict=True)):
        right = until_stop((tokens if own.temperature else free[row])[: own.max_new_tokens], own.stop_token_ids)
        if tokens != right or (own.temperature and len(tokens) != own.max_new_tokens):
            told = f"row {row} with {own} gives {tokens}" + f" instead of {right}" * (not own.temperature)
            raise CaseFailure(told, row, first_difference(tokens, right))


def counters_count_what_is_delivered(subject: Subject, case: EngineCase) -> None:
    """Tokens, drafts and rounds that were cut off do not count; each round delivers a token of the target, too.

    It may be cut off in the last round of a row alone.
    """
    needs(subject, "counters")
    answer = subject.answer(case.prompts, replace(case.settings, report=("counters",)))
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
        _, drafts = _scripted(subject, case, name)
        found = subject.run(case.prompts, replace(case.settings, drafts=drafts))
        require_equal(found, wanted, f"{name} drafts: not the autoregressive output")


def acceptance_follows_the_drafts(subject: Subject, case: EngineCase) -> None:
    """Of drafts whose right part is known, so many are accepted, and no others.

    Engines may or may not draft before a row's first token, and may draft no more than its budget leaves.
    """
    needs(subject, "drafts", "counters")
    budget = case.settings.max_new_tokens
    for name in SCRIPTS:
        scripts, drafts = _scripted(subject, case, name)
        counters = subject.answer(case.prompts, replace(case.settings, drafts=drafts, report=("counters",))).counters
        if counters.drafted is None or counters.accepted is None:
            raise NotSupported("counters of drafted and accepted drafts")
        ways = [
            tuple(map(sum, zip(*(_followed(script, budget, *way) for script in scripts), strict=True)))
            for way in product(FROM_THE_FIRST, ALWAYS_A_BONUS)
        ]
        if (counters.drafted, counters.accepted) not in ways:
            told = f"{name} drafts: {counters.accepted} of {counters.drafted} accepted"
            raise CaseFailure(f"{told}, must be {' or '.join(f'{a} of {d}' for d, a in sorted(set(ways)))}")


def _scripted(subject: Subject, case: EngineCase, name: str) -> tuple[list[Script], Any]:
    """How many drafts are right at each place of each row, and how many there are; and the drafts."""
    rng, k = random.Random(name), subject.limits.bounded(case.settings).num_speculative_tokens
    budget, size = case.settings.max_new_tokens, subject.engine.vocab_size
    further = subject.reference(case.prompts, replace(case.settings, max_new_tokens=budget + k))
    scripts = [[SCRIPTS[name](rng, k) for _ in range(budget)] for _ in further]

    def proposed(row: list[int], at: int, right: int, drafted: int) -> tuple[int, ...]:
        return tuple((token + (i >= right)) % size for i, token in enumerate(row[at : at + drafted]))

    rows = zip(further, scripts, strict=True)
    return scripts, tuple(tuple(proposed(row, at, *plan) for at, plan in enumerate(script)) for row, script in rows)


def _followed(script: Script, budget: int, at: int, bonus: int | None) -> tuple[int, int]:
    """Drafts, and those among them that are delivered, of a row that goes on by a script; `bonus`: places kept free."""
    drafted = accepted = 0
    while at < budget:
        right, offered = script[at]
        offered = offered if bonus is None else min(offered, budget - at - bonus)
        right = min(right, offered, budget - at)
        drafted, accepted, at = drafted + offered, accepted + right, at + right + 1
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
