"""The engine under test as properties see it: answers are checked, calls recorded, its reference remembered."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from refimpl.conformance.limits import Limits
from refimpl.conformance.places import place_of
from refimpl.conformance.protocol import (
    BLOCK_SIZE,
    Answer,
    Call,
    EngineFailure,
    EngineSettings,
    EngineUnderTest,
    NotSupported,
    Prompts,
    RowSettings,
    check_answer,
    check_description,
    is_own,
    one_line,
)
from refimpl.conformance.watch import Watch
from refimpl.core.shown import counted
from refimpl.core.tokens import first_difference

ITSELF = "itself"  # as a reference
Rows = tuple[tuple[int, ...], ...]


@dataclass(eq=False)
class CaseFailure(AssertionError):  # noqa: N818 (Hypothesis shrinks it like a failed assertion)
    """A case breaks a property.

    Attributes:
        reason: one line.
        row, token: where outputs part first, None when that is not what is wrong.
        no_answer: the engine raised an error or gave something that is no answer, so that no tokens could be compared.
        place: file, line and function of that error, where it is one of Python.
        calls: what the engine was asked, in order.
        case: that broke it, where it is one that can be saved.
        found, expected: tokens of all rows that were compared.
    """

    reason: str
    row: int | None = None
    token: int | None = None
    no_answer: bool = False
    place: str = ""
    calls: tuple[Call, ...] = ()
    case: Any = None
    found: Rows = ()
    expected: Rows = ()


def require_equal(found: list[list[int]], wanted: list[list[int]], what: str) -> None:
    """Raise the first difference, if there is one."""
    if found != wanted:
        raise difference(found, wanted, what)


def difference(found: list[list[int]], wanted: list[list[int]], what: str) -> CaseFailure:
    """The first difference of outputs that differ, row by row."""
    row = next(i for i, (tokens, expected) in enumerate(zip(found, wanted, strict=True)) if tokens != expected)
    at = first_difference(found[row], wanted[row])
    told = f"{what}: row {row} differs from token {at} on: {found[row]} instead of {wanted[row]}"
    order = "; all rows together are as they should be: are they in another order?"
    told += order * (sorted(found) == sorted(wanted))
    return CaseFailure(told, row, at, found=tuple(map(tuple, found)), expected=tuple(map(tuple, wanted)))


def all_equal(outputs: list[list[int]]) -> bool:
    """Whether all rows have the same tokens."""
    return all(tokens == outputs[0] for tokens in outputs)


class Subject:
    """The engine with its answers checked, its calls recorded, and its reference remembered.

    Args:
        engine: see `refimpl.conformance.protocol`.
        limits: how far the fixed cases go.
        reference: what plain decoding generates, instead of what the engine itself offers.
        watch: asked before every call whether there is time.
        name: how messages call the engine.

    Attributes:
        stated: what the engine says of itself.
        gone: why there is no use in asking the engine or its reference again, empty while there is.
        calls: what the engine was asked since the case began. Calls of the reference are left out once answered.
        num_calls: calls of the engine.
        num_batches: answered calls with several rows at a batch size above 1.
        law: log-probabilities of all tokens after some, None where the reference does not tell.
        law_refusal: why the reference has refused to sample, empty if it has not.
        profile: of wrong rows by the spread of prompt lengths, once it has been measured.

    Raises:
        InputError: the engine says of itself what cannot be.
    """

    def __init__(
        self,
        engine: EngineUnderTest,
        limits: Limits | None = None,
        reference: Any = None,
        watch: Watch | None = None,
        name: str = "engine",
    ):
        block_size = getattr(engine, "block_size", BLOCK_SIZE)
        self.stated = check_description(name, engine.vocab_size, engine.supports, block_size)
        self.engine, self.limits, self.watch = engine, limits or Limits(), watch or Watch()
        self.calls: list[Call] = []
        self.num_calls = self.num_batches = 0
        self.gone = self.law_refusal = ""
        self.profile: Any = None
        self._own = getattr(engine, "reference", None)
        self._trusted = self._own if reference is None else reference
        self.law = getattr(engine if reference is None else reference, "law", None)
        self._known: dict[Call, Answer] = {}
        self._plain_refused = False

    @property
    def reference_kind(self) -> str:
        """What serves as the reference."""
        return self._kind(self._trusted)

    @property
    def law_reference_kind(self) -> str:
        """What serves as the reference of the law of samples."""
        return self._kind(self._own if self.law_refusal else self._trusted)

    def _kind(self, source: Any) -> str:
        if source is None and self.drafts_itself:
            return f"{ITSELF}, one request at a time"
        if source is None:
            return f"{ITSELF} with k={(self.limits.k or 1) if self._plain_refused else 0}"
        return "own" if source is self._own else "another engine"

    @property
    def drafts_itself(self) -> bool:
        """Whether the engine drafts as it likes, whatever number is asked for."""
        return "own_draft_length" in self.stated.supports

    @property
    def penalizes(self) -> bool:
        """Whether both the engine and its reference take a repetition penalty."""
        return "penalties" in self.stated.supports & set(getattr(self._trusted, "supports", self.stated.supports))

    @property
    def judges_itself(self) -> bool:
        """Whether the engine is its own reference."""
        return self._trusted is None

    def run(self, prompts: Iterable[Iterable[int]], settings: EngineSettings) -> list[list[int]]:
        """Tokens that the engine gives, see `answer`."""
        return self.answer(prompts, settings).tokens

    def answer(self, prompts: Iterable[Iterable[int]], settings: EngineSettings) -> Answer:
        """Ask the engine; whatever it raises but NotSupported becomes an EngineFailure."""
        call = Call(tuple(map(tuple, prompts)), self.limits.bounded(settings))
        self.num_calls += 1
        answer = self._ask(self.engine, call)
        self.num_batches += len(call.prompts) > 1 and call.settings.batch_size > 1
        return answer

    def reference(self, prompts: Prompts, settings: EngineSettings, penalty: float = 1.0) -> list[list[int]]:
        """What autoregressive decoding gives for each prompt alone, without stop tokens; never asked twice.

        Samples are the engine's own: another engine draws other numbers with the same seed.

        Args:
            prompts, settings: of the call.
            penalty: for repetitions, of greedy tokens.
        """
        if settings.temperature > 0:  # a sample belongs to its place, so the prompts before it come along
            return [self._alone(prompts[: 2 ** i.bit_length()], settings).tokens[i] for i in range(len(prompts))]
        own = (RowSettings(settings.max_new_tokens, repetition_penalty=penalty),) * (penalty != 1)
        return [self._alone((prompt,), replace(settings, rows=own)).tokens[0] for prompt in prompts]

    def reference_reports(self, prompts: Prompts, settings: EngineSettings) -> list[Answer]:
        """What greedy autoregressive decoding gives for each prompt alone, with log-probabilities."""
        return [self._alone((prompt,), replace(settings, report=("logprobs",))) for prompt in prompts]

    def _alone(self, prompts: Prompts, settings: EngineSettings) -> Answer:
        """All rows of the prompts, one at a time; where samples are asked for, in a few calls of doubling sizes."""
        kept = ("max_new_tokens", "temperature", "seed", "report", "rows")
        call = Call(prompts, EngineSettings(batch_size=1, **{name: getattr(settings, name) for name in kept}))
        if call not in self._known:
            self._known[call] = self.plain(prompts, call.settings, own=settings.temperature > 0)
        return self._known[call]

    def plain(self, prompts: Prompts, settings: EngineSettings, *, own: bool = False) -> Answer:
        """Ask for autoregressive decoding: the reference, or the engine with as few drafts a round as it can.

        Where another engine serves as the reference and refuses to sample, the engine's own is asked.

        Args:
            prompts, settings: of the call; no drafts are asked for, whatever the settings say.
            own: ask the engine's own reference, or itself, even if another engine is the reference.

        Raises:
            CaseFailure: a row has not the budget's tokens.
            NotSupported, EngineFailure: from the reference, which the message then says.
        """
        source = self._own if own else self._trusted
        none = replace(settings, num_speculative_tokens=0)
        try:
            answer = self._with_few_drafts(prompts, none) if source is None else self._told(source, prompts, none)
        except NotSupported as refusal:
            if source is self._own or not settings.temperature:
                raise
            self.law_refusal = str(refusal)
            self.calls.pop()
            return self.plain(prompts, settings, own=True)
        for row, found in enumerate(answer.tokens):
            if len(found) != settings.max_new_tokens:
                asked = f"{settings.max_new_tokens} were asked for, without stop tokens"
                given = counted(len(found), "token")
                raise CaseFailure(f"the reference ({self._kind(source)}) gives {given}, {asked}", row)
        self.calls.pop()
        return answer

    def _told(self, source: Any, prompts: Prompts, settings: EngineSettings) -> Answer:
        """What another engine, or a function of this one, gives."""
        try:
            return self._ask(source, Call(prompts, self.limits.bounded(settings)))
        except NotSupported as refusal:
            raise NotSupported(f"the reference refuses: {refusal}") from refusal
        except EngineFailure as failure:
            raise type(failure)(f"the reference fails: {failure}", failure.place) from failure

    def _with_few_drafts(self, prompts: Prompts, settings: EngineSettings) -> Answer:
        """What the engine gives without drafts, or with one a round if that is the fewest it can."""
        if not self._plain_refused:
            try:
                return self.answer(prompts, settings)
            except NotSupported:
                self.calls.pop()
        answer = self.answer(prompts, replace(settings, num_speculative_tokens=1))
        self._plain_refused = True
        return answer

    def _ask(self, engine: Any, call: Call) -> Answer:
        self.watch.require_time()
        self.calls.append(call)
        prompts, size = [list(prompt) for prompt in call.prompts], self.stated.vocab_size
        try:
            return check_answer(engine(prompts, call.settings), len(prompts), size, call.settings.report)
        except BaseException as error:
            if isinstance(error, NotSupported | EngineFailure) or not is_own(error):
                raise
            raise EngineFailure(one_line(error), place_of(error)) from error
