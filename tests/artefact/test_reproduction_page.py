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


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("reproduction_page")


def test_page_and_figures_are_fresh(tool, capsys):
    assert tool.main(["--check"]) == 0
    text = tool.PAGE.read_text(encoding="utf-8")
    assert all(f"]({name})" in text for name in tool.figures.FIGURES)
    counts = importlib.import_module("reproduction_page").num_untouched(json.loads(tool.DATA.read_text()))
    assert counts == {True: (13, 13), False: (3, 0)}
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert "their other 13 figures fall [within the range of single runs]" in readme
    assert "The remaining 3 figures, of larger batches, do not." in readme


def test_no_text_leaves_a_figure(tool):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    data = json.loads(tool.DATA.read_text())
    for name, draw in tool.figures.FIGURES.items():
        figure = draw(data).figure
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        box, (width, height) = figure.get_tightbbox(canvas.get_renderer()), figure.get_size_inches()
        assert min(box.x0, box.y0) >= 0, name
        assert (box.x1 <= width, box.y1 <= height) == (True, True), name


def test_figures_are_told_apart_by_what_was_fitted_to_them(page):
    names = ["overhead_anatomy.y", "overhead_anatomy.y", "z.w", "grouping_rate_all_mean.batch 2"]
    states = [(True, True), (False, True), (False, False), (False, True)]
    rows = [{"target": name, "fitted": fit, "inside": in_} for name, (fit, in_) in zip(names, states, strict=True)]
    assert page.num_untouched({"rows": rows}) == {True: (1, 1), False: (1, 0)}
    data = json.loads((ROOT / "docs" / "reproduction.json").read_text())
    opening = " ".join(page.opening(data).split())
    assert (
        "Of the other 16, 13 lie within the range: 13 of the 13 that the two logs at batch 4 print, and 0 of the 3"
        in opening
    )


def test_tables_have_words_in_place_of_names_and_texts_flush_left(page):
    data = json.loads((ROOT / "docs" / "reproduction.json").read_text())
    shown = page.figures(data)
    assert not any(row["target"].removeprefix("overhead_anatomy.") in shown for row in data["rows"])
    assert "| grouping rate of captions: batch 8 | " in shown
    assert "| ---: | --- | --- |\n| DSD as shipped |" in page.failures(data)


def test_the_memory_ends_from_the_context_on_at_which_no_larger_batch_fits(page):
    costs = importlib.import_module("reproduction_costs")
    lines = [
        {"context_tokens": context, "batch_size": size, "fits": fits}
        for context, size, fits in ((256, 96, 576), (1024, 192, 242), (1024, 192, 271), (4096, 64, 68), (16384, 8, 9))
    ]
    assert costs.memory_ends(lines) == 4096
    assert costs.memory_ends(lines[:2]) == 1024


def test_what_is_stale_is_seen(tool, monkeypatch, tmp_path):
    data = json.loads(tool.DATA.read_text())
    data["rows"][0]["simulated"] += 1
    (tmp_path / "reproduction.json").write_text(json.dumps(data))
    monkeypatch.setattr(tool, "DATA", tmp_path / "reproduction.json")
    assert tool.main(["--check"]) == 1
    assert set(tool.stale(data)) == {"reproduction.md", *tool.figures.FIGURES}


def test_the_data_are_of_the_committed_constants_and_targets(tool):
    from simulator.studies.roofline_checks import check_roofline, summarize_checks
    from simulator.studies.targets import read_targets

    data = json.loads(tool.DATA.read_text())
    logs = read_targets().anatomy
    for method in ("eqspec", "exspec"):
        rows = {row["target"]: row for row in data["rows"]}
        assert rows[f"overhead_anatomy.{method}.tokens_per_s"]["published"] == logs[method]["tokens_per_s"]
    summary = summarize_checks(check_roofline())
    assert [line["median"] for line in data["checks"]] == pytest.approx(summary["median"].tolist())


def test_some_studies_are_run_again(tool, monkeypatch):
    data = json.loads(tool.DATA.read_text())
    monkeypatch.setattr(tool, "STUDIES", {"explained": lambda constants: {"x": "y"}, "curves": lambda constants: []})
    some = tool.renewed(data, ["explained"])
    assert some["explained"] == {"x": "y"}
    assert set(some["again"]["explained"]) == {"commit", "utc_time"}
    assert (some["curves"], some["meta"]["commit"]) == (data["curves"], data["meta"]["commit"])
    assert set(tool.renewed(data, [])) == {"meta", "explained", "curves"}


def test_shares_are_scaled_to_the_first(page):
    assert page.refitted({"percent": [25.0, 40.0, 50.0]}, 25.0) == pytest.approx(50)
    assert page.refitted({"percent": [20.0, 50.0]}, 50.0) == pytest.approx(80), "four times the cost for each row"


def test_the_invariants_are_those_of_the_detection_matrix(page):
    assert page.fired("BSP as shipped") == "INV-2 (`bsp-as-shipped`)"
    assert "none (`dsd-next-token-from-draft`)" in page.fired("DSD as shipped")
    assert page.fired("EQSPEC") == ""
