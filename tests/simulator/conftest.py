"""Fixtures of the simulator's tests."""

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
