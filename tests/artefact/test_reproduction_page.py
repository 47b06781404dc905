"""docs/reproduction.md and its figures are what the tool makes of the committed data."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("reproduction")


def test_page_and_figures_are_fresh(tool, capsys):
    assert tool.main(["--check"]) == 0
    text = tool.PAGE.read_text(encoding="utf-8")
    assert all(f"]({name})" in text for name in tool.figures.FIGURES)
    rows = json.loads(tool.DATA.read_text())["rows"]
    count = f"{sum(row['inside'] for row in rows)} of {len(rows)} figures"
    assert count in " ".join((ROOT / "README.md").read_text().split())


def test_what_is_stale_is_seen(tool, monkeypatch, tmp_path):
    data = json.loads(tool.DATA.read_text())
    data["rows"][0]["simulated"] += 1
    (tmp_path / "reproduction.json").write_text(json.dumps(data))
    monkeypatch.setattr(tool, "DATA", tmp_path / "reproduction.json")
    assert tool.main(["--check"]) == 1
    assert set(tool.stale(data)) == {"reproduction.md", *tool.figures.FIGURES}


def test_the_data_are_of_the_committed_constants_and_targets(tool):
    from simulator.studies.reproduction import read_targets
    from simulator.studies.roofline_checks import check_roofline, summarize_checks

    data = json.loads(tool.DATA.read_text())
    logs = read_targets()["overhead_anatomy"]
    for method in ("eqspec", "exspec"):
        rows = {row["target"]: row for row in data["rows"]}
        assert rows[f"overhead_anatomy.{method}.tokens_per_s"]["published"] == logs[method]["tokens_per_s"]
    summary = summarize_checks(check_roofline())
    assert [line["median"] for line in data["checks"]] == pytest.approx(summary["median"].tolist())
