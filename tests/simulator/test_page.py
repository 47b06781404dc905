"""The page with sliders: every point of the grid is answered, and a browser shows the answer of the point chosen."""

import json
import shutil

import pytest

from refimpl.core.errors import InputError
from simulator.cli import main
from simulator.page import write_page
from simulator.settings.scenario import Scenario
from simulator.studies.whatif import METRICS, WhatIf, outlook
from simulator.studies.whatif_grid import answer_grid

AXES = {"batch_size": (1, 2, 4), "acceptance": (0.5, 0.8)}
METHODS = ("eqspec", "inplace")


@pytest.fixture(scope="module")
def grid():
    return answer_grid(Scenario(), METHODS, 2, AXES)


@pytest.fixture(scope="module")
def page(grid, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "panel.html"
    write_page(grid, path)
    return path


def test_answers_are_those_of_the_questions_last_axis_fastest(grid):
    found = outlook(WhatIf(batch_size=2, acceptance=0.8), Scenario(), METHODS, 2)
    assert grid.answers[3]["answer"] == str(found)
    assert list(grid.answers[3]["methods"]) == found.ranking
    assert grid.answers[3]["methods"]["inplace"][0][0] == pytest.approx(
        found.results["inplace"]["tokens_per_s"], rel=1e-3
    )
    assert grid.answers[3] != grid.answers[2] != grid.answers[1]


def test_a_question_without_an_answer_tells_why():
    answers = answer_grid(Scenario(), METHODS, 2, {"deviation": (0.1, 0.49)}).answers
    assert answers[0]["methods"]
    assert answers[1] == {"answer": "deviation must be below 0.46 at a mean of 0.7, not 0.49", "methods": {}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "1"], "replications must be"),
        (["-s", "cost={kind: table, calibration: none}"], "calibration 'none' not found"),
    ],
)
def test_a_page_without_any_answer_is_refused(arguments, message, tmp_path, capsys):
    assert main(["panel", *arguments, "--out", str(tmp_path / "panel.html")]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_methods_to_compare_are_two():
    with pytest.raises(InputError, match="methods must be at least two"):
        answer_grid(Scenario(), ("inplace",), 2, AXES)


def test_what_no_request_says_is_left_empty(tmp_path):
    """Nobody finishes within a second: there is no latency, and the page is still JSON."""
    served = Scenario(study={"kind": "open", "duration_s": 1.0}, seed=1)
    grid = answer_grid(served, METHODS, 2, {"batch_size": (1,)})
    assert grid.answers[0]["methods"]["inplace"][METRICS.index("latency_p99_s")] == [None] * 3
    write_page(grid, tmp_path / "panel.html")
    assert "NaN" not in (tmp_path / "panel.html").read_text().split("<script>")[0]


def test_the_page_contains_the_grid_and_asks_no_server(grid, page):
    text = page.read_text(encoding="utf-8")
    data = text.split('id="grid">')[1].split("</script>")[0]
    assert json.loads(data) == json.loads(json.dumps(grid.as_dict()))
    assert "http" not in text.replace(data, "")


def test_a_slider_changes_the_numbers_in_a_browser(grid, page, tmp_path):
    webdriver = pytest.importorskip("selenium.webdriver")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not browser or not driver:
        pytest.skip("no chromium with chromedriver is installed")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"):
        options.add_argument(argument)
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as chrome:
        chrome.get(page.as_uri())
        assert chrome.find_element("id", "answer").text == grid.answers[3]["answer"]
        chrome.find_element("id", "batch_size").send_keys(webdriver.Keys.ARROW_RIGHT)
        assert chrome.find_element("id", "answer").text == grid.answers[5]["answer"]
        mean = grid.answers[5]["methods"]["inplace"][0][0]
        rows = {row.text.split()[0]: row.text for row in chrome.find_elements("css selector", "#rows tr")}
        shown = f"{round(mean):,}" if mean >= 100 else f"{mean:#.3g}".rstrip(".")
        assert shown in rows["inplace"]


def test_the_command_refuses_a_folder_that_is_not_there(capsys):
    assert main(["panel", "--out", "nowhere/panel.html"]) == 2
    assert "cannot write nowhere/panel.html" in capsys.readouterr().err
