"""Where the output of a command goes: options, files with provenance, tables beside JSON."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console

from refimpl.core.option_groups import OUTPUT, HtmlPath, JunitPath, option

ReportPath = Annotated[Path | None, option(OUTPUT, "Write the results and where they come from to this JSON file.")]


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """A table on stdout, and the same as JSON in a file or on stdout."""

    json_: Annotated[bool, option(OUTPUT, "Print a JSON object on stdout, the table on stderr.", "--json")] = False
    output: ReportPath = None

    def print(self, report: dict[str, Any]) -> None:
        """Print the report as JSON, if asked for."""
        if self.json_:
            print(json.dumps(report))


@dataclass(frozen=True, kw_only=True)
class PageOptions(ReportOptions):
    """The same, also as a page for people and for CI."""

    html: HtmlPath = None
    junit: JunitPath = None

    @property
    def files(self) -> list[Path | None]:
        """All that are written."""
        return [self.output, self.html, self.junit]


@dataclass(frozen=True, kw_only=True)
class LineOptions:
    """One text or JSON line per prompt, and a trace of the rounds."""

    json_: Annotated[
        bool | None,
        option(
            OUTPUT,
            "Print JSON lines, or prompts with their text.",
            "--json/--text",
            none="text on a terminal, else JSON lines",
        ),
    ] = None
    output: Annotated[Path | None, option(OUTPUT, "Write JSON lines to this file, in input order.", none="stdout")] = (
        None
    )
    trace: Annotated[Path | None, option(OUTPUT, "Write a trace: NDJSON, one line per row and round.")] = None

    @property
    def as_json(self) -> bool:
        """Whether stdout gets JSON lines."""
        return not sys.stdout.isatty() if self.json_ is None else self.json_


def check_outputs(outputs: list[Path | None], inputs: list[Path | None]) -> None:
    """Refuse files that cannot be written, or are given twice, before any work is done.

    Raises:
        InputError: such a file.
    """
    from refimpl.core.files import check_writable

    for place, path in enumerate(outputs):
        if path:
            check_writable(path, *outputs[:place], *inputs)


def write_report(
    output: Path | None, report: dict[str, Any], device: Any, meta: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Add provenance and `meta` to a report, write it if there is a file to write to, and return it."""
    from refimpl.core.files import write_whole
    from refimpl.decoding.devices import provenance

    report = {**report, "meta": provenance(device) | (meta or {})}
    if output:
        write_whole(output, [json.dumps(report, indent=1)])
    return report


def console_for_tables(*, json_: bool = False) -> Console:
    """A console that does not fold tables when its output is piped; on stderr if stdout is for JSON alone."""
    stream = sys.stderr if json_ else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 180)
