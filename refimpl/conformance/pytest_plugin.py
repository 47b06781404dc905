"""One pytest item per property: ``pytest -p refimpl.conformance.pytest_plugin --conformance-engine module:factory``.

The options are those of `raggedspec conformance`, with ``--conformance-`` before each, but for `--no-shrink`,
`--fail-fast`, `--total-time`, `--replay` and files of reports. Without an engine, or anything else that names one,
nothing is added.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest

from refimpl.conformance.command import LimitOptions, SearchOptions, SubjectOptions
from refimpl.conformance.kit import Trial, known_properties, subject_report
from refimpl.conformance.limits import Limits
from refimpl.conformance.report import REFERENCES, hint, tell_calls, tell_not_looked_at, tell_place
from refimpl.conformance.runner import opened
from refimpl.conformance.subject import Subject
from refimpl.conformance.verdicts import DECIDING, NOTHING_SUPPORTED, Verdict
from refimpl.core.errors import InputError

SUBJECT = pytest.StashKey[Subject]()
VERDICTS = pytest.StashKey[list[Verdict]]()
OF_THE_COMMAND = ("shrink", "fail_fast", "total_time_s", "output", "html", "junit", "replay")
GROUPS: tuple[Any, ...] = (SubjectOptions, LimitOptions, SearchOptions)


def _declared() -> Iterator[tuple[str, dict[str, Any]]]:
    """Options as the command declares them."""
    for group in GROUPS:
        hints = get_type_hints(group, include_extras=True)
        for item in fields(group):
            kind, told = get_args(hints[item.name])
            names = [name for name in (told.default, *(told.param_decls or ())) if name is not ...]
            names = names or [f"--{item.name.replace('_', '-')}"]
            kind = next((part for part in get_args(kind) if part is not type(None)), kind)
            settings = {"type": kind, "default": item.default, "help": told.help.replace("%", "%%")}
            if item.name not in OF_THE_COMMAND:
                yield item.name, settings | {"names": [f"--conformance-{name[2:]}" for name in names]}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("conformance", "conformance of a decoding engine")
    for name, settings in _declared():
        group.addoption(*settings.pop("names"), dest=f"conformance_{name}", **settings)


def _options(config: pytest.Config, group: Any) -> Any:
    """An option group of the command with what was given to pytest."""
    names = [item.name for item in fields(group) if item.name not in OF_THE_COMMAND]
    return group(**{name: config.getoption(f"conformance_{name}") for name in names})


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Open the engine that was named and append its items."""
    tested, search = _options(config, SubjectOptions), _options(config, SearchOptions)
    if tested == SubjectOptions(timeout_s=tested.timeout_s):
        return
    try:
        names = known_properties(search.properties)
        stack = ExitStack()
        engine, reference = stack.enter_context(opened(tested))
        config.add_cleanup(stack.close)
        config.stash[SUBJECT] = Subject(engine, Limits(**vars(_options(config, LimitOptions))), reference)
        config.stash[VERDICTS] = []
    except InputError as error:
        raise pytest.UsageError(str(error)) from error
    items += [PropertyItem.from_parent(session, name=f"conformance::{name}", rule=name) for name in names]


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Say what the engine is compared with."""
    if SUBJECT not in config.stash:
        return []
    kind = config.stash[SUBJECT].reference_kind
    return [f"conformance: reference: {REFERENCES.get(kind, kind)}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was not looked at."""
    if SUBJECT in config.stash:
        verdicts = config.stash[VERDICTS]
        report = subject_report(config.stash[SUBJECT], "", verdicts)
        terminalreporter.write_line(f"conformance: {tell_not_looked_at(report)}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """An engine that supports nothing of what was asked does not pass."""
    items = [item for item in session.items if isinstance(item, PropertyItem)]
    if items and all(item.is_refused for item in items) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.get_terminal_writer().line(f"\nconformance: {NOTHING_SUPPORTED}")


class PropertyItem(pytest.Item):
    """One property of the engine under test."""

    def __init__(self, *, rule: str, **rest: Any):
        super().__init__(**rest)
        self.rule, self.is_refused = rule, False

    def runtest(self) -> None:
        """Search for a failing case; skip what the engine does not support, unless all depends on it."""
        search = _options(self.config, SearchOptions)
        verdict = Trial(self.config.stash[SUBJECT], self.rule).verdict(search.max_examples, seed=search.seed)
        self.config.stash[VERDICTS].append(verdict)
        self.is_refused = verdict.status == "not supported"
        if self.is_refused and self.rule != DECIDING:
            pytest.skip(f"not supported: {verdict.reason}")
        if verdict.status != "pass":
            reason = "not run: " * (verdict.status == "not run") + verdict.reason
            more = *tell_place(verdict), *tell_calls(verdict), *hint(verdict, self.config.stash[SUBJECT].reference_kind)
            pytest.fail("\n".join([f"{verdict.property}: {reason}", *more]), pytrace=False)

    def reportinfo(self) -> tuple[Any, int, str]:
        """Name the property, not a line of this file."""
        return self.path, 0, f"conformance: {self.rule}"
