"""Open an engine, test it, show and write the report: what the command does."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis.configuration import set_hypothesis_home_dir

from refimpl.conformance.command_engine import CommandEngine
from refimpl.conformance.kit import check_engine, known_properties
from refimpl.conformance.protocol import EngineUnderTest
from refimpl.conformance.python_engine import load_engine
from refimpl.conformance.replay import read_failures
from refimpl.conformance.report import show, write_json
from refimpl.conformance.verdicts import Report
from refimpl.conformance.watch import Watch
from refimpl.core.console import ended_by_signals
from refimpl.core.errors import InputError, require
from refimpl.core.files import check_writable
from refimpl.core.progress import progress_bars


def run_conformance(
    engine: str | None,
    command: str | None,
    *,
    reference: str | None = None,
    reference_command: str | None = None,
    timeout_s: float = 60.0,
    properties: str | None = None,
    output: Path | None = None,
    html: Path | None = None,
    junit: Path | None = None,
    replay: Path | None = None,
    total_time_s: float | None = None,
    **options: Any,
) -> Report:
    """Test the engine that one of the first two arguments names, with progress on stderr; show what was found.

    Args:
        engine, command: what to test.
        reference, reference_command: what generates what plain decoding does, in Python or as a server.
        timeout_s: seconds that an answer may take.
        properties: names, separated by commas; None means all.
        output, html, junit: where to write the report, as JSON, as a page, and for CI.
        replay: a JSON report whose failures are asked for again, in place of a search.
        total_time_s: seconds after which the run ends; an answer under way is awaited.
        options: of `refimpl.conformance.kit.check_engine`.

    Raises:
        InputError: impossible arguments, or an engine that cannot be opened.
    """
    require(
        replay is None or properties is None, "--replay asks for the properties that failed: leave out --properties"
    )
    saved = None if replay is None else read_failures(replay)
    chosen = known_properties(properties if saved is None else saved)
    files = [path and path.absolute() for path in (output, html, junit)]  # an engine may change the folder
    for place, path in enumerate(files):
        if path:
            check_writable(path, replay, *files[:place])
    with ended_by_signals(KeyboardInterrupt), TemporaryDirectory() as folder, progress_bars() as bars:
        set_hypothesis_home_dir(folder)  # what it writes down of sources goes with the run
        watch = Watch(bars, total_time_s)
        with opened(engine, command, reference, reference_command, timeout_s) as (subject, plain):
            options |= {"properties": chosen, "watch": watch, "reference": plain, "saved": saved}
            report = check_engine(subject, name=engine or command or "", **options)
        set_hypothesis_home_dir(None)
    show(report)
    _write(report, *files)
    return report


def _write(report: Report, output: Path | None, html: Path | None, junit: Path | None) -> None:
    if output:
        write_json(report, output)
    if not (html or junit):
        return
    from refimpl.conformance.page import page_of
    from refimpl.viz.page import write_pages

    write_pages(page_of(report), html, junit)


@contextmanager
def opened(
    engine: str | None, command: str | None, reference: str | None, reference_command: str | None, timeout_s: float
) -> Iterator[tuple[EngineUnderTest, EngineUnderTest | None]]:
    """Make the engine under test, and the reference if one is named; end the servers that this starts.

    Raises:
        InputError: none or several are named, there is no such engine, or their vocabularies differ.
    """
    if (engine is None) == (command is None):
        raise InputError("give either --engine module:factory or --command 'a server'")
    one_reference = reference is None or reference_command is None
    require(one_reference, "give the reference as module:factory or as a command, not both")
    with ExitStack() as stack:
        subject = _open(stack, engine, command, timeout_s)
        plain = _open(stack, reference, reference_command, timeout_s)
        if plain and plain.vocab_size != subject.vocab_size:
            name = reference or reference_command
            raise InputError(f"{name!r} has a vocabulary of {plain.vocab_size}, the engine {subject.vocab_size}")
        yield subject, plain


def _open(stack: ExitStack, name: str | None, server: str | None, timeout_s: float) -> Any:
    """Make what one of the two names, None if neither does."""
    if server is None:
        return None if name is None else load_engine(name, timeout_s)
    engine = CommandEngine(server, timeout_s)
    stack.callback(engine.close)
    return engine
