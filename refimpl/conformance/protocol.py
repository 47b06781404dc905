"""What an engine must answer to be tested: token ids in, token ids out.

An engine is a callable with two attributes; anything that has them will do. It is made by a *factory*, a function
named ``module:factory`` or ``module:factory:argument`` on the command line, or is a server in another process.

An engine may also offer ``reference(prompts, settings)``: what plain autoregressive decoding generates. Without it, the
engine itself is asked, one prompt at a time and with ``num_speculative_tokens=0``.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any, Protocol

from refimpl.core.errors import InputError

ABILITIES = ("sampling", "keyed_sampling", "serving")
BLOCK_SIZE = 16  # tokens of a block of K/V, where an engine does not say
MAX_BLOCK_SIZE = 4096
Prompts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class EngineSettings:
    """How to decode; greedy at temperature 0.

    Attributes:
        max_new_tokens: exact budget of generated tokens per prompt.
        batch_size: rows at a time, at most.
        num_speculative_tokens: drafts per row and round; 0 asks for plain autoregressive decoding.
        stop_token_ids: end a row and are kept as its last token; nothing else may end it before the budget.
        temperature, seed: with one seed, the sample of the i-th prompt is the same for any batch size, if the
            engine supports ``"keyed_sampling"``.
        submit_at: rounds that have run when each prompt comes; empty: all come at once. With no row left to run, the
            next prompt comes at once. For engines that support ``"serving"``.
        cancel_at: rounds after its submission at which each prompt is cancelled, None for never; a cancelled row's
            answer is what it has generated.
    """

    max_new_tokens: int = 16
    batch_size: int = 4
    num_speculative_tokens: int = 3
    stop_token_ids: tuple[int, ...] = ()
    temperature: float = 0.0
    seed: int = 0
    submit_at: tuple[int, ...] = ()
    cancel_at: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Call:
    """What an engine is asked once."""

    prompts: Prompts
    settings: EngineSettings

    def as_request(self, number: int) -> dict[str, Any]:
        """The request of the protocol of servers, see `refimpl.conformance.command_engine`."""
        settings = asdict(self.settings)
        if not self.settings.submit_at:
            del settings["submit_at"], settings["cancel_at"]
        return {"op": "generate", "id": number, "prompts": self.prompts, **settings}


class EngineUnderTest(Protocol):
    """An engine.

    Attributes:
        vocab_size: prompts contain ids in [0, vocab_size).
        supports: optional abilities: ``"sampling"`` from the reference's law, ``"keyed_sampling"`` of the same tokens,
            ``"serving"`` of prompts that come and are cancelled while others run.

    An engine whose rows share blocks of K/V may state their `block_size` (16 tokens otherwise): prompts then have first
    tokens in common around multiples of it. To be tested under preemption it should have a small pool.
    """

    vocab_size: int
    supports: frozenset[str]

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
        """Generate for every prompt, in order, without prompt and padding.

        Raises:
            NotSupported: the settings ask for what the engine cannot do.
        """


class NotSupported(Exception):  # noqa: N818 (an answer, not an error)
    """The engine cannot do what is asked; the message says what."""


class EngineFailure(Exception):  # noqa: N818 (it is the engine that fails)
    """The engine crashed, printed garbage, or gave an answer of the wrong form."""


class EngineLost(EngineFailure):
    """The engine's process has ended, or had to be; the next call starts it again, which may take long."""


class EngineGone(EngineFailure):
    """To ask again is of no use: the engine does not answer in time, or does not start again."""


def check_description(name: str, vocab_size: Any, supports: Any) -> tuple[int, frozenset[str]]:
    """Return the size of the vocabulary and the abilities that an engine of either kind states.

    Raises:
        InputError: they are something else; the message begins with the engine's name.
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, Integral) or vocab_size < 2:
        raise InputError(f"{name!r}: vocab_size must be an integer of at least 2, not {short(vocab_size)}")
    if isinstance(supports, str) or not isinstance(supports, Collection):
        raise InputError(f"{name!r}: supports must be a list of abilities, not {short(supports)}")
    for ability in supports:
        if ability not in ABILITIES:
            raise InputError(f"{name!r}: unknown ability {short(ability)} in supports: choose {', '.join(ABILITIES)}")
    return int(vocab_size), frozenset(supports)


def check_block_size(name: str, block_size: Any) -> int:
    """Return the block size that an engine states.

    Raises:
        InputError: it is no positive integer.
    """
    is_integer = isinstance(block_size, Integral) and not isinstance(block_size, bool)
    if not is_integer or not 1 <= int(block_size) <= MAX_BLOCK_SIZE:
        raise InputError(f"{name!r}: block_size must be an integer from 1 to {MAX_BLOCK_SIZE}, not {short(block_size)}")
    return int(block_size)


def check_answer(answer: Any, num_prompts: int, vocab_size: int) -> list[list[int]]:
    """Return the answer if it is one list of known token ids per prompt.

    Raises:
        EngineFailure: it is something else.
    """
    if not isinstance(answer, list | tuple) or len(answer) != num_prompts:
        raise EngineFailure(f"{num_prompts} prompts were answered by {short(answer)}")
    for tokens in answer:
        if not isinstance(tokens, list | tuple) or not all(isinstance(t, Integral) for t in tokens):
            raise EngineFailure(f"a row of the answer is not a list of token ids: {short(tokens)}")
        if not all(0 <= t < vocab_size for t in tokens):
            raise EngineFailure(f"a row of the answer has ids outside the vocabulary of {vocab_size}: {short(tokens)}")
    return [[int(t) for t in tokens] for tokens in answer]


def short(value: Any) -> str:
    """A value in at most 80 characters of one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def one_line(error: BaseException) -> str:
    """Kind and message of an error in one line of at most 400 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]
