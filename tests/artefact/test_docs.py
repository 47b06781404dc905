"""Pages of docs/: snippets print what the page says, commands run, links lead somewhere, the reference builds."""

import contextlib
import html
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import refimpl
import simulator

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
NAMES = ("engine.md", "conformance.md", "from-python.md")
RUN = [ROOT / "README.md", *(ROOT / "docs" / name for name in NAMES)]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


def printed(code, namespace):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs", "exec"), namespace)
    return out.getvalue()


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_snippets_print_what_the_page_says(page):
    blocks, namespace = FENCE.findall(page.read_text()), {}
    assert len(blocks) > 2
    for (language, code), (after, output) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language == "python":
            assert after == "text", "every snippet shows what it prints"
            assert printed(code, namespace) == output


COMMANDS = dict.fromkeys(
    line for page in RUN for kind, body in FENCE.findall(page.read_text()) if not kind for line in body.splitlines()
)
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command):
    program, *arguments = shlex.split(command)
    assert program == "raggedspec"
    run = subprocess.run(
        [sys.executable, "-m", program, *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout


def anchors(page):
    """Names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_the_index_leads_to_every_page():
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages <= {path for path, _ in LINK.findall(index)}


def test_a_link_to_nowhere_is_seen(tmp_path):
    (tmp_path / "a.md").write_text("# A title\n[x](b.md) [y](#no-such) [z](#a-title)")
    with pytest.raises(AssertionError, match=r"b\.md"):
        test_links_lead_somewhere(tmp_path / "a.md")
    (tmp_path / "b.md").touch()
    with pytest.raises(AssertionError, match="#no-such"):
        test_links_lead_somewhere(tmp_path / "a.md")


def test_the_reference_has_every_public_name_and_no_dead_link(tmp_path):
    command = [sys.executable, "tools/reference.py", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for package in (refimpl, simulator):
        page = html.unescape((tmp_path / f"{package.__name__}.html").read_text())
        ids = set(re.findall(r'id="([^"]+)"', page))
        assert ids >= set(package.__all__) - {"plots"}
        assert set(re.findall(r'href="#([^"]+)"', page)) <= ids
