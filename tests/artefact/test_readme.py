"""README, architecture and conformance page tell the truth: fresh tables, real targets, rooms, paths and numbers."""

import configparser
import importlib
import json
import re
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from refimpl.conformance.kit import ALL_PROPERTIES
from simulator.engine_runs.validation import read_validation

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
SETUP = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_tables_are_fresh():
    check = subprocess.run(
        [sys.executable, "tools/readme.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout


def test_every_table_has_a_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    tables = importlib.import_module("readme").TABLES
    shown = re.findall(r"<!-- table:([\w-]+) -->", "".join(page.read_text() for page in PAGES))
    assert sorted(shown) == sorted(tables)


def test_every_marker_is_closed():
    """Else a table is no longer filled, or text behind it is lost."""
    pages = [page.read_text() for pattern in ("*.md", "*/*.md", "docs/results/*.md") for page in ROOT.glob(pattern)]
    for text in pages:
        markers = re.findall(r"<!-- (?:/(\w+)|(\w+):[\w-]+) -->", re.sub(r"`[^`\n]*`", "", text))
        assert [end for end, _ in markers[1::2]] == [owner for _, owner in markers[::2]]


def speeds(name):
    rows = json.loads((DOCS / "results" / f"{name}.json").read_text())["rows"]
    return {(row["engine"], row["batch_size"]): row["tokens_per_s"] for row in rows}


def gains(found, sizes, methods):
    """Least and greatest gain over the engine without drafts, in percent, by batch size."""
    plain = "autoregressive_batched"
    percents = {size: [100 * (found[name, size] / found[plain, size] - 1) for name in methods] for size in sizes}
    return [f"{min(some):.0f}–{max(some):.0f}".replace("-", "−") for some in percents.values()]


def test_gains_are_those_of_the_committed_runs():
    methods = [f"{layout}{scheduler}" for layout in ("inplace", "paged") for scheduler in ("", "+continuous")]
    at_8, at_16, at_32 = gains(speeds("bench-cpu-batches"), (8, 16, 32), methods)
    (longer,) = gains(speeds("bench-cpu"), (8,), ["inplace"])
    on_gpu = speeds("bench-gpu-length3")
    slower = [100 - 100 * on_gpu["inplace", n] / on_gpu["autoregressive_batched", n] for n in (1, 2, 4, 8, 16, 32)]
    at_32 = at_32.replace("–", " to ")
    for page in (ROOT / "README.md", DOCS / "results.md"):
        text = " ".join(page.read_text().split())
        for said in (f"{at_8} %", f"{at_16} %", f"{at_32} %", f"{min(slower):.0f}–{max(slower):.0f} % slower"):
            assert said in text, page.name
    assert f"gain at batch 8 is {longer.partition('–')[0]} %" in text


def test_settings_of_requests_cost_what_is_said():
    rows = json.loads((DOCS / "results" / "requests-tiny.json").read_text())["rows"]
    costs = {row["requests"]: statistics.median(row["ratios"]) for row in rows}
    penalties = [cost for name, cost in costs.items() if name.startswith("repetition")]
    assert max(penalties) < 1.1
    assert costs.pop("a JSON schema") < 1.25
    assert max(costs.values()) < 1.2


def test_acceptance_lengths_are_those_of_committed_runs():
    files = "".join(path.read_text() for path in (DOCS / "results").glob("*.json"))
    measured = {f"{float(length):.2f}" for length in re.findall(r'"mean_acceptance_length": ([\d.]+)', files)}
    card = (ROOT / "refimpl" / "pairs" / "tiny" / "MODEL_CARD.md").read_text()
    measured |= set(re.findall(r"Mean acceptance length ([\d.]+\d)", card))
    sentence = re.search(r"depends on the text: (.*?)\n\n", (DOCS / "results.md").read_text(), re.DOTALL)[1]
    said = set(re.findall(r"\d\.\d\d", sentence))
    assert len(said) == 3
    assert said <= measured


def test_what_is_said_of_the_validation():
    assert {read_validation(name).parity for name in ("cpu/tiny", "nvidia-h200/vicuna")} == {1.0}, "all decisions"
    found = read_validation("cpu/tiny")
    inside, runs = int(found.table["in_cost_band"].sum()), len(found.table)
    assert f"alone cover {inside} of {runs} runs" in " ".join((DOCS / "results.md").read_text().split())


def test_what_is_installed_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = [line for page in PAGES for body in SETUP.findall(page.read_text()) for line in body.splitlines()]
    assert lines
    for line in lines:
        wanted = re.fullmatch(r"pip install '\.\[([\w,]+)\]'", line)
        assert wanted, line
        assert set(wanted[1].split(",")) <= set(extras)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`make ([\w-]+)`", page.read_text())
    assert [target for target in targets if f"\n{target}:" not in makefile] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page):
    folders = "refimpl|simulator|raggedspec|notebooks|proofs|docs|tools|tests"
    paths = re.findall(rf"`((?:{folders})/[\w/.]*)(?::\d+)?`", page.read_text())
    assert [path for path in paths if not (ROOT / path).exists()] == []


def layers(contract):
    """Rooms of a contract, top to bottom; those side by side in a set."""
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    lines = config[f"importlinter:contract:{contract}"]["layers"].split("\n")
    return [set(line.split(" | ")) for line in lines if line and line != "__main__"]


@pytest.mark.parametrize(("package", "contract"), [("refimpl", "floors"), ("simulator", "simulator-floors")])
def test_rooms_are_those_that_the_import_rules_name(package, contract):
    cells = re.findall(r"^\| (`.*?) \|", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    rooms = [set(re.findall(rf"`{package}/(\w+)(?:/|\.py)`", cell)) for cell in cells]
    assert [room for room in rooms if room] == layers(contract)


def test_files_of_a_round_are_listed():
    text = (DOCS / "architecture.md").read_text()
    table = text[text.index("| in `refimpl/decoding/` |") : text.index("## Rooms of the simulator")]
    folder = ROOT / "refimpl" / "decoding"
    files = {path.name for path in folder.glob("[a-z]*.py")} | {
        f"{path.parent.name}/" for path in folder.glob("*/__init__.py")
    }
    assert set(re.findall(r"`(\w+(?:\.py|/))`", table)) == files


def test_faults_are_counted():
    faults = len(json.loads((DOCS / "detection_matrix.json").read_text())["rows"]) - 1  # one row is the healthy engine
    assert re.findall(r"(\d+) deliberately broken", (ROOT / "README.md").read_text()) == [str(faults)]


def test_properties_are_those_of_the_kit():
    table = (DOCS / "conformance.md").read_text().partition("## What is tested")[2]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table.partition("\n## ")[0], re.MULTILINE)) == ALL_PROPERTIES


def test_what_was_found_in_real_engines_is_in_their_reports():
    said = (DOCS / "conformance.md").read_text().partition("## Found in real engines")[2].partition("\n## ")[0]
    for engine, name in (("openvino", "OpenVINO GenAI"), ("vllm", "vLLM")):
        runs = json.loads((DOCS / "results" / "engines" / f"{engine}.json").read_text())
        version = next(iter(runs[0]["libraries"].values()))
        assert f"{name} {version}".removesuffix(".0") in said
        failed = [v["property"] for run in runs for v in run["properties"] if v["status"] == "fail"]
        assert "samples_follow_the_law" in failed
