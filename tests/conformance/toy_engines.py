"""Engines for tests of the kit: a hash in place of a model, right but for the change that a test makes."""

import hashlib
import math
import random
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from refimpl.conformance.cases import LAWS
from refimpl.conformance.kit import check_engine
from refimpl.conformance.limits import Limits
from refimpl.conformance.protocol import BLOCK_SIZE, EngineSettings, NotSupported
from refimpl.conformance.verdicts import Verdict

VOCAB_SIZE = 40
LAW_DRAFTS = max(law.drafts for law in LAWS)
UNKEYED = frozenset({"sampling"})
Prompts = list[list[int]]
Change = Callable[[Prompts, EngineSettings, Prompts], Any]


def continuation(prompt: list[int], settings: EngineSettings, noise: Any = None) -> list[int]:
    """Each token is a hash of all before it, and of the noise when sampling."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + settings.max_new_tokens:
        tokens.append(hashlib.sha256(repr((tokens, noise)).encode()).digest()[0] % VOCAB_SIZE)
        if tokens[-1] in settings.stop_token_ids:
            break
    return tokens[len(prompt) :]


def keyed_noise(settings: EngineSettings, place: int) -> Any:
    """What a sample depends on beside its prefix."""
    return (settings.temperature, settings.seed, place) if settings.temperature else None


def drawn(prompt: list[int], settings: EngineSettings, noise: Any) -> list[int]:
    """Samples of a law that depends on the temperature: logits in 0 … 16, a hash of all before."""
    tokens = list(prompt)
    for _ in range(settings.max_new_tokens):
        logits = hashlib.sha512(repr(tokens).encode()).digest()[:VOCAB_SIZE]
        weights = [math.exp(logit / 16 / settings.temperature) for logit in logits]
        tokens += random.Random(repr((noise, len(tokens)))).choices(range(VOCAB_SIZE), weights)
        if tokens[-1] in settings.stop_token_ids:
            break
    return tokens[len(prompt) :]


class Toy:
    """A right engine whose answers a test changes."""

    vocab_size: Any = VOCAB_SIZE
    supports: Any = frozenset({"sampling", "keyed_sampling"})

    def __init__(self, change: Change | None = None, **attributes: Any):
        self.change = change
        vars(self).update(attributes)

    def __call__(self, prompts: Prompts, settings: EngineSettings) -> Any:
        outputs = [continuation(p, settings, keyed_noise(settings, i)) for i, p in enumerate(prompts)]
        return self.change(prompts, settings, outputs) if self.change else outputs


def verdict_of(engine: Any, rule: str, **options: Any) -> Verdict:
    """What the kit says of an engine by one property."""
    (verdict,) = check_engine(engine, properties=[rule], **options).verdicts
    return verdict


def next_id(tokens: list[int]) -> list[int]:
    """The same tokens but for the last."""
    return [*tokens[:-1], (tokens[-1] + 1) % VOCAB_SIZE]


def make() -> Toy:
    """A right engine."""
    return Toy()


def with_prompts() -> Toy:
    """A careless engine that returns each prompt before its output."""
    return Toy(lambda prompts, _, outputs: [prompt + output for prompt, output in zip(prompts, outputs, strict=True)])


def until_cancelled(settings: EngineSettings, outputs: Prompts) -> Prompts:
    """A token a round, for each row as long as it is there."""
    ends = settings.cancel_at or (None,) * len(outputs)
    return [tokens[:at] for tokens, at in zip(outputs, ends, strict=True)]


def refusing(what: str = "all") -> Toy:
    """An engine that refuses everything, or all but single prompts."""

    def refuse(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        if what == "all" or len(prompts) > 1:
            raise NotSupported("batches")
        return until_cancelled(settings, outputs)

    return Toy(refuse, supports=frozenset())


def of_thread() -> Toy:
    """An engine whose only token is the thread that asks."""
    return Toy(lambda *_: [[threading.get_ident()]], made_in=threading.get_ident())


def exiting(when: str = "asked") -> Toy:
    """An engine that ends the process, when it is made or asked."""
    return Toy(lambda *_: sys.exit(0)) if when == "asked" else sys.exit(0)


# --- engines that lie ------------------------------------------------------------------------------------------------

Misread = Callable[[EngineSettings], EngineSettings]


def _lie(when: Callable[[Prompts, EngineSettings], Any]) -> Callable[[], Toy]:
    """A factory of engines whose last row is wrong where `when` says so."""
    return lambda: Toy(lambda p, s, outputs: [*outputs[:-1], next_id(outputs[-1])] if when(p, s) else outputs)


def _in_batches(prompts: Prompts, settings: EngineSettings) -> int:
    return min(len(prompts), settings.batch_size)


def _otherwise(wrong: Misread, **attributes: Any) -> Callable[[], Toy]:
    """A factory of engines, references included, that decode with other settings than were asked for."""
    return lambda: Toy(lambda prompts, settings, _: Toy()(prompts, wrong(settings)), **attributes)


def _resampled(wrong: Misread, **attributes: Any) -> Callable[[], Toy]:
    """The same where they sample."""
    return _otherwise(lambda s: wrong(s) if s.temperature else s, **attributes)


def _drafting(wrong: Misread) -> Callable[[], Toy]:
    """The same of many drafts, and of samples that have no key."""
    return _resampled(lambda s: wrong(s) if s.num_speculative_tokens > LAW_DRAFTS else s, supports=UNKEYED)


def served_otherwise(wrong: Misread) -> Callable[[], Toy]:
    """The same where prompts come while others run."""
    return _serving(
        lambda prompts, s, outputs: until_cancelled(s, Toy()(prompts, wrong(s))) if s.submit_at else outputs,
        supports={"serving", "sampling", "keyed_sampling"},
    )


def _serving(change: Change, supports: Any = frozenset({"serving"})) -> Callable[[], Toy]:
    """A factory of engines that say that they serve."""
    return lambda: Toy(change, supports=supports)


def _flaky() -> Toy:
    calls: list[int] = []
    return _lie(lambda *_: calls.append(1) or len(calls) % 3 == 0)()


def _stateful() -> Toy:
    seen: set[str] = set()
    return _lie(lambda *asked: repr(asked) in seen or seen.add(repr(asked)))()


def _gone(_: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
    """Nothing of a row that is ever cancelled."""
    ends = settings.cancel_at or (None,) * len(outputs)
    return [tokens if at is None else [] for tokens, at in zip(outputs, ends, strict=True)]


def _aborted(_: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
    """Nothing of a row that is cancelled before it has ended."""
    kept = until_cancelled(settings, outputs)
    return [tokens if tokens == whole else [] for tokens, whole in zip(kept, outputs, strict=True)]


def _seeded(rows: Callable[[int], bool]) -> Callable[[], Toy]:
    """A factory of engines, references included, that give their seed to some rows alone."""

    def change(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        unseeded = Toy()(prompts, replace(settings, seed=0))
        return [outputs[i] if rows(i) else unseeded[i] for i in range(len(prompts))]

    return lambda: Toy(change)


def with_temperature(wrong: Misread = lambda settings: settings, **attributes: Any) -> Callable[[], Toy]:
    """A factory of engines that draw from a law of the temperature, with other settings than were asked for."""

    def change(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        other = wrong(settings)
        return [drawn(p, other, (other.seed, i)) for i, p in enumerate(prompts)] if settings.temperature else outputs

    return lambda: Toy(change, **attributes)


def _clamped(low: float = 0.0, high: float = math.inf) -> Misread:
    return lambda settings: replace(settings, temperature=min(max(settings.temperature, low), high))


def _clamped_with_drafts(low: float = 0.0, high: float = math.inf) -> Misread:
    return lambda settings: _clamped(low, high)(settings) if settings.num_speculative_tokens else settings


def _draws_low(when: Callable[[EngineSettings], bool], token: int) -> Callable[[], Toy]:
    """A factory of engines that never sample the upper half of the ids at one place, unless they must stop."""
    right = with_temperature(supports=UNKEYED)()

    def change(prompts: Prompts, settings: EngineSettings, _: Prompts) -> Prompts:
        rows = right(prompts, settings)
        wrong = settings.temperature > 0 and not settings.stop_token_ids and when(settings)
        return [[t // 2 if wrong and i == token else t for i, t in enumerate(tokens)] for tokens in rows]

    return lambda: Toy(change, supports=UNKEYED)


def _all_end_at_once(_: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
    """Wrong where all rows of several end with the same token before their budget."""
    ends = {len(tokens) for tokens in outputs}
    together = len(outputs) > 1 and len(ends) == 1 and max(ends) < settings.max_new_tokens
    return list(map(next_id, outputs)) if together else outputs


def _of_all_prompts(prompts: Prompts, settings: EngineSettings, _: Prompts) -> Prompts:
    """Samples depend on how many prompts there are."""
    return Toy()(prompts, replace(settings, seed=settings.seed + len(prompts) * (settings.temperature > 0)))


def _first_stop(settings: EngineSettings) -> EngineSettings:
    """Ends at the first of the stop tokens alone."""
    return replace(settings, stop_token_ids=settings.stop_token_ids[:1])


def _tired(after: int) -> Callable[[], Toy]:
    """A factory of engines that are wrong for who comes after so many rounds of service."""

    def change(_: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        come = settings.submit_at or (0,) * len(outputs)
        whole = [next_id(tokens) if at > after else tokens for tokens, at in zip(outputs, come, strict=True)]
        return until_cancelled(settings, whole)

    return _serving(change)


def _ends_a_block(prompts: Prompts, _: EngineSettings, outputs: Prompts) -> Prompts:
    """Wrong after a prompt that ends with a block, all of which another has begun with before it."""
    ends = [len(p) % BLOCK_SIZE == 0 and any(q[: len(p)] == p for q in prompts[:i]) for i, p in enumerate(prompts)]
    return [next_id(tokens) if wrong else tokens for tokens, wrong in zip(outputs, ends, strict=True)]


def _looks_aside(prompts: Prompts, _: EngineSettings, outputs: Prompts) -> Prompts:
    """The last row but one is wrong beside a last prompt of odd length."""
    wrong = len(prompts) - 2 if len(prompts[-1]) % 2 else -1
    return [next_id(tokens) if i == wrong else tokens for i, tokens in enumerate(outputs)]


def _a_round_late(_: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
    """As many tokens as rounds can give, of one round too many where a row is cancelled."""
    most = [None if at is None else (at + 1) * (settings.num_speculative_tokens + 1) for at in settings.cancel_at]
    return [tokens[:end] for tokens, end in zip(outputs, most or [None] * len(outputs), strict=True)]


class Liar(NamedTuple):
    """An engine that lies.

    Attributes:
        rule: the property that is there to see it.
        make: a factory.
        needed: further arguments of the kit without which it is not seen.
        blind: what the report says then that it has not looked at.
    """

    rule: str
    make: Callable[[], Toy]
    needed: Mapping[str, Any] = {}
    blind: str = ""


_SEEN: dict[str, Any] = {
    "by batch": ("equals_reference", _lie(lambda p, s: _in_batches(p, s) > 1)),
    "by batch, and one at a time": (
        "batch_size_does_not_matter", _lie(lambda p, s: _in_batches(p, s) > 1),
    ),
    "by batch without drafts": (
        "equals_reference", _lie(lambda p, s: _in_batches(p, s) > 1 and not s.num_speculative_tokens),
    ),
    "by many drafts": ("equals_reference", _lie(lambda _, s: s.num_speculative_tokens > 5)),
    "by drafts": ("draft_length_does_not_matter", _lie(lambda _, s: s.num_speculative_tokens > 1)),
    "by budget": ("larger_budget_extends", _lie(lambda _, __: True)),
    "by place": ("order_does_not_matter", lambda: Toy(lambda _, __, rows: [next_id(rows[0]), *rows[1:]])),
    "by neighbour": ("rows_are_independent", lambda: Toy(_looks_aside)),
    "cancelled a round late": ("serving_equals_reference", _serving(_a_round_late)),
    "duplicates": ("equals_reference", _lie(lambda p, _: len(p) > len({tuple(prompt) for prompt in p}))),
    "state": ("runs_repeat", _stateful),
    "flakiness": ("runs_repeat", _flaky),
    "ignored timetable": ("serving_equals_reference", _serving(lambda _, __, outputs: outputs)),
    "cancelled rows are lost": ("serving_equals_reference", _serving(_gone)),
    "aborted rows are empty": ("serving_equals_reference", _serving(_aborted)),
    "stops forgotten while serving": (
        "serving_equals_reference", served_otherwise(lambda s: replace(s, stop_token_ids=())),
    ),
    "another seed while serving": ("serving_equals_reference", served_otherwise(lambda s: replace(s, seed=1))),
    "a block in common": ("equals_reference", lambda: Toy(_ends_a_block)),
    "rare ids": ("equals_reference", _lie(lambda p, _: any(VOCAB_SIZE - 1 in prompt for prompt in p))),
    "seed-blind bonus": (
        "seeds_give_different_samples",
        _resampled(lambda s: replace(s, seed=0) if not s.num_speculative_tokens else s),
    ),
    "a seed for the first row": ("seeds_give_different_samples", _seeded(lambda row: row == 0)),
    "a seed for every other row": ("seeds_give_different_samples", _seeded(lambda row: row % 2 == 0)),
    "stops ignored when sampling": ("samples_end_right", _drafting(lambda s: replace(s, stop_token_ids=()))),
    "budget overshot when sampling": (
        "samples_end_right", _drafting(lambda s: replace(s, max_new_tokens=s.max_new_tokens + 1)),
    ),
    "temperature twice with drafts": (
        "samples_are_keyed",
        _resampled(lambda s: replace(s, temperature=s.temperature ** (2 if s.num_speculative_tokens else 1))),
    ),
    "by number of prompts": ("samples_are_keyed", lambda: Toy(_of_all_prompts)),
    "always the likeliest": ("seeds_give_different_samples", _resampled(lambda s: replace(s, temperature=0.0))),
    "ignored temperature": ("temperature_matters", _resampled(lambda s: replace(s, temperature=1.0))),
    "first of two stops": ("stop_is_exact", _otherwise(_first_stop)),
    "first of two stops when sampling": ("samples_end_right", _drafting(_first_stop)),
    "first of two stops while serving": ("serving_equals_reference", served_otherwise(_first_stop)),
    "all end at once": ("stop_is_exact", lambda: Toy(_all_end_at_once)),
    "seeds modulo 8": ("seeds_give_different_samples", _resampled(lambda s: replace(s, seed=s.seed % 8))),
    "seeds modulo 65,536": ("seeds_give_different_samples", _resampled(lambda s: replace(s, seed=s.seed % 65536))),
    "third token": ("samples_follow_the_law", _draws_low(lambda s: s.num_speculative_tokens > 0, 2)),
    "fourth token": ("samples_follow_the_law", _draws_low(lambda s: s.num_speculative_tokens > 0, 3)),
    "drafts beyond the second": ("samples_follow_the_law", _draws_low(lambda s: s.num_speculative_tokens > 2, 2)),
    "at least 0.5 hot": ("temperature_matters", with_temperature(_clamped(low=0.5))),
    "at most 1.5 hot": ("temperature_matters", with_temperature(_clamped(high=1.5))),
    "at least 0.5 hot with drafts": (
        "samples_follow_the_law", with_temperature(_clamped_with_drafts(low=0.5), supports=UNKEYED),
    ),
    "at most 1.5 hot with drafts": (
        "samples_follow_the_law", with_temperature(_clamped_with_drafts(high=1.5), supports=UNKEYED),
    ),
    "after eight rounds of service": ("serving_equals_reference", _tired(8)),
    "prompts over 63": ("equals_reference", _lie(lambda p, _: max(map(len, p)) > 63)),
    "prompts over 100": ("equals_reference", _lie(lambda p, _: max(map(len, p)) > 100)),
    "batches over 16": ("equals_reference", _lie(lambda p, s: _in_batches(p, s) > 16)),
    "batches over 32": ("equals_reference", _lie(lambda p, s: _in_batches(p, s) > 32)),
    "outputs over 64": ("equals_reference", _lie(lambda p, s: len(p) > 1 and s.max_new_tokens > 64)),
}  # fmt: skip
LIARS = {name: Liar(*told) for name, told in _SEEN.items()} | {
    "big batch only": Liar(
        "equals_reference", _lie(lambda p, s: _in_batches(p, s) > 33),
        {"limits": Limits(max_batch=34)}, "batches over 33 rows",
    ),
    "big k only": Liar(
        "equals_reference", _lie(lambda _, s: s.num_speculative_tokens > 8),
        {"limits": Limits(max_k=12)}, "more than 8 drafts a round",
    ),
    "long prompts only": Liar(
        "equals_reference", _lie(lambda p, _: max(map(len, p)) > 131),
        {"limits": Limits(prompt_tokens=140)}, "prompts over 130 tokens",
    ),
    "long outputs only": Liar(
        "equals_reference", _lie(lambda p, s: len(p) > 1 and s.max_new_tokens > 70),
        {"limits": Limits(new_tokens=80)}, "outputs over 66 tokens",
    ),
    "clamped alone, too": Liar(
        "samples_follow_the_law", with_temperature(_clamped(low=0.5), supports=UNKEYED),
        {"reference": with_temperature()()}, "no reference was named",
    ),
    "wrong alone, too": Liar(
        "equals_reference", lambda: Toy(lambda prompts, s, _: Toy()(list(map(next_id, prompts)), s)),
        {"reference": Toy()}, "no reference was named",
    ),
}  # fmt: skip
NEVER_SEEN = {  # and what the report says that it has not looked at
    "samples hotter than 2": (
        with_temperature(lambda s: replace(s, seed=0) if 2 < s.temperature < 1000 else s),
        "the law of samples at temperatures outside 0.25 to 2",
    ),
    "fifth token": (
        _draws_low(lambda s: s.num_speculative_tokens > 0, 4),
        "after 5 tokens of prompt and 4 new ones",
    ),
    "after thirty rounds of service": (_tired(30), "prompts that come after round 18 of a service"),
}
