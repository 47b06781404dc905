"""Shared by all tests: one thread (the machine has few), Hypothesis profiles, small pairs."""

import os
import random
import shutil
from pathlib import Path

from tests.shapes import check_shapes

os.environ.setdefault("OMP_NUM_THREADS", "1")
check_shapes()  # before the modules are imported

import pytest
import torch

from refimpl.pairs import load_pair
from refimpl.pairs.names import TINY
from refimpl.pairs.random_pairs import random_pair
from refimpl.prompts import read_prompts
from refimpl.selfcheck.profiles import register_profiles

torch.set_num_threads(1)

register_profiles()

# for the processes that tests start, where the project is not installed
ROOT = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))


RECORDED_RULES = {
    "greedy": {},
    "coupled": {"temperature": 0.8, "top_p": 0.9, "seed": 4},
    "rejection": {"temperature": 1.2, "acceptance": "rejection", "seed": 4},
    "block": {"temperature": 1.2, "acceptance": "block", "seed": 4},
    "forced": {"acceptance": "forced:0.2/0.2/0.2/0.2/0.2"},
    "no drafts": {"num_speculative_tokens": 0},
}


@pytest.fixture(params=RECORDED_RULES.values(), ids=RECORDED_RULES)
def rule(request):
    """Settings under which recorded rounds, replayed or not, are compared with ordinary ones."""
    return request.param


RULES = {
    "greedy": {},
    "coupled": {"temperature": 0.8, "seed": 3},
    "rejection": {"temperature": 1.0, "acceptance": "rejection"},
}


@pytest.fixture(params=RULES.values(), ids=RULES)
def rules(request):
    """Settings under which tokens must not depend on where K/V are, nor on when a row runs."""
    return request.param


@pytest.fixture(scope="session")
def llama():
    """A random Llama pair whose draft is often right."""
    return random_pair("llama", draft_noise=0.01)


@pytest.fixture(scope="session")
def tiny():
    """The bundled pair."""
    return load_pair("tiny")


@pytest.fixture(scope="session")
def bundled_prompts():
    return read_prompts(TINY / "prompts.jsonl")


@pytest.fixture
def ragged_prompts():
    """Eleven prompts of 1 to 20 tokens that hold the pad id (0), the end-of-sequence id (2) and duplicates."""
    rng = random.Random(7)
    prompts = [[rng.randrange(61) for _ in range(n)] for n in (1, 1, 2, 3, 3, 9, 9, 12, 20)]
    return [*prompts, [2, 0, 2, 2, 17, 0, 0], prompts[5]]


@pytest.fixture
def chrome(tmp_path):
    """A browser without a window that finds this machine alone."""
    webdriver = pytest.importorskip("selenium.webdriver")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not browser or not driver:
        pytest.skip("no chromium with chromedriver is installed")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    alone = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost"
    profile = f"--user-data-dir={tmp_path / 'chromium'}"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", alone, profile):
        options.add_argument(argument)
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as chrome:
        yield chrome
