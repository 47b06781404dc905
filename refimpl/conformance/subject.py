"""The engine under test as properties see it: answers are checked, calls recorded, its reference remembered."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from refimpl.conformance.cases import Limits
from refimpl.conformance.protocol import (
    Call,
    EngineFailure,
    EngineSettings,
    EngineUnderTest,
    NotSupported,
    Prompts,
    check_answer,
    is_own,
    one_line,
)
from refimpl.conformance.watch import Watch

ITSELF = "itself"  # as a reference


class CaseFailure(AssertionError):  # noqa: N818 (Hypothesis shrinks it like a failed assertion)
    """A case breaks a property.

    Attributes:
        reason: one line.
        row, token: where outputs part first, None when that is not what is wrong.
        no_answer: the engine raised an error or gave something that is no answer, so that no tokens could be compared.
        calls: what the engine was asked, in order.
    """

    def __init__(self, reason: str, row: int | None = None, token: int | None = None, *, no_answer: bool = False):
        self.reason, self.row, self.token, self.no_answer = reason, row, token, no_answer
        self.calls: tuple[Call, ...] = ()
        super().__init__(reason)


class Subject:
    """The engine with its answers checked, its calls recorded, and its reference remembered.

    Args:
        engine: see `refimpl.conformance.protocol`.
        limits: how far the fixed cases go.
        reference: what plain decoding generates, instead of what the engine itself offers.
        watch: asked before every call whether there is time.

    Attributes:
        gone: why there is no use in asking the engine or its reference again, empty while there is.
        calls: what the engine was asked since the case began. Calls of the reference are left out once answered.
        num_calls: calls of the engine.
        num_batches: answered calls with several rows at a batch size above 1.
    """

    def __init__(
        self,
        engine: EngineUnderTest,
        limits: Limits | None = None,
        reference: Any = None,
        watch: Watch | None = None,
    ):
        self.engine, self.limits, self.watch = engine, limits or Limits(), watch or Watch()
        self.calls: list[Call] = []
        self.num_calls = self.num_batches = 0
        self.gone = ""
        self._own = reference or getattr(engine, "reference", None)
        self._own_kind = "another engine" if reference else "own"
        self._known: dict[Any, list[int]] = {}
        self._plain_refused = False

    @property
    def reference_kind(self) -> str:
        """What serves as the reference."""
        if self._own:
            return self._own_kind
        return f"{ITSELF} with k={(self.limits.k or 1) if self._plain_refused else 0}"

    @property
    def judges_itself(self) -> bool:
        """Whether the engine is its own reference."""
        return self._own is None

    def run(self, prompts: Iterable[Iterable[int]], settings: EngineSettings) -> list[list[int]]:
        """Ask the engine; whatever it raises but NotSupported becomes an EngineFailure."""
        call = Call(tuple(map(tuple, prompts)), self.limits.bounded(settings))
        self.num_calls += 1
        tokens = self._ask(self.engine, call)
        self.num_batches += len(call.prompts) > 1 and call.settings.batch_size > 1
        return tokens

    def reference(self, prompts: Prompts, settings: EngineSettings) -> list[list[int]]:
        """What autoregressive decoding gives for each prompt alone, without stop tokens; never asked twice."""
        sampled = settings.temperature > 0  # then a row's sample belongs to its place
        return [self._alone(prompts[: i + 1] if sampled else (prompt,), settings) for i, prompt in enumerate(prompts)]

    def _alone(self, prompts: Prompts, settings: EngineSettings) -> list[int]:
        key = (prompts, settings.max_new_tokens, settings.temperature, settings.seed)
        if key not in self._known:
            self._known[key] = self.plain(prompts, replace(settings, batch_size=1, stop_token_ids=()))[-1]
        return self._known[key]

    def plain(self, prompts: Prompts, settings: EngineSettings) -> list[list[int]]:
        """Ask for autoregressive decoding: the reference, or the engine with as few drafts a round as it can.

        Raises:
            CaseFailure: a row has not the budget's tokens.
        """
        tokens = self._plain(prompts, settings)
        for row, found in enumerate(tokens):
            if len(found) != settings.max_new_tokens:
                asked = f"{settings.max_new_tokens} were asked for, without stop tokens"
                raise CaseFailure(f"the reference ({self.reference_kind}) gives {len(found)} tokens, {asked}", row)
        self.calls.pop()
        return tokens

    def _plain(self, prompts: Prompts, settings: EngineSettings) -> list[list[int]]:
        none = replace(settings, num_speculative_tokens=0)
        if self._own is not None:
            try:
                return self._ask(self._own, Call(prompts, self.limits.bounded(none)))
            except EngineFailure as failure:
                raise type(failure)(f"the reference fails: {failure}") from failure
        try:
            if not self._plain_refused:
                return self.run(prompts, none)
        except NotSupported:
            self.calls.pop()
            self._plain_refused = True  # no decoding without drafts: one prompt alone, with one draft a round
        return self.run(prompts, replace(settings, num_speculative_tokens=1))

    def _ask(self, engine: Any, call: Call) -> list[list[int]]:
        self.watch.require_time()
        self.calls.append(call)
        prompts = [list(prompt) for prompt in call.prompts]
        try:
            return check_answer(engine(prompts, call.settings), len(call.prompts), self.engine.vocab_size)
        except BaseException as error:
            if isinstance(error, NotSupported | EngineFailure) or not is_own(error):
                raise
            raise EngineFailure(one_line(error)) from error
