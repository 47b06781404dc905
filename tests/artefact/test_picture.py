"""The README's picture is what its script draws, and shows itself on light and dark pages alike."""

import importlib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("ragged_picture")


def test_the_committed_picture_is_what_the_script_draws(tool):
    assert tool.FILE.read_text(encoding="utf-8") == tool.picture()
    assert tool.main(["--check"]) == 0
    assert f"]({tool.FILE.relative_to(ROOT)})" in (ROOT / "README.md").read_text()


def test_a_stale_picture_is_seen(tool, monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "FILE", tmp_path / "ragged.svg")
    assert tool.main(["--check"]) == 1
    assert tool.main([]) == 0
    monkeypatch.setattr(tool, "ENDS", [6, 9, 8])
    assert tool.main(["--check"]) == 1


def test_it_brings_its_own_background_and_description(tool):
    root = ET.fromstring(tool.picture())
    first = root.find(f"{SVG}rect")
    assert (first.get("width"), first.get("height"), first.get("fill")) == (
        str(tool.WIDTH),
        str(tool.HEIGHT),
        "#ffffff",
    )
    assert root.find(f"{SVG}title").text
    assert root.find(f"{SVG}desc").text


def test_every_row_continues_where_its_own_tokens_end(tool):
    """Positions written in the right panel are those of the law: context, accepted drafts, one of the target."""
    assert [tool.CONTEXT + accepted + 1 for accepted in tool.ACCEPTED] == tool.ENDS
    labels = [text for line in tool.continued(0, 0, right=True) for text in ET.fromstring(f"<g>{line}</g>").itertext()]
    assert [labels[i - 1] for i, text in enumerate(labels) if text == "right"] == [str(end) for end in tool.ENDS]
