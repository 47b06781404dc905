"""Calibrations: what is read from their files, refused in them, and interpolated."""

import re

import numpy as np
import pandas as pd
import pytest

from refimpl.core.errors import InputError
from simulator.runner import simulate
from simulator.service.scenario_cost import make_cost
from simulator.service.streams import Streams
from simulator.settings.calibration import load_calibration
from simulator.settings.fields import Spec
from simulator.settings.grids import AXES, make_grid
from simulator.settings.scenario import Engine, Scenario, Study, Workload
from tests.synthetic_inputs import (
    SYNTHETIC_META,
    synthetic_points,
    synthetic_seconds,
    write_calibration,
)


def study(calibration, outside="refuse", **engine):
    return Scenario(
        study=Study(num_requests=8),
        workload=Workload(prompt_tokens=Spec.of("uniform", low_tokens=8, high_tokens=100)),
        engine=Engine(**({"batch_size": 4, "max_new_tokens": 32} | engine)),
        cost=Spec.of("table", calibration=str(calibration), outside=outside),
        noise=False,
    )


@pytest.mark.parametrize("component", ["draft", "verify", "realign", "concat", "compact"])
@pytest.mark.parametrize("point", [(1, 5, 8), (3, 4, 77), (8, 8, 512)])
def test_interpolation_is_exact_on_a_linear_table(calibration, component, point):
    grid = load_calibration(str(calibration)).grid(component, "inplace")
    rows, tokens, width = point[0], 0 if component in ("realign", "concat", "compact") else point[1], point[2]
    expected = synthetic_seconds(component, rows, tokens, width)
    assert grid.line(rows, tokens, np.array([width]))[0] == pytest.approx(expected)


def test_outside_the_measured_range_it_refuses_or_says_so(calibration):
    with pytest.raises(InputError, match="batch_size 9 is outside 1 … 8; measure more points, or set"):
        simulate(study(calibration, batch_size=9).but({"study.num_requests": 20}), 1)
    results = simulate(study(calibration, outside="extrapolate", batch_size=9).but({"study.num_requests": 20}), 1)
    assert any("verify: batch_size 9 is outside 1 … 8" in what for what in results.extrapolated)
    wide = study(calibration).but({"workload.prompt_tokens": {"kind": "fixed", "tokens": 600}})
    with pytest.raises(InputError, match="is outside"):
        simulate(wide, 1)
    assert simulate(study(calibration), 1).extrapolated == ()
    assert re.fullmatch(rf"{calibration}@[0-9a-f]{{16}} \(synthetic\)", simulate(study(calibration), 1).origin)


def test_what_is_continued_beyond_the_points_never_takes_less_than_no_time():
    """Noise may let a host be a little faster with seven tokens than with four; with many it is not faster than 0."""
    values = [[1, tokens, 0, mean_s] for tokens, mean_s in ((4, 2e-3), (7, 1e-3))]
    grid = make_grid(pd.DataFrame(values, columns=[*AXES, "mean_s"]), "host")
    assert grid.line(1, 9, np.zeros(1))[0] == pytest.approx(1e-3 / 3)
    assert grid.line(1, 65, np.zeros(1))[0] == 0


@pytest.mark.parametrize("field", sorted(SYNTHETIC_META))
def test_a_missing_field_is_an_error(tmp_path, field):
    meta = {k: v for k, v in SYNTHETIC_META.items() if k != field}
    folder = write_calibration(tmp_path / "c", meta=meta)
    with pytest.raises(InputError, match=rf"meta.json: missing {field}$"):
        load_calibration(str(folder))


def test_broken_points(tmp_path):
    points = list(synthetic_points())
    with pytest.raises(InputError, match=r"do not fill a grid"):
        load_calibration(str(write_calibration(tmp_path / "hole", points=points[1:])))
    with pytest.raises(InputError, match=r"component must be one of prefill"):
        load_calibration(str(write_calibration(tmp_path / "name", points=[("warp", *points[0][1:])])))
    with pytest.raises(InputError, match=r"line 2: a value is missing or negative"):
        load_calibration(str(write_calibration(tmp_path / "value", points=[(*points[0][:6], "", *points[0][7:])])))
    text = (write_calibration(tmp_path / "unit") / "points.csv").read_text().replace("mean_s", "mean")
    (tmp_path / "unit" / "points.csv").write_text(text)
    with pytest.raises(InputError, match=r"missing column mean_s \(names include the units\)"):
        load_calibration(str(tmp_path / "unit"))
    with pytest.raises(InputError, match="calibration 'nowhere/none' not found"):
        load_calibration("nowhere/none")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("meta.json", b'{"schema": ', "meta.json: not JSON: Expecting value"),
        ("meta.json", b"[]", "meta.json: must hold a mapping"),
        ("meta.json", b"\xff", "meta.json: cannot be read: it is not UTF-8"),
        ("points.csv", b"component\xff", "points.csv: cannot be read: it is not UTF-8"),
        ("points.csv", b"", "points.csv: cannot be read: No columns"),
    ],
)
def test_a_calibration_that_cannot_be_read_is_one_line(calibration, name, content, message):
    (calibration / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_calibration(str(calibration))


@pytest.mark.parametrize("name", ["meta.json", "points.csv"])
def test_a_calibration_without_one_of_its_files_is_one_line(calibration, name):
    (calibration / name).unlink()
    with pytest.raises(InputError, match=name):
        load_calibration(str(calibration))


@pytest.mark.parametrize(
    ("field", "value"), [("run_cv", "x"), ("component_cv", 1), ("kv_bytes_per_token", {"target": None})]
)
def test_fields_of_the_wrong_kind_are_named(tmp_path, field, value):
    folder = write_calibration(tmp_path / "c", meta=SYNTHETIC_META | {field: value})
    with pytest.raises(InputError, match=f"meta.json: {field}"):
        load_calibration(str(folder))


def test_calibration_uncertainty_is_drawn_per_replication_and_centred(calibration):
    factors = np.array([
        make_cost(study(calibration).but(noise=True), Streams(0, r)).factors["host"] for r in range(400)
    ])  # fmt: skip
    assert factors.mean() == pytest.approx(1, abs=0.006)
    assert factors.std() == pytest.approx(0.02, rel=0.2)


def test_one_number_of_rows_says_nothing_about_others(tmp_path):
    """Where a device has room for one batch size alone, others are outside, too; they cost what that one does."""
    points = [point for point in synthetic_points() if point[2] == 8]
    narrow = str(write_calibration(tmp_path / "narrow", points=points))
    with pytest.raises(InputError, match="batch_size 4 is outside 8 … 8; measure more points, or set"):
        simulate(study(narrow), 1)
    results = simulate(study(narrow, outside="extrapolate"), 1)
    assert any("verify: batch_size 4 is outside 8 … 8" in what for what in results.extrapolated)
    grid = load_calibration(narrow).grid("verify", "inplace")
    assert grid.line(4, 5, np.array([77]))[0] == pytest.approx(synthetic_seconds("verify", 8, 5, 77))
