"""README, architecture and conformance page tell the truth: fresh tables, real targets, rooms, paths and numbers."""

import configparser
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from refimpl.conformance.kit import ALL_PROPERTIES

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
SETUP = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_tables_are_fresh():
    check = subprocess.run(
        [sys.executable, "tools/readme.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout


def test_every_measured_table_has_a_page():
    shown = set(re.findall(r"<!-- table:([\w-]+) -->", "".join(page.read_text() for page in PAGES)))
    assert shown >= {path.stem for path in (DOCS / "results").glob("*.json")} - {"mutation"}
    assert {"brief-demo", "scaling", "simulator-cpu-tiny"} <= shown


def test_benchmarks_are_shown_by_batch_size():
    text = (DOCS / "results.md").read_text()
    tables = re.findall(r"<!-- table:(?:bench|recorded)-[\w-]+ -->(.*?)<!-- /table -->", text, re.DOTALL)
    sizes = [[int(size) for size in re.findall(r"^\| \w[^|]* \| (\d+) \|", table, re.MULTILINE)] for table in tables]
    assert len(sizes) > 5
    assert all(len(found) > 5 and found == sorted(found) for found in sizes)


def test_acceptance_lengths_are_those_of_committed_runs():
    table = (DOCS / "results.md").read_text().partition("### Acceptance lengths")[2].partition("\n\n`rollback`")[0]
    cells = re.findall(r"^\| (\d[\d., ]+) \|", table, re.MULTILINE)
    listed = {length for cell in cells for length in cell.split(", ")}
    files = "".join(path.read_text() for path in (DOCS / "results").glob("*.json"))
    measured = {f"{float(length):.2f}" for length in re.findall(r'"mean_acceptance_length": ([\d.]+)', files)}
    card = (ROOT / "refimpl" / "pairs" / "tiny" / "MODEL_CARD.md").read_text()
    measured |= set(re.findall(r"Mean acceptance length ([\d.]+\d)", card))
    (demo,) = re.findall(
        r"^\| `masked` \| \d+/\d+ \| \d+ \| ([\d.]+) \|", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    assert {demo, "2.23"} <= listed <= measured


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
    pages = [ROOT / "README.md", DOCS / "conformance.md"]
    assert [re.findall(r"(\d+) deliberately broken", page.read_text()) for page in pages] == [[str(faults)]] * 2


def test_properties_are_those_of_the_kit():
    table = (DOCS / "conformance.md").read_text().partition("## What is tested")[2]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table.partition("\n## ")[0], re.MULTILINE)) == ALL_PROPERTIES


def test_what_was_found_in_a_real_engine_is_in_its_report():
    report = json.loads((ROOT / "examples" / "openvino" / "report.json").read_text())
    verdicts = {verdict["property"]: verdict for verdict in report["properties"]}
    passed = [name for name, verdict in verdicts.items() if verdict["status"] == "pass"]
    assert [name for name, verdict in verdicts.items() if verdict["status"] == "fail"] == ["samples_follow_the_law"]
    (p_value,) = re.findall(r"p = ([\d.e-]+)", verdicts["samples_follow_the_law"]["reason"])
    page = (DOCS / "conformance.md").read_text()
    assert f"Of {report['properties_total']} properties {len(passed)} pass" in page
    assert f"fails with p = {p_value}:" in page
