"""The panel as a user sees it: JupyterLab serves a notebook, a browser runs it, a slider is moved, the number changes.

Nothing but this machine is asked: JupyterLab's look for news, updates and extensions is switched off, and the browser
finds no other host.
"""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import nbformat
import psutil
import pytest

from simulator.settings.scenario import Scenario
from simulator.studies.whatif import WhatIf
from simulator.studies.whatif_grid import answer_of

METHODS, REPLICATIONS, START = ("eqspec", "inplace"), 2, WhatIf(rate_per_s=0.0)
CELL = f"from simulator.panel import panel\npanel(methods={METHODS}, replications={REPLICATIONS})"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
WAIT_S, END_S = 120, 20
LAB = [
    "--no-browser",
    "--allow-root",
    "--ServerApp.port=0",  # a free one
    "--IdentityProvider.token=only-this-test",
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
]

pytestmark = pytest.mark.nightly  # JupyterLab comes with the extra `notebooks`, which `make test` does not install


@contextmanager
def started(command, log, **settings):
    """A process that ends here with all that it started, also where it does not want to."""
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, **settings) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                end(psutil.Process(process.pid))


def end(process):
    family = [process, *process.children(recursive=True)]
    process.terminate()
    for each in psutil.wait_procs(family, END_S)[1]:
        each.kill()


def waited(driver):
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, WAIT_S, ignored_exceptions=[StaleElementReferenceException])


@pytest.fixture
def notebook(chrome, tmp_path):
    """Address of a notebook with the panel; the server has settings of its own."""
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed (pip install -e '.[notebooks]')")
    folders = {f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)], metadata={"kernelspec": KERNEL})
    nbformat.write(made, tmp_path / "panel.ipynb")
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={tmp_path}", *LAB]
    with started(command, tmp_path / "log", env=os.environ | folders | {"IPYTHONDIR": str(tmp_path)}) as server:
        waited(server).until(lambda _: server.poll() is not None or list(tmp_path.glob("RUNTIME/jpserver-*.json")))
        assert server.poll() is None, (tmp_path / "log").read_text()
        (found,) = (json.loads(path.read_text()) for path in tmp_path.glob("RUNTIME/jpserver-*.json"))
        yield f"{found['url']}doc/tree/panel.ipynb?token={found['token']}"


def speed(chrome, method="inplace"):
    """Tokens per second in the table that is shown."""
    return float(chrome.find_element("xpath", f"//tr[th='{method}']/td[1]").text.split()[0])


def computed(question, method="inplace"):
    return answer_of(question, Scenario(), METHODS, REPLICATIONS)["methods"][method][0][0]


def test_a_slider_moved_by_keyboard_changes_the_number_that_is_shown(chrome, notebook):
    from selenium.webdriver import Keys
    from selenium.webdriver.support.expected_conditions import element_to_be_clickable

    chrome.get(notebook)
    wait = waited(chrome)
    wait.until(lambda c: c.find_element("css selector", "[data-status=idle]"), "no kernel starts")
    cell = wait.until(element_to_be_clickable(("css selector", ".jp-CodeCell .cm-content")))
    cell.click()
    cell.send_keys(Keys.SHIFT, Keys.ENTER)
    before = wait.until(speed, "the panel is not shown")
    assert before == computed(START)
    chrome.find_element("css selector", "[role=slider]").send_keys(Keys.ARROW_RIGHT)
    wait.until(lambda c: speed(c) != before, "the number stays as it was")
    assert speed(chrome) == computed(WhatIf(batch_size=START.batch_size + 1, rate_per_s=0.0))
