"""What a fault is: one function of the engine replaced by a broken one, and what must notice."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Literal
from unittest.mock import patch

from refimpl.core.config import LAYOUTS, SCHEDULERS

Effect = Literal["output", "acceptance", "law", "report", "crash", "nothing"]
Break = Callable[[Any], Any]
COUPLED = {"acceptance": "coupled", "temperature": 1.0}
REJECTION = {"acceptance": "rejection", "temperature": 1.0}
BLOCK = {"acceptance": "block", "temperature": 1.0}
LAW_ONLY = ("rejection", "block")  # rules that keep the law of the tokens, and not the tokens


@dataclass(frozen=True)
class Fault:
    """A deliberately broken variant.

    Attributes:
        name: how tables and commands call it.
        summary: what is wrong: the first paragraph of the docstring.
        symptom: what a user of the engine sees of it: the second paragraph; empty where only `effect` says it.
        owner, attribute: the class or module, and the function of it that is replaced while the fault is injected.
        make: given the right function, returns the broken one.
        effect: ``output`` changes tokens; ``acceptance`` changes only how many drafts survive; ``law`` changes the
            distribution of sampled tokens; ``report`` changes what is said beside the tokens: log-probabilities, texts,
            statistics; ``crash`` ends a run without checks with an error, or never; ``nothing`` of these (fairness,
            cost, a promise to other code).
        invariant: the invariant that must be the first to break, None where the register cannot see the fault.
        layouts, schedulers: where it is looked for; faults of blocks name `paged`, those of chunks `continuous`, and
            others leave them out.
        settings: fields of a case that it needs, for example a temperature; and `own`, those of requests, by turns.
        conditions: (owner, attribute, value) set while it is injected, harmless alone, without which a CPU never comes
            to the broken line.
        sources: public issues and pull requests where it, or one of its kind, was seen, as
            ``owner/repository#number``.
    """

    name: str
    summary: str
    symptom: str
    owner: Any
    attribute: str
    make: Break
    effect: Effect
    invariant: str | None
    layouts: tuple[str, ...] = tuple(name for name in LAYOUTS if name != "paged")
    schedulers: tuple[str, ...] = tuple(name for name, facts in SCHEDULERS.items() if not facts.chunked)
    settings: dict[str, Any] = field(default_factory=dict)
    conditions: tuple[tuple[Any, str, Any], ...] = ()
    sources: tuple[str, ...] = ()

    @contextmanager
    def injected(self) -> Iterator[None]:
        """Run the body on the broken engine; everything is as before afterwards."""
        with ExitStack() as stack:
            for condition in self.conditions:
                stack.enter_context(patch.object(*condition))
            broken = self.make(getattr(self.owner, self.attribute))
            stack.enter_context(patch.object(self.owner, self.attribute, broken))
            yield

    @property
    def repaired(self) -> "Fault":
        """The same, with the right function in place of the broken one: nothing may notice it."""
        return replace(self, make=lambda _: inspect.getattr_static(self.owner, self.attribute))


FAULTS: dict[str, Fault] = {}


def result_changed(change: Callable[..., Any]) -> Break:
    """A break from what becomes of the right result; `change` gets it, and the arguments of the call."""

    @wraps(change)
    def make(original: Any) -> Any:
        return lambda *arguments, **more: change(original(*arguments, **more), *arguments, **more)

    return make


def fault(owner: Any, attribute: str, effect: Effect, invariant: str | None, **where: Any) -> Callable[[Break], Break]:
    """Register a fault under the decorated function's name; its docstring says cause and symptom.

    Raises:
        AttributeError: the owner has no such attribute, as after a part of the engine has moved.
    """
    getattr(owner, attribute)

    def register(make: Break) -> Break:
        name = make.__name__.replace("_", "-")
        summary, _, symptom = (" ".join(part.split()) for part in (inspect.getdoc(make) or "").partition("\n\n"))
        FAULTS[name] = Fault(name, summary, symptom, owner, attribute, make, effect, invariant, **where)
        return make

    return register
