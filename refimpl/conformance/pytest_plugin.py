"""One pytest item per property: ``pytest -p refimpl.conformance.pytest_plugin --conformance-engine module:factory``.

`--conformance-command "a server"` tests an engine in another process, `--conformance-examples` sets the cases per
property. Without either option the plugin adds nothing.
"""

from functools import cache
from typing import Any

import pytest

from refimpl.conformance.command_engine import CommandEngine
from refimpl.conformance.engine_cases import ENGINE_PROPERTIES, Subject
from refimpl.conformance.kit import DECIDING, Verdict, check_property_or_hang, known_properties
from refimpl.conformance.protocol import load_engine
from refimpl.conformance.report import describe


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("conformance", "conformance of a decoding engine")
    group.addoption("--conformance-engine", help="module:factory or module:factory:argument")
    group.addoption("--conformance-command", help="command of a server that speaks JSON lines")
    group.addoption("--conformance-examples", type=int, default=20, help="cases per property")
    group.addoption("--conformance-properties", help="names, separated by commas; all by default")
    group.addoption("--conformance-timeout", type=float, default=60.0, help="seconds for an answer of a server")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Append the items of the engine that was named."""
    if config.getoption("conformance_engine") or config.getoption("conformance_command"):
        chosen = config.getoption("conformance_properties")
        for name in known_properties(chosen.split(",") if chosen else ENGINE_PROPERTIES):
            items.append(PropertyItem.from_parent(session, name=f"conformance[{name}]", rule=name))


@cache
def _subject(engine: str | None, command: str | None, timeout_s: float) -> Subject:
    return Subject(load_engine(engine) if engine else CommandEngine(command or "", timeout_s))


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the server."""
    if config.getoption("conformance_command", None) and _subject.cache_info().currsize:
        engine = _subject(*_options(config)).engine
        if isinstance(engine, CommandEngine):
            engine.close()
    _subject.cache_clear()


def _options(config: pytest.Config) -> tuple[Any, ...]:
    return tuple(config.getoption(f"conformance_{name}") for name in ("engine", "command", "timeout"))


class PropertyBroken(Exception):  # noqa: N818 (carries a verdict to the report)
    """A property failed."""

    def __init__(self, verdict: Verdict):
        self.verdict = verdict
        super().__init__(verdict.reason)


class PropertyItem(pytest.Item):
    """One property of the engine under test."""

    def __init__(self, *, rule: str, **rest: Any):
        super().__init__(**rest)
        self.rule = rule

    def runtest(self) -> None:
        """Search for a failing case; skip what the engine does not support, unless all depends on it."""
        subject = _subject(*_options(self.config))
        verdict = check_property_or_hang(subject, self.rule, self.config.getoption("conformance_examples"))
        if verdict.status == "not supported" and self.rule != DECIDING:
            pytest.skip(f"not supported: {verdict.reason}")
        if verdict.status != "pass":
            raise PropertyBroken(verdict)

    def repr_failure(self, excinfo: pytest.ExceptionInfo, style: Any = None) -> Any:
        """Show the reason and the smallest case instead of a traceback."""
        if not isinstance(excinfo.value, PropertyBroken):
            return super().repr_failure(excinfo, style)
        verdict = excinfo.value.verdict
        case = f"\nsmallest case found: {describe(verdict.case)}" if verdict.case else ""
        return f"{verdict.property}: {verdict.reason}{case}"

    def reportinfo(self) -> tuple[Any, int, str]:
        """Name the property, not a line of this file."""
        return self.path, 0, f"conformance: {self.rule}"
