"""Which requests begin with the same tokens: system prompts, conversations, or what an engine has found."""

from collections.abc import Hashable
from dataclasses import dataclass

from refimpl.core.errors import require
from simulator.settings.fields import Spec
from simulator.settings.kinds import COMMON
from simulator.settings.parts import Engine
from simulator.settings.traces import read_engine_trace


class Common:
    """No two requests have a token in common."""

    def previous(self, index: int) -> int | None:
        """The request whose prompt and output a request has before its own prompt; None where it begins."""
        return None

    def block_tokens(self, index: int, start: int, stop: int) -> Hashable:
        """A key of the tokens of request `index` at positions start ≤ p < stop.

        Two keys are equal only if these tokens, and all before them, are.
        """
        return index, start

    def check(self, prompt_tokens: int) -> None:
        """Raise InputError if no prompt can be so short."""


@dataclass(frozen=True)
class SystemPrompts(Common):
    """The first `tokens` of a request are one of so many `prompts`, in turn."""

    tokens: int
    prompts: int

    def block_tokens(self, index: int, start: int, stop: int) -> Hashable:
        """The system prompt's key where the span ends within it, else the request's own."""
        return (-1 - index % self.prompts if stop <= self.tokens else index), start

    def check(self, prompt_tokens: int) -> None:
        """A prompt begins with the whole system prompt."""
        short = f"workload.common: a prompt of {prompt_tokens} tokens is shorter than the system prompt, {self.tokens}"
        require(prompt_tokens >= self.tokens, short)


@dataclass(frozen=True)
class Sessions(Common):
    """So many conversations at a time take turns; each ends after so many `turns`, and another begins."""

    sessions: int
    turns: int

    def previous(self, index: int) -> int | None:
        """The turn of its conversation before it."""
        return index - self.sessions if index > self._first(index) else None

    def block_tokens(self, index: int, start: int, stop: int) -> Hashable:
        """The key of its conversation, which is named by its first turn."""
        return self._first(index), start

    def _first(self, index: int) -> int:
        return index - index // self.sessions % self.turns * self.sessions


@dataclass(frozen=True)
class Traced(Common):
    """As in a run of the engine, whose trace numbers the texts up to the end of each block; beyond them all differ."""

    texts: list[list[int]]

    def block_tokens(self, index: int, start: int, stop: int) -> Hashable:
        """The text up to `stop`."""
        texts, block = self.texts[index % len(self.texts)], start // (stop - start)
        return texts[block] if block < len(texts) else (index, start)


def make_common(spec: Spec, engine: Engine) -> Common:
    """Build what a scenario names.

    Raises:
        InputError: a trace that does not say which texts its blocks hold, or whose blocks are of another size.
    """
    values = spec.resolved(COMMON)
    if spec.kind == "system_prompt":
        return SystemPrompts(**values)
    if spec.kind == "sessions":
        return Sessions(**values)
    if spec.kind == "none":
        return Common()
    path, header = values["path"], read_engine_trace(values["path"]).header
    texts, size = header.get("texts"), header.get("block_size", 1)
    require(texts is not None, f"{path}: does not say which sequences begin with the same tokens")
    same = engine.layout != "paged" or engine.block_size == size
    require(same, f"workload.common: {path} is of blocks of {size} tokens, engine.block_size is {engine.block_size}")
    return Traced(texts or [])
