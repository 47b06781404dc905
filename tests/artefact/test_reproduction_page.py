"""docs/reproduction.md: its figures are drawn from the committed data, and its sentences say what the data say."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
DATA = json.loads((DOCS / "reproduction.json").read_text())
PUBLISHED = {row["target"].removeprefix("overhead_anatomy."): row["published"] for row in DATA["rows"]}
SIMULATED = {row["target"].removeprefix("overhead_anatomy."): row["simulated"] for row in DATA["rows"]}


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("reproduction")


def text(page):
    return " ".join(page.read_text().split())


def counted():
    rows = DATA["rows"]
    fitted = [row for row in rows if row["fitted"]]
    chosen = [row for row in rows if row["target"].startswith("grouping_rate")]
    rest = [row for row in rows if row not in fitted and row not in chosen]
    logged = [row for row in rest if row["target"].startswith("overhead_anatomy")]
    others = [row for row in rest if row not in logged]
    in_all, in_rest, in_logged, in_others = (sum(r["inside"] for r in some) for some in (rows, rest, logged, others))
    yield f"{in_all} of the {len(rows)} published figures lie within"
    yield f"fitted to {len(fitted)} of the {len(rows)}"
    yield f"chosen to fit {len(chosen)} more"
    yield f"Of the other {len(rest)}, {in_rest} lie within the range: {in_logged} of the {len(logged)} in the two logs"
    yield f"and {in_others} of the {len(others)} at larger batches"


def verdicts():
    calls = [found[f"{method}.verify_calls"] for found in (SIMULATED, PUBLISHED) for method in ("eqspec", "exspec")]
    yield "simulated {:.0f} and {:.0f}, published {:.0f} and {:.0f}".format(*calls)
    ratio = "headline.throughput_ratio_batch8_over_batch1"
    yield f"factor of {SIMULATED[ratio]:.1f} over batch 1, published up to {PUBLISHED[ratio]:g}"
    share = "alignment_share_text.batch 16"
    yield f"{SIMULATED[share]:.0f} % at batch 16, more than the {PUBLISHED[share]:g} %"
    shares = [PUBLISHED["eqspec.align_s"] / PUBLISHED["eqspec.total_s"]]
    shares += [PUBLISHED[f"alignment_share_text.batch {size}"] / 100 for size in (8, 16)]
    yield "{:.2f}, {:.2f} and {:.2f} of the time".format(*(share / (1 - share) for share in shares))
    yield f"{PUBLISHED['exspec.grouped_rounds']:g} grouped rounds of {PUBLISHED['exspec.verify_calls']:g}"


def behaviours():
    steps = {step["name"]: step["tokens_per_s"] for step in DATA["steps"]}
    gains = [step["gain"] for step in DATA["steps"][1:4]]
    refill, copies, groups = (f"{100 * gain / sum(gains):.0f} %" for gain in gains)
    yield f"gains {sum(gains):.0f} tokens/s over EQSPEC: {refill} from replacing finished rows, {copies} from cheaper"
    yield f"{groups} from grouping"
    yield f"another {steps['the draft keeps its cache'] - DATA['steps'][3]['tokens_per_s']:.0f} tokens/s"
    graphs, chunks = steps["passes are recorded as graphs"], DATA["steps"][-1]["tokens_per_s"]
    yield f"{steps['nothing moves: inplace + fifo']:.0f} tokens/s to {graphs:.0f}, and chunked prefill to {chunks:.0f}"
    prefill = {line["batch_size"]: line["prefill_percent"] for line in DATA["throughput"] if line["method"] == "exspec"}
    yield f"At batch 8 that takes {prefill[8]:.0f} % of the time, at batch 32 {prefill[32]:.0f} %"


def served():
    lines = {(line["batch_size"], line["scheduler"]): line for line in DATA["online"]}
    gaps = [lines[2, name]["longest_gap_s"] for name in ("EXSPEC as published", "with aging after 16 rounds")]
    yield "waits up to {:.0f} s between two rounds. Aging after 16 rounds makes that {:.1f} s".format(*gaps)
    tails = [lines[8, f"EXSPEC {name}"]["latency_p99_s"] for name in ("as published", "that keeps its caches")]
    yield "at batch 8 falls from {:.0f} s to {:.1f} s".format(*tails)


def test_sentences_say_what_the_data_say():
    page = text(DOCS / "reproduction.md")
    said = [*counted(), *verdicts(), *behaviours(), *served()]
    assert [sentence for sentence in said if sentence not in page] == []
    readme = text(ROOT / "README.md")
    assert "their other 13 figures fall [within the range of single runs]" in readme
    assert "The remaining 3 figures, of larger batches, do not." in readme


def test_figures_are_fresh_and_what_is_stale_is_seen(tool, monkeypatch, tmp_path):
    assert tool.main(["--check"]) == 0
    assert all(f"]({name})" in (DOCS / "reproduction.md").read_text() for name in tool.figures.FIGURES)
    changed = json.loads(json.dumps(DATA))
    changed["rows"][0]["simulated"] += 1
    (tmp_path / "reproduction.json").write_text(json.dumps(changed))
    monkeypatch.setattr(tool, "DATA", tmp_path / "reproduction.json")
    assert tool.main(["--check"]) == 1


def test_no_text_leaves_a_figure(tool):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for name, draw in tool.figures.FIGURES.items():
        figure = draw(DATA).figure
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        box, (width, height) = figure.get_tightbbox(canvas.get_renderer()), figure.get_size_inches()
        assert min(box.x0, box.y0) >= 0, name
        assert (box.x1 <= width, box.y1 <= height) == (True, True), name


def test_the_data_are_of_the_committed_targets_and_costs(tool):
    logs = tool.read_targets().anatomy
    for method in ("eqspec", "exspec"):
        assert PUBLISHED[f"{method}.tokens_per_s"] == logs[method]["tokens_per_s"]
    assert [line["median"] for line in DATA["checks"]] == pytest.approx(
        [line["median"] for line in tool.STUDIES["checks"](None)]
    )


def test_some_studies_are_run_again(tool, monkeypatch):
    monkeypatch.setattr(tool, "STUDIES", {"steps": lambda constants: [1], "online": lambda constants: []})
    some = tool.renewed(DATA, ["steps"])
    assert some["steps"] == [1]
    assert set(some["again"]["steps"]) == {"commit", "utc_time"}
    assert (some["rows"], some["meta"]) == (DATA["rows"], DATA["meta"])
    assert set(tool.renewed(DATA, [])) == {"meta", "steps", "online"}
