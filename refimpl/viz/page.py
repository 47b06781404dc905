"""A report as one page that needs nothing else, and as JUnit for CI."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from jinja2 import Environment

from refimpl.core.files import whole_file
from refimpl.viz.batch import DrawnBatch

Status = Literal["pass", "fail", "skipped"]
TEMPLATE = Path(__file__).with_name("report.html")


@dataclass(frozen=True)
class Check:
    """One line of a report.

    Attributes:
        name: of what was checked.
        status: passed, failed, or says nothing.
        said: the verdict, in the words of the command.
        figures: further cells, in order of the page's columns.
        lines: why, and what was asked; the first one is the reason.
        batch: the failing case.
        repeat: lines that ask for the failing case again.
    """

    name: str
    status: Status
    said: str
    figures: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    batch: DrawnBatch | None = None
    repeat: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        command: that made it, by name.
        title: what was checked.
        verdict: of all, in a sentence.
        status: of all.
        columns: headings of the checks' figures.
        checks: in order.
        notes: what the run says nothing about, and what it was made with.
        repeat: command lines that run it again.
    """

    command: str
    title: str
    verdict: str
    status: Status
    columns: tuple[str, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    repeat: tuple[str, ...] = ()


def write_pages(page: Page, html: Path | None, junit: Path | None) -> None:
    """Write what there is a file for.

    Raises:
        InputError: one cannot be written.
    """
    if html:
        write_page(page, html)
    if junit:
        write_junit(page, junit)


def write_page(page: Page, path: Path) -> None:
    """Write a page of HTML: verdict first, no scripts, nothing from outside, light or dark as the reader has it.

    Raises:
        InputError: the file cannot be written.
    """
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE.read_text())
    with whole_file(path) as file:
        file.write(template.render(page=page))


def write_junit(page: Page, path: Path) -> None:
    """Write the checks as a test suite of JUnit.

    Raises:
        InputError: the file cannot be written.
    """
    told = [check.status for check in page.checks]
    counts = {"tests": len(told), "failures": told.count("fail"), "errors": 0, "skipped": told.count("skipped")}
    attributes = {"name": f"raggedspec {page.command}"} | {name: str(number) for name, number in counts.items()}
    suite = ElementTree.Element("testsuite", attributes)
    for check in page.checks:
        case = ElementTree.SubElement(suite, "testcase", classname=page.title, name=check.name)
        if check.status != "pass":
            kind = "failure" if check.status == "fail" else "skipped"
            said = ElementTree.SubElement(case, kind, message="".join(check.lines[:1]) or check.said)
            said.text = "\n".join([*check.lines, *check.repeat])
    with whole_file(path, "wb") as file:
        ElementTree.ElementTree(suite).write(file, encoding="utf-8", xml_declaration=True)
