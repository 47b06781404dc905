"""One pytest item per property: ``pytest -p refimpl.conformance.pytest_plugin --conformance-engine module:factory``.

The options are those of `raggedspec conformance`, with ``--conformance-`` before each, but for `--no-shrink`,
`--fail-fast`, `--total-time` and `--output`; `--conformance-examples` and `--conformance-timeout` are short for two of
them. Without an engine the plugin adds nothing, and refuses a reference.
"""

from contextlib import ExitStack
from typing import Any

import pytest

from refimpl.conformance.cases import Limits
from refimpl.conformance.kit import check_property, known_properties, subject_report
from refimpl.conformance.report import REFERENCES, hint, tell_calls, tell_not_looked_at, tell_place
from refimpl.conformance.runner import opened
from refimpl.conformance.subject import Subject
from refimpl.conformance.verdicts import DECIDING, NOTHING_SUPPORTED, Verdict
from refimpl.core.errors import InputError
from refimpl.core.values import require_int

SUBJECT = pytest.StashKey[Subject]()
VERDICTS = pytest.StashKey[list[Verdict]]()
ENGINES = {
    "engine": "module:factory or module:factory:argument",
    "command": "command of a server that speaks JSON lines",
    "reference": "module:factory of an engine that decodes plainly",
    "reference-command": "command of a server that decodes plainly",
}
LIMITS = {
    "max-batch": ("max_batch", "largest batch"),
    "max-k": ("max_k", "most tokens drafted per row and round"),
    "k": ("k", "number of drafts that the engine was built for"),
    "prompt-length": ("prompt_tokens", "longest prompt of the long case, in tokens"),
    "long-output": ("new_tokens", "new tokens of the long case"),
    "law-samples": ("law_samples", "continuations that judge the law of samples"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("conformance", "conformance of a decoding engine")
    for name, text in ENGINES.items():
        group.addoption(f"--conformance-{name}", help=text)
    for name, (field, text) in LIMITS.items():
        group.addoption(f"--conformance-{name}", type=int, default=getattr(Limits, field), help=text)
    group.addoption(
        "--conformance-max-examples", "--conformance-examples", type=int, default=20, help="cases per property"
    )
    group.addoption("--conformance-seed", type=int, default=0, help="of the search for cases")
    group.addoption("--conformance-properties", help="names, separated by commas; all by default")
    group.addoption(
        "--conformance-timeout-s", "--conformance-timeout", type=float, default=60.0, help="seconds for an answer"
    )


def _option(config: pytest.Config, name: str) -> Any:
    return config.getoption(f"--conformance-{name}")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Open the engine that was named and append its items."""
    engine, command = _option(config, "engine"), _option(config, "command")
    if engine is None and command is None:
        _require_no_reference(config)
        return
    if engine is not None and command is not None:
        raise pytest.UsageError("give either --conformance-engine or --conformance-command, not both")
    try:
        names = known_properties(_option(config, "properties"))
        require_int("max_examples", _option(config, "max-examples"), 1)
        config.stash[SUBJECT] = _subject(config)
        config.stash[VERDICTS] = []
    except InputError as error:
        raise pytest.UsageError(str(error)) from error
    items += [PropertyItem.from_parent(session, name=f"conformance[{name}]", rule=name) for name in names]


def _require_no_reference(config: pytest.Config) -> None:
    """A reference without an engine is no test, and no test is no pass."""
    for name in ("reference", "reference-command"):
        if _option(config, name) is not None:
            told = "give --conformance-engine or --conformance-command, too"
            raise pytest.UsageError(f"--conformance-{name} names what an engine is compared with: {told}")


def _subject(config: pytest.Config) -> Subject:
    """The engine and its reference, open until the session ends."""
    limits = Limits(**{field: _option(config, name) for name, (field, _) in LIMITS.items()})
    stack = ExitStack()
    named = {name.replace("-", "_"): _option(config, name) for name in ENGINES}
    engine, reference = stack.enter_context(opened(**named, timeout_s=_option(config, "timeout-s")))
    config.add_cleanup(stack.close)
    return Subject(engine, limits, reference)


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


def _all_refused(session: pytest.Session) -> bool:
    items = [item for item in session.items if isinstance(item, PropertyItem)]
    return bool(items) and all(item.is_refused for item in items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """An engine that supports nothing of what was asked does not pass."""
    if _all_refused(session) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        told = f"conformance: {NOTHING_SUPPORTED}"
        session.config.get_terminal_writer().line(f"\n{told}")


class PropertyBroken(Exception):  # noqa: N818 (carries a verdict to the report)
    """A property failed."""

    def __init__(self, verdict: Verdict):
        self.verdict = verdict
        super().__init__(verdict.reason)


class PropertyItem(pytest.Item):
    """One property of the engine under test."""

    def __init__(self, *, rule: str, **rest: Any):
        super().__init__(**rest)
        self.rule, self.is_refused = rule, False

    def runtest(self) -> None:
        """Search for a failing case; skip what the engine does not support, unless all depends on it."""
        subject = self.config.stash[SUBJECT]
        verdict = check_property(
            subject, self.rule, _option(self.config, "max-examples"), seed=_option(self.config, "seed")
        )
        self.config.stash[VERDICTS].append(verdict)
        self.is_refused = verdict.status == "not supported"
        if self.is_refused and self.rule != DECIDING:
            pytest.skip(f"not supported: {verdict.reason}")
        if verdict.status != "pass":
            raise PropertyBroken(verdict)

    def repr_failure(self, excinfo: pytest.ExceptionInfo, style: Any = None) -> Any:
        """Show the reason and the failing case instead of a traceback."""
        if not isinstance(excinfo.value, PropertyBroken):
            return super().repr_failure(excinfo, style)
        verdict, kind = excinfo.value.verdict, self.config.stash[SUBJECT].reference_kind
        reason = "not run: " * (verdict.status == "not run") + verdict.reason
        return "\n".join(
            [f"{verdict.property}: {reason}", *tell_place(verdict), *tell_calls(verdict), *hint(verdict, kind)]
        )

    def reportinfo(self) -> tuple[Any, int, str]:
        """Name the property, not a line of this file."""
        return self.path, 0, f"conformance: {self.rule}"
