"""Cases for any engine: searched ones, and fixed ones that go further."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any, NamedTuple

from hypothesis import strategies as st

from refimpl.conformance.limits import LONG_BATCH, Limits
from refimpl.conformance.protocol import Description, EngineSettings, Prompts
from refimpl.core.tokens import EOS, PAD

MAX_PROMPTS, MAX_PROMPT_TOKENS = 9, 10
BUDGETS = (1, 2, 3, *2 * tuple(range(4, 13)))  # short ones end before anything can go wrong
DRAFTS = (1, 2, 2, 3, 3, 4, 4, 5, 6, 8)
BATCHES, WIDE_BATCHES = (1, 2, 2, 3, 3, 4, 4, 5), (2, 4, 6, 8, 8)
TEMPERATURES = (1.0, 0.5, 2.0)  # at 1 alone, a temperature that is applied twice cannot be told
SEED_ROWS, SEED_TOKENS = 8, 32
CONTROL_ROWS, CONTROL_PROMPT_TOKENS = 16, 8
WIDE_ROWS = (17, 33)  # one more than a power of two
LATE = 1000  # rounds after which any row of the cases has ended
LAST_ROUND = 18  # in which a prompt comes
ROUNDS_ALONE = 6  # of a row that is then cancelled
WARM_ROWS, WARM_TOKENS, COLD, HOT = 256, 2, 0.05, 2.0
MELTED = 1000.0  # a temperature at which samples vary, however sharp the target
LAW_BATCH = 128
SHORT_BUDGETS = (1, 2, 3, 5, 9)


class Law(NamedTuple):
    """Samples whose distribution is judged.

    Attributes:
        temperature: a sharp law rejects drafts, so that what replaces them counts; at 1 alone, one that is applied
            twice cannot be told, nor one that is clamped where the others lie.
        share: of the samples that are asked for; extreme temperatures move the law far, so that few show it.
    """

    prompt: tuple[int, ...]
    temperature: float
    drafts: int
    tokens: int
    share: float = 1.0


LAWS = (
    Law((4, 1), 0.7, 3, 4),  # nothing to look up
    Law((4, 1, 4, 1, 4), 2.0, 2, 3),  # something to look up
    Law((4, 1), 0.25, 2, 2, 0.25),
)
LAWS_OF_DRAFTS = (Law((4, 1), 1.0, 1, 3, 0.25),)  # that are given


@dataclass(frozen=True)
class EngineCase:
    """One example.

    Attributes:
        prompts, settings: what the engine is asked.
        stop_at, stop_row: offsets in that row's reference whose tokens serve as stop tokens, where some are wanted.
        with_stop_inside: a prompt is added that contains a stop token.
    """

    prompts: Prompts
    settings: EngineSettings
    stop_at: tuple[int, ...] = (0,)
    stop_row: int = 0
    with_stop_inside: bool = True

    def stops(self, outputs: list[list[int]]) -> tuple[int, ...]:
        """The stop tokens that the offsets stand for in some outputs."""
        return tuple(dict.fromkeys(outputs[self.stop_row][offset] for offset in self.stop_at))


def offered_ids(vocab_size: int) -> list[int]:
    """All ids of a small vocabulary, at most 64 of a large one.

    From a large range Hypothesis would draw numbers that it finds in loaded modules, so that runs would not repeat.
    """
    some = random.Random(vocab_size).sample(range(vocab_size), min(vocab_size, 61))
    return sorted({*some, PAD, min(EOS, vocab_size - 1), vocab_size - 1})


def _prompts(draw: Any, vocab_size: int, kind: str) -> Prompts:
    """Prompts of one case.

    Ragged ones; of one length, so that groups form; more than fit into most batches; or such as repeat themselves, so
    that a lookup finds something to propose. In the last two kinds the first prompt comes again at the end.
    """
    ids = offered_ids(vocab_size)
    token = st.sampled_from(ids) | st.sampled_from([token for token in (PAD, EOS) if token in ids])
    prompt = st.lists(token, min_size=1, max_size=MAX_PROMPT_TOKENS).map(tuple)
    prompts = draw(st.lists(prompt, min_size=6 if kind == "wide" else 1, max_size=MAX_PROMPTS - 1))
    if kind == "even":
        prompts = [(tokens * MAX_PROMPT_TOKENS)[: len(prompts[0])] for tokens in prompts]
    if kind == "repeating":
        prompts = [tokens[: MAX_PROMPT_TOKENS // 3] * 3 for tokens in prompts]
    return (*prompts, prompts[0]) if kind in ("wide", "repeating") else tuple(prompts)


@st.composite
def engine_cases(draw: Any, engine: Description, *, sampled: bool = False, stopped: bool = False) -> EngineCase:
    """Batches of few rows or many, small when shrunk.

    Args:
        draw: given by Hypothesis.
        engine: what it says of itself.
        sampled: with a temperature and a seed.
        stopped: with stop tokens of any row.
    """
    kind = draw(st.sampled_from(("ragged", "even", "wide", "repeating")))
    prompts = _prompts(draw, engine.vocab_size, kind)
    settings = EngineSettings(
        max_new_tokens=draw(st.sampled_from(BUDGETS)),
        batch_size=draw(st.sampled_from(WIDE_BATCHES if kind == "wide" else BATCHES)),
        num_speculative_tokens=draw(st.sampled_from(DRAFTS)),
        temperature=draw(st.sampled_from(TEMPERATURES)) if sampled else 0.0,
        seed=draw(st.integers(0, 99)) if sampled else 0,
    )
    stop_at = draw(st.lists(st.integers(0, settings.max_new_tokens - 1), min_size=1, max_size=2, unique=True))
    return EngineCase(prompts, settings, tuple(stop_at), draw(st.integers(0, len(prompts) - 1)) if stopped else 0)


@st.composite
def serving_cases(draw: Any, engine: Description) -> EngineCase:
    """Prompts that come and are cancelled while others run.

    Args:
        draw: given by Hypothesis.
        engine: whose block size first tokens are shared by, up to a token around multiples of it.
    """
    token, block_size = st.sampled_from(offered_ids(engine.vocab_size)), engine.block_size
    common = draw(st.lists(token, min_size=1, max_size=5)) * (2 * block_size + 1)
    cuts = [n * block_size + more for n in (0, 1, 2) for more in (-1, 0, 1) if n * block_size + more >= 0]
    begun = st.tuples(st.sampled_from(cuts), st.lists(token, min_size=1, max_size=2))
    prompts = [(*common[:cut], *tail) for cut, tail in draw(st.lists(begun, min_size=1, max_size=5))]
    prompts += draw(st.lists(st.sampled_from(prompts), max_size=3))
    when, size = st.integers(0, 8), len(prompts)
    settings = EngineSettings(
        max_new_tokens=draw(st.sampled_from(BUDGETS)),
        batch_size=draw(st.sampled_from(BATCHES)),
        num_speculative_tokens=draw(st.sampled_from(DRAFTS)),
        submit_at=tuple(draw(st.lists(when, min_size=size, max_size=size))),
        cancel_at=tuple(draw(st.lists(st.none() | when | st.just(LATE), min_size=size, max_size=size))),
    )
    return EngineCase(tuple(prompts), settings, ())


def _spread(lengths: Iterable[int], engine: Description, seed: int) -> Prompts:
    """Prompts of some lengths, of any tokens."""
    rng = random.Random(seed)
    return tuple(tuple(rng.randrange(engine.vocab_size) for _ in range(length)) for length in lengths)


def long_case(limits: Limits, engine: Description, *, sampled: bool = False) -> EngineCase:
    """A batch of prompts of very different lengths, decoded further than the cases that are searched."""
    lengths = (limits.prompt_tokens, 1, -(-limits.prompt_tokens // 2), -(-limits.prompt_tokens // 5))
    size = limits.max_batch or LONG_BATCH
    prompts = _spread(islice(cycle(lengths), max(size, LONG_BATCH)), engine, 0)
    settings = EngineSettings(limits.new_tokens, size, limits.max_k or 3, temperature=1.0 if sampled else 0.0)
    return EngineCase(prompts, settings, (limits.new_tokens - 1,))


def long_cases(limits: Limits, engine: Description, *, sampled: bool = False) -> tuple[EngineCase, ...]:
    """That case alone."""
    return (long_case(limits, engine, sampled=sampled),)


def far_cases(limits: Limits, engine: Description) -> tuple[EngineCase, ...]:
    """What goes further than cases that are searched: long rows, also without drafts, first tokens in common, many."""
    long = long_case(limits, engine)
    plain = replace(long, settings=replace(long.settings, num_speculative_tokens=0))
    return long, plain, _sharing_case(limits, engine), *wide_cases(limits, engine)


def _sharing_case(limits: Limits, engine: Description) -> EngineCase:
    """Prompts with first tokens in common, up to one around multiples of a block, for engines that share K/V."""
    size = engine.block_size
    (common,) = _spread([2 * size], engine, 1)
    cuts = ((2 * size, 1), (size, 0), (size + 1, 0), (size - 1, 1), (size, 2), (2 * size - 1, 1))
    prompts = tuple((*common[:cut], *(i % engine.vocab_size,) * more) for i, (cut, more) in enumerate(cuts))
    prompts = tuple(prompt[: limits.prompt_tokens] for prompt in prompts)
    return EngineCase(prompts, EngineSettings(8, limits.max_batch or LONG_BATCH, limits.max_k or 3))


def wide_cases(limits: Limits, engine: Description) -> tuple[EngineCase, ...]:
    """More rows at once than in any other greedy case; the larger batch has prompts of the smaller one again."""
    rng, (few, many) = random.Random(3), WIDE_ROWS
    prompts = [tuple(rng.choices(range(engine.vocab_size), k=1 + i % MAX_PROMPT_TOKENS)) for i in range(few)]
    again = (*prompts, *prompts[: many - few])
    return tuple(EngineCase(again[:rows], EngineSettings(8, rows, limits.max_k or 3)) for rows in WIDE_ROWS)


def stopped_cases(limits: Limits, engine: Description) -> tuple[EngineCase, ...]:
    """The long case, and a batch whose rows all end at once, at the second of two stop tokens."""
    prompt = tuple(token % engine.vocab_size for token in (4, 1))
    settings = EngineSettings(8, LONG_BATCH, limits.max_k or 3)
    even = EngineCase((prompt,) * LONG_BATCH, settings, (6, 2), with_stop_inside=False)
    return long_case(limits, engine), even


def served_cases(limits: Limits, engine: Description) -> tuple[EngineCase, ...]:
    """A row that is cancelled when it must have begun, and cannot have ended; a busy hour, also sampled where keyed."""
    drafts = limits.bounded(EngineSettings(num_speculative_tokens=1)).num_speculative_tokens
    settings = EngineSettings(ROUNDS_ALONE * (drafts + 1) + 1, 1, drafts, submit_at=(0,), cancel_at=(ROUNDS_ALONE,))
    alone, busy = EngineCase(((4 % engine.vocab_size, 1),), settings, ()), _busy_case(engine)
    keyed = "keyed_sampling" in engine.supports
    return alone, busy, *(replace(busy, settings=replace(busy.settings, temperature=1.0)),) * keyed


def _busy_case(engine: Description) -> EngineCase:
    """Long rows, more than a small pool holds, that end at stop tokens; some are cancelled, and all come again.

    They come over `LAST_ROUND` rounds.
    """
    size = engine.block_size
    prompts = _spread((2 * size + 2, size + 1, 3, 2 * size + 1, size), engine, 2)
    settings = EngineSettings(
        12,
        LONG_BATCH,
        3,
        submit_at=(0, 0, 0, 1, 2, 5, 8, 11, 14, LAST_ROUND),
        cancel_at=(None, 1, None, LATE, None, None, None, 2, None, None),
    )
    return EngineCase((*prompts, prompts[1], *prompts[2:], prompts[0]), settings, (9, 5))


def turn_cases(limits: Limits, engine: Description) -> tuple[EngineCase, ...]:
    """Rows whose text, with what they generate, ends around a multiple of a block: one at a time, and a batch.

    In the batch a token of the first row is a stop token.
    """
    size, budget = engine.block_size, 8
    texts = [(budget // size + blocks) * size + more for blocks in (1, 2) for more in (0, 1, -1)]
    prompts = _spread((max(1, min(text, limits.prompt_tokens) - budget) for text in texts), engine, 4)
    alone = EngineCase(prompts, EngineSettings(budget, 1, limits.max_k or 3), ())
    return alone, replace(alone, settings=replace(alone.settings, batch_size=LONG_BATCH), stop_at=(4,))


def law_cases(limits: Limits, engine: Description, laws: tuple[Law, ...] = LAWS) -> tuple[EngineCase, ...]:
    """One prompt very often, with few new tokens, for each of some laws."""

    def case(law: Law) -> EngineCase:
        prompt = tuple(token % engine.vocab_size for token in law.prompt)
        settings = EngineSettings(law.tokens, LAW_BATCH, law.drafts, temperature=law.temperature, seed=1)
        return EngineCase((prompt,) * int(law.share * limits.law_samples), settings)

    return tuple(map(case, laws))


def warm_cases(_: Limits, engine: Description) -> tuple[EngineCase, ...]:
    """One prompt often, at a high temperature."""
    settings = EngineSettings(WARM_TOKENS, LAW_BATCH, 2, temperature=HOT, seed=1)
    return (EngineCase(((4 % engine.vocab_size, 1),) * WARM_ROWS, settings),)


def seed_cases(_: Limits, engine: Description) -> tuple[EngineCase, ...]:
    """Enough tokens that two seeds do not give the same ones by chance."""
    prompts = tuple((i % engine.vocab_size, 1) for i in range(SEED_ROWS))
    settings = EngineSettings(SEED_TOKENS, SEED_ROWS, 3, temperature=max(TEMPERATURES), seed=1)
    return (EngineCase(prompts, settings),)


def control_cases(_: Limits, engine: Description) -> tuple[EngineCase, ...]:
    """Many prompts that have nothing in common."""
    rng = random.Random(0)
    ids = range(engine.vocab_size)
    prompts = tuple(tuple(rng.choices(ids, k=CONTROL_PROMPT_TOKENS)) for _ in range(CONTROL_ROWS))
    return (EngineCase(prompts, EngineSettings()),)


def told_cases(limits: Limits, engine: Description) -> tuple[EngineCase, ...]:
    """Cases for what is told beside tokens: long rows, and many."""
    return long_case(limits, engine), wide_cases(limits, engine)[0]


def short_cases(_: Limits, engine: Description) -> tuple[EngineCase, ...]:
    """Prompts that repeat themselves, and budgets that end rows amid drafts that a lookup finds."""
    size = engine.vocab_size
    prompts = tuple((i % size, (i + 3) % size) * 4 for i in range(LONG_BATCH))
    return tuple(EngineCase(prompts, EngineSettings(budget, LONG_BATCH, 8)) for budget in SHORT_BUDGETS)


def mixed_cases(limits: Limits, engine: Description) -> tuple[EngineCase, ...]:
    """A batch of prompts of several lengths, in both orders, for settings of their own."""
    case = wide_cases(limits, engine)[0]
    settings = replace(case.settings, max_new_tokens=12, batch_size=8)
    return replace(case, settings=settings), replace(case, prompts=case.prompts[::-1], settings=settings)


def drafted_cases(limits: Limits, engine: Description) -> tuple[EngineCase, ...]:
    """A batch of few drafts and one of many, for drafts that are given."""
    prompts = wide_cases(limits, engine)[0].prompts[:6]
    return tuple(EngineCase(prompts, EngineSettings(16, 3, drafts)) for drafts in (2, 5))
