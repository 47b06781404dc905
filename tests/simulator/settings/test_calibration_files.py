"""Calibrations: what is interpolated between their points, and what is said of the rest."""

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
from tests.synthetic_inputs import synthetic_points, synthetic_seconds, write_calibration


def study(calibration, outside="refuse", **engine):
    return Scenario(
        study=Study(num_requests=20),
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


@pytest.mark.parametrize("sizes", ["1 … 8", "8 … 8"])
def test_outside_the_measured_range_it_refuses_or_says_so(calibration, sizes):
    """Of a single batch size, too: one number of rows says nothing about others, which then cost what it does."""
    narrow = sizes == "8 … 8"
    write_calibration(calibration, points=[point for point in synthetic_points() if point[2] == 8 or not narrow])
    rows = 4 if narrow else 9
    with pytest.raises(InputError, match=f"batch_size {rows} is outside {sizes}; measure more points, or set"):
        simulate(study(calibration, batch_size=rows), 1)
    results = simulate(study(calibration, "extrapolate", batch_size=rows), 1)
    assert any(f"verify: batch_size {rows} is outside {sizes}" in what for what in results.extrapolated)
    wide = study(calibration, batch_size=8).but({"workload.prompt_tokens": {"kind": "fixed", "tokens": 600}})
    with pytest.raises(InputError, match="is outside"):
        simulate(wide, 1)
    inside = load_calibration(str(calibration)).grid("verify", "inplace").line(4, 5, np.array([77]))[0]
    assert inside == pytest.approx(synthetic_seconds("verify", 8 if narrow else 4, 5, 77))


def test_inside_nothing_is_said_but_what_was_read(calibration):
    found = simulate(study(calibration), 1)
    assert found.extrapolated == ()
    assert re.fullmatch(rf"{calibration}@[0-9a-f]{{16}} \(synthetic\)", found.origin)


def test_what_is_continued_beyond_the_points_never_takes_less_than_no_time():
    """Noise may let a host be a little faster with seven tokens than with four; with many it is not faster than 0."""
    values = [[1, tokens, 0, mean_s] for tokens, mean_s in ((4, 2e-3), (7, 1e-3))]
    grid = make_grid(pd.DataFrame(values, columns=[*AXES, "mean_s"]), "host")
    assert grid.line(1, 9, np.zeros(1))[0] == pytest.approx(1e-3 / 3)
    assert grid.line(1, 65, np.zeros(1))[0] == 0


def test_calibration_uncertainty_is_drawn_per_replication_and_centred(calibration):
    made = study(calibration).but(noise=True)
    factors = np.array([make_cost(made, Streams(0, r)).factors["host"] for r in range(400)])
    assert factors.mean() == pytest.approx(1, abs=0.006)
    assert factors.std() == pytest.approx(0.02, rel=0.2)
