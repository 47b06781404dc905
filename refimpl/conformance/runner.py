"""Open an engine, test it, show and write the report: what the command does."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis.configuration import set_hypothesis_home_dir

from refimpl.conformance.command import SubjectOptions
from refimpl.conformance.command_engine import CommandEngine
from refimpl.conformance.kit import check_engine, known_properties
from refimpl.conformance.python_engine import load_engine
from refimpl.conformance.replay import read_failures
from refimpl.conformance.report import show
from refimpl.conformance.verdicts import Report
from refimpl.conformance.watch import Watch
from refimpl.core.console import ended_by_signals
from refimpl.core.errors import InputError, require
from refimpl.core.files import check_writable, write_whole
from refimpl.core.progress import progress_bars


def run_conformance(
    tested: SubjectOptions,
    *,
    properties: str | None = None,
    output: Path | None = None,
    html: Path | None = None,
    junit: Path | None = None,
    replay: Path | None = None,
    total_time_s: float | None = None,
    **options: Any,
) -> Report:
    """Test an engine, with progress on stderr; show what was found.

    Args:
        tested: what to test, against what.
        properties: names, separated by commas; None means all.
        output, html, junit: where to write the report, as JSON, as a page, and for CI.
        replay: a JSON report whose failures are asked for again, in place of a search.
        total_time_s: seconds after which the run ends; an answer under way is awaited.
        options: of `refimpl.conformance.kit.check_engine`.

    Raises:
        InputError: impossible arguments, or an engine that cannot be opened.
        KeyboardInterrupt: the run was interrupted; what was found by then was shown.
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
        watch = Watch(bars, total_time_s, keeps_interrupts=True)
        with opened(tested) as (subject, plain):
            options |= {"properties": chosen, "watch": watch, "reference": plain, "saved": saved}
            report = check_engine(subject, name=tested.engine or tested.command or tested.server or "", **options)
        set_hypothesis_home_dir(None)
    show(report)
    _write(report, *files)
    if watch.interrupt:
        raise watch.interrupt
    return report


def _write(report: Report, output: Path | None, html: Path | None, junit: Path | None) -> None:
    if output:
        write_whole(output, json.dumps(report.as_dict(), indent=1).splitlines())
    if not (html or junit):
        return
    from refimpl.conformance.page import page_of
    from refimpl.viz.page import write_pages

    write_pages(page_of(report), html, junit)


@contextmanager
def opened(tested: SubjectOptions) -> Iterator[tuple[Any, Any]]:
    """Make the engine under test, and the reference if one is named; end the processes and connections that this opens.

    Raises:
        InputError: none or several are named, there is no such engine, or their vocabularies differ.
    """
    given = [name for name in (tested.engine, tested.command, tested.server) if name is not None]
    require(
        len(given) == 1,
        "give either --engine module:factory, --command 'a program' or --server http://host:port/v1",
    )
    one_reference = tested.reference is None or tested.reference_command is None
    require(one_reference, "give the reference by --reference or as a command, not both")
    with ExitStack() as stack:
        at = tested.server
        subject = _server(stack, tested, at) if at is not None else _open(stack, tested, tested.engine, tested.command)
        plain = _open(stack, tested, tested.reference, tested.reference_command)
        if plain and plain.vocab_size != subject.vocab_size:
            name = tested.reference or tested.reference_command
            raise InputError(f"{name!r} has a vocabulary of {plain.vocab_size}, the engine {subject.vocab_size}")
        yield subject, plain


def _open(stack: ExitStack, tested: SubjectOptions, name: str | None, command: str | None) -> Any:
    """Make what a command starts or a name stands for: a server, a folder of a model or a factory; None for neither."""
    if command is not None:
        return stack.enter_context(closing(CommandEngine(command, tested.timeout_s)))
    if name is None:
        return None
    if name.startswith(("http://", "https://")):
        return _server(stack, tested, name)
    if name and Path(name).is_dir():
        from refimpl.conformance.model_reference import ModelReference  # loads torch

        return ModelReference(name)
    return load_engine(name, tested.timeout_s)


def _server(stack: ExitStack, tested: SubjectOptions, url: str) -> Any:
    from refimpl.conformance.server_engine import ServerEngine  # needs httpx2

    return stack.enter_context(closing(ServerEngine(url, tested.model, tested.tokenizer, tested.timeout_s)))
