"""What a validation says of held-out runs, beside the seconds that are compared."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from refimpl.core.errors import InputError
from simulator.engine_runs import validation
from simulator.engine_runs.validation import read_validation, summarize_errors, validate
from simulator.runner import simulate
from simulator.settings.traces import EngineTrace
from tests.synthetic_inputs import HEADER


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


def test_verify_passes_with_chunks_are_judged_apart():
    """Rounds 1 and 3 of four have chunks; nothing is said of a run without, or of other rounds than its own."""
    measured_s, ours_s = pd.Series([1.0, 2.0, 3.0, 6.0]), pd.Series([2.0, 2.0, 4.0, 4.0])
    found = validation._verify_errors(measured_s, ours_s, pd.Series([1, 3, 3]))
    assert found == {"verify_mixed": pytest.approx(-0.25), "verify_alone": pytest.approx(0.5)}
    for rounds, chunked in ((ours_s, []), (ours_s[:3], [1])):
        assert np.isnan([*validation._verify_errors(measured_s, rounds, pd.Series(chunked)).values()]).all()
    every = validation._verify_errors(measured_s, ours_s, pd.Series(measured_s.index))
    assert np.isnan(every["verify_alone"])
    assert not np.isnan(every["verify_mixed"])


def test_waits_of_a_held_out_run_by_hand():
    """Two requests; rounds of one and of three seconds, on a machine half as fast as the calibration's."""
    rows = pd.DataFrame({"round": [0, 1, 1], "sequence": [0, 0, 1], "kept": [1, 2, 3], "accepted": [0, 1, 2]})
    stages = dict.fromkeys(("prefill_s", "draft_s", "verify_s", "realign_s", "host_s"), 0.0)
    rows = rows.assign(mode="fifo", k=2, num_moves=0, num_blocks=np.nan, **stages, round_s=[1.0, 3.0, 3.0])
    simulated = {"first_token_p50_s": 1.25, "first_token_p90_s": 1.85, "inter_token_p50_s": 3.0, "inter_token_p90_s": 0}
    found = validation._wait_errors(EngineTrace("run", HEADER, rows), simulated, speed=2.0)
    assert found["first_token_p50_error"] == pytest.approx(0)
    assert found["first_token_p90_error"] == pytest.approx(0)
    assert found["inter_token_p50_error"] == pytest.approx(1)
    assert found["inter_token_p90_error"] == -1
