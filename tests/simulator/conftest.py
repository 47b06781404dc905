"""Fixtures of the simulator's tests."""

import shutil

import pytest

from simulator.settings.calibration import META_FIELDS
from tests.synthetic_inputs import SYNTHETIC_META, write_calibration, write_engine_trace


@pytest.fixture
def calibration(tmp_path):
    assert set(SYNTHETIC_META) == set(META_FIELDS)
    return write_calibration(tmp_path / "calibration")


@pytest.fixture
def engine_trace(tmp_path):
    return write_engine_trace(tmp_path / "trace.ndjson")


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
