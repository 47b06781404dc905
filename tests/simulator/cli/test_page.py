"""The page of the panel: every point of the grid is answered, and a browser shows the answer of the point chosen."""

import html
import json
import re

import pytest

from simulator.cli import main
from simulator.page import Page
from simulator.settings.scenario import Scenario
from simulator.studies.whatif import METRICS, WhatIf, outlook
from simulator.studies.whatif_grid import AXES as USUAL_AXES
from simulator.studies.whatif_grid import answer_grid, read_axes

AXES = {"batch_size": (1, 2, 4), "acceptance": (0.5, 0.8)}
METHODS = ("eqspec", "inplace")


@pytest.fixture(scope="module")
def grid():
    return answer_grid(Scenario(), METHODS, 2, AXES)


@pytest.fixture(scope="module")
def page(grid, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "panel.html"
    Page(grid).write(path)
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


def test_what_no_request_says_is_left_empty(tmp_path):
    """Nobody finishes within a second: there is no latency, and the page is still JSON."""
    served = Scenario(study={"kind": "open", "duration_s": 1.0}, seed=1)
    grid = answer_grid(served, METHODS, 2, {"batch_size": (1,)})
    assert grid.answers[0]["methods"]["inplace"][METRICS.index("latency_p99_s")] == [None] * 3
    Page(grid).write(tmp_path / "panel.html")
    assert "NaN" not in (tmp_path / "panel.html").read_text().split("<script>")[0]


def test_the_page_contains_the_grid_and_asks_no_server(grid, page):
    text = page.read_text(encoding="utf-8")
    data = text.split('id="grid">')[1].split("</script>")[0]
    assert json.loads(data) == json.loads(json.dumps(grid.as_dict()))
    assert "http" not in text.replace(data, "")


def test_a_notebook_shows_the_page(grid):
    shown = re.fullmatch(r'<iframe srcdoc="([^"]*)" .*></iframe>', Page(grid)._repr_html_())
    assert html.unescape(shown[1]) == Page(grid).text


def test_no_text_of_the_grid_ends_or_hides_the_script(tmp_path):
    served = Scenario(name="<!-- <script> </script>", study={"num_requests": 2})
    Page(answer_grid(served, METHODS[:2], 2, {"batch_size": (1,)})).write(tmp_path / "panel.html")
    data = (tmp_path / "panel.html").read_text(encoding="utf-8").split('id="grid">')[1].split("</script>")[0]
    assert "<" not in data
    assert "<!-- <script> </script>" in json.dumps(json.loads(data))


def check_shown(chrome, answer, method="inplace"):
    """The page says the answer in words, and the method's tokens per second."""
    assert chrome.find_element("id", "answer").text == answer["answer"]
    mean = answer["methods"][method][0][0]
    rows = {row.text.split()[0]: row.text for row in chrome.find_elements("css selector", "#rows tr")}
    assert (f"{round(mean):,}" if mean >= 100 else f"{mean:#.3g}".rstrip(".")) in rows[method]


def test_a_slider_changes_the_numbers_in_a_browser(chrome, grid, page):
    from selenium.webdriver import Keys

    chrome.get(page.as_uri())
    check_shown(chrome, grid.answers[3])
    chrome.find_element("id", "batch_size").send_keys(Keys.ARROW_RIGHT)
    check_shown(chrome, grid.answers[5])


def test_what_is_not_known_is_a_dash_in_a_browser(chrome, tmp_path):
    found = answer_grid(Scenario(study={"num_requests": 8}), METHODS, 2, {"batch_size": (1,)})
    found.answers[0]["methods"]["inplace"] = [[None] * 3 for _ in METRICS]
    Page(found).write(tmp_path / "panel.html")
    chrome.get((tmp_path / "panel.html").as_uri())
    rows = [row.text.split() for row in chrome.find_elements("css selector", "#rows tr")]
    assert ["inplace", *["–"] * len(METRICS)] in rows


def test_another_device_and_other_models_change_the_numbers_in_a_browser(chrome, tmp_path):
    from selenium.webdriver.support.ui import Select

    models = ("qwen3-8b+qwen3-0.6b", "vicuna-7b+vicuna-68m")
    axes = {"batch_size": (4,), "device": ("h100", "l40s"), "models": models}
    machines = answer_grid(Scenario(study={"num_requests": 8}), METHODS, 2, axes)
    Page(machines).write(tmp_path / "machines.html")
    chrome.get((tmp_path / "machines.html").as_uri())
    check_shown(chrome, machines.answers[0])
    Select(chrome.find_element("id", "device")).select_by_visible_text("l40s")
    check_shown(chrome, machines.answers[2])
    Select(chrome.find_element("id", "models")).select_by_visible_text("vicuna-7b+vicuna-68m")
    check_shown(chrome, machines.answers[3])
    speeds = [answer["methods"]["inplace"][0][0] for answer in machines.answers]
    assert speeds[0] > 2 * speeds[2], "an H100 reads its memory almost four times as fast as an L40S"


def test_axes_are_replaced_and_added_by_name():
    axes = read_axes(["batch_size=1, 2", "models=qwen3-8b+qwen3-0.6b"])
    assert axes == USUAL_AXES | {"batch_size": (1, 2), "models": ("qwen3-8b+qwen3-0.6b",)}


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (["batch=1"], "--axis batch=1: must be NAME=VALUE,VALUE with a name of: batch_size"),
        (["device="], "--axis device=: no values are given"),
        (["device=5"], "device must be a text, not 5"),
        (["device=h100,h00"], "cost: no device 'h00': give a YAML file, or one of: "),
        (["models=qwen3-8b+qwen3-0.6b,qwen3-8b+none"], "cost: no architecture 'none': give a YAML file, or one of: "),
        (["deviation=0.1,0.1"], "deviation has a value twice"),
        (["window_size=" + ",".join(map(str, range(1, 12)))], "2200 questions are more than 2000: give fewer values"),
        (["device=h100"], "choose both a device and models"),
    ],
)
def test_axes_that_cannot_be_are_one_line(axes, message, tmp_path, capsys):
    few = [f"--axis={name}={values[0]}" for name, values in USUAL_AXES.items() if "window_size" not in axes[0]]
    assert main(["panel", *few, *(f"--axis={axis}" for axis in axes), "--out", str(tmp_path / "panel.html")]) == 2
    printed = capsys.readouterr().err
    assert message in printed.splitlines()[-1]
    assert not list(tmp_path.iterdir())
