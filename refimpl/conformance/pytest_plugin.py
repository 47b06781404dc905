"""One pytest item per property: ``pytest -p refimpl.conformance.pytest_plugin --conformance-engine module:factory``.

`--conformance-command "a server"` tests an engine in another process, `--conformance-examples` sets the cases per
property, `--conformance-seed` chooses others. Without an engine the plugin adds nothing.
"""

from typing import Any

import pytest

from refimpl.conformance.kit import check_property, known_properties
from refimpl.conformance.report import tell_calls
from refimpl.conformance.runner import close_engine, open_engine
from refimpl.conformance.subject import Subject
from refimpl.conformance.verdicts import DECIDING, Verdict
from refimpl.core.errors import InputError

SUBJECT = pytest.StashKey[Subject]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("conformance", "conformance of a decoding engine")
    group.addoption("--conformance-engine", help="module:factory or module:factory:argument")
    group.addoption("--conformance-command", help="command of a server that speaks JSON lines")
    group.addoption("--conformance-examples", type=int, default=20, help="cases per property")
    group.addoption("--conformance-seed", type=int, default=0, help="of the search for cases")
    group.addoption("--conformance-properties", help="names, separated by commas; all by default")
    group.addoption("--conformance-timeout", type=float, default=60.0, help="seconds for an answer")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Open the engine that was named and append its items."""
    engine, command = config.getoption("conformance_engine"), config.getoption("conformance_command")
    if not (engine or command):
        return
    if engine and command:
        raise pytest.UsageError("give either --conformance-engine or --conformance-command, not both")
    try:
        names = known_properties(config.getoption("conformance_properties"))
        config.stash[SUBJECT] = Subject(open_engine(engine, command, config.getoption("conformance_timeout")))
    except InputError as error:
        raise pytest.UsageError(str(error)) from error
    items += [PropertyItem.from_parent(session, name=f"conformance[{name}]", rule=name) for name in names]


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the server."""
    if SUBJECT in config.stash:
        close_engine(config.stash[SUBJECT].engine)


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
        options, subject = self.config.getoption, self.config.stash[SUBJECT]
        verdict = check_property(subject, self.rule, options("conformance_examples"), seed=options("conformance_seed"))
        if verdict.status == "not supported" and self.rule != DECIDING:
            pytest.skip(f"not supported: {verdict.reason}")
        if verdict.status != "pass":
            raise PropertyBroken(verdict)

    def repr_failure(self, excinfo: pytest.ExceptionInfo, style: Any = None) -> Any:
        """Show the reason and the failing case instead of a traceback."""
        if not isinstance(excinfo.value, PropertyBroken):
            return super().repr_failure(excinfo, style)
        verdict = excinfo.value.verdict
        return "\n".join([f"{verdict.property}: {verdict.reason}", *tell_calls(verdict)])

    def reportinfo(self) -> tuple[Any, int, str]:
        """Name the property, not a line of this file."""
        return self.path, 0, f"conformance: {self.rule}"
