"""What an engine must answer to be tested: token ids in, token ids out.

An engine is a callable with two attributes; anything that has them will do. It is made by a *factory*, a function
named ``module:factory`` or ``module:factory:argument`` on the command line.

An engine may also offer ``reference(prompts, settings)``: what plain autoregressive decoding generates. Without it, the
engine itself is asked, one prompt at a time and with ``num_speculative_tokens=0``.
"""

import importlib
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

from refimpl.errors import InputError


@dataclass(frozen=True)
class EngineSettings:
    """How to decode; greedy at temperature 0.

    Attributes:
        max_new_tokens: exact budget of generated tokens per prompt.
        batch_size: rows at a time, at most.
        num_speculative_tokens: drafts per row and round; 0 asks for plain autoregressive decoding.
        stop_token_ids: end a row and are kept as its last token; nothing else may end it before the budget.
        temperature, seed: with one seed, the sample of the i-th prompt is the same whatever the batch size, if the
            engine supports ``"keyed_sampling"``.
    """

    max_new_tokens: int = 16
    batch_size: int = 4
    num_speculative_tokens: int = 3
    stop_token_ids: tuple[int, ...] = ()
    temperature: float = 0.0
    seed: int = 0


class EngineUnderTest(Protocol):
    """An engine.

    Attributes:
        vocab_size: prompts hold ids in [0, vocab_size).
        supports: optional abilities: ``"keyed_sampling"``, ``"sampling"``.
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


class EngineTimeout(EngineFailure):
    """The engine did not answer in time."""


def load_engine(name: str) -> EngineUnderTest:
    """Call the factory that ``module:factory`` or ``module:factory:argument`` names.

    Raises:
        InputError: there is no such module or factory, or what it makes is no engine.
    """
    module_name, _, rest = name.partition(":")
    factory_name, _, argument = rest.partition(":")
    if not factory_name:
        raise InputError(f"--engine needs module:factory, not {name!r}")
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"cannot load the engine {name!r}: {error}") from error
    try:
        engine = factory(argument) if argument else factory()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name!r} fails to make an engine: {type(error).__name__}: {error}") from error
    if not (callable(engine) and hasattr(engine, "vocab_size") and hasattr(engine, "supports")):
        raise InputError(f"{name!r} makes {_short(engine)}, no callable with vocab_size and supports")
    return engine


def check_answer(answer: Any, prompts: list[list[int]], vocab_size: int) -> list[list[int]]:
    """Return the answer if it is one list of known token ids per prompt.

    Raises:
        EngineFailure: it is something else.
    """
    if not isinstance(answer, list | tuple) or len(answer) != len(prompts):
        raise EngineFailure(f"{len(prompts)} prompts were answered by {_short(answer)}")
    for tokens in answer:
        if not isinstance(tokens, list | tuple) or not all(isinstance(t, Integral) for t in tokens):
            raise EngineFailure(f"a row of the answer is not a list of token ids: {_short(tokens)}")
        if not all(0 <= t < vocab_size for t in tokens):
            raise EngineFailure(f"a row of the answer has ids outside the vocabulary of {vocab_size}: {_short(tokens)}")
    return [[int(t) for t in tokens] for tokens in answer]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
