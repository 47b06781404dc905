"""What a table of costs says beside its points: of few drafts, of short prompts, and of what it does not know."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from refimpl.core.errors import InputError
from simulator.engine_runs.validation import read_validation, summarize_errors, validate
from simulator.runner import simulate
from simulator.service.cost import Fed
from simulator.service.simulation import Simulation
from simulator.settings.scenario import Scenario
from tests.synthetic_inputs import synthetic_points, write_calibration


def cost_of(folder, keep=lambda point: True):
    """Costs of the synthetic points that are kept."""
    calibration = write_calibration(folder, points=[point for point in synthetic_points() if keep(point)])
    scenario = Scenario(cost={"kind": "table", "calibration": str(calibration)}, noise=False)
    return Simulation(scenario.but(engine={"method": "inplace"})).cost


def test_drafts_of_one_k_are_so_many_passes(tmp_path):
    """Fewer take less in proportion, and more are refused; where several k were measured, nothing is added."""
    several = cost_of(tmp_path / "several")
    most = max(tokens for component, _, _, tokens, *_ in synthetic_points() if component == "draft")
    one = cost_of(tmp_path / "one", lambda point: point[0] != "draft" or point[3] == most)
    whole = several.line("draft", 2, most)[100]
    for k in (1, most - 1, most):
        assert one.line("draft", 2, k)[100] == pytest.approx(whole * k / most)
    assert one.line("draft", 2, 0)[100] == 0
    with pytest.raises(InputError, match=f"draft: tokens_per_row {most + 1} is outside 0 … {most}"):
        one.line("draft", 2, most + 1)[100]


def test_a_prompt_shorter_than_the_shortest_measured_costs_as_much(tmp_path):
    cost = cost_of(tmp_path, lambda point: point[0] != "prefill" or point[3] >= 16)
    least = min(tokens for component, _, _, tokens, *_ in synthetic_points() if component == "prefill" and tokens >= 16)
    assert cost.prefill_s([Fed(1, 2, 0)]) == cost.prefill_s([Fed(1, least, 0)])
    assert cost.prefill_s([Fed(1, least, 0)]) < cost.prefill_s([Fed(1, 2 * least, 0)])
    assert not cost.extrapolated


def test_a_validation_says_which_costs_were_extrapolated(tmp_path, monkeypatch):
    """And a table that does not say it is refused."""
    found = read_validation("nvidia-h200/vicuna")
    assert found.outside
    assert all(run.startswith("masked") and what == "compact" for run, what in found.outside.items())
    assert not read_validation("cpu/tiny").outside
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    pd.DataFrame({"run": ["x"], "replications": [200]}).to_csv(folder / "validation.csv", index=False)
    monkeypatch.setattr("simulator.engine_runs.validation.VALIDATION", tmp_path)
    with pytest.raises(InputError, match="missing column outside"):
        read_validation("a/b")


@pytest.mark.parametrize("noise", [True, False])
def test_a_validation_says_what_a_replay_extrapolated(monkeypatch, noise):
    """Costs and waits are judged by the run's own acceptance, with noise and without; its rounds are others."""

    def beyond(scenario, *given, **more):
        results = simulate(scenario, *given, **more)
        marked = scenario.acceptance.kind == "replay" and scenario.noise == noise
        told = ("verify: batch_size 9 is outside 1 … 8",) if marked else ()
        return replace(results, replications=tuple(replace(r, extrapolated=told) for r in results.replications))

    monkeypatch.setattr("simulator.engine_runs.validation.simulate", beyond)
    assert list(validate("cpu/tiny", replications=1, runs=slice(1)).outside.values()) == ["verify"]


def test_the_worst_error_is_of_the_runs_that_have_one():
    """A run of one token has no time between tokens, whichever run that is."""
    table = pd.DataFrame({"a_error": [0.1, np.nan, -0.3], "b_error": [np.nan] * 3, "seconds": [1.0, 2.0, 3.0]})
    for first in range(len(table)):
        found = summarize_errors(table.iloc[np.roll(table.index, first)])
        assert found.loc["a_error"].tolist() == pytest.approx([0.2, -0.1, -0.3, 2]), first
        assert found["worst"].isna().tolist() == [False, True], first
        assert found.loc["b_error", "count"] == 0
