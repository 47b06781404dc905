"""Acceptance models are fitted to traces of simulated runs, so that the truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.engine_runs.acceptance_fit import fit_all, fit_beta, fit_iid, fit_markov, fit_profile
from simulator.engine_runs.parity import replay_scenario
from simulator.service.simulation import simulate_once
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Workload
from simulator.settings.traces import read_engine_trace
from tests.synthetic_inputs import HEADER, write_engine_trace


def synthetic_trace(tmp_path, acceptance, requests=200, name="t.ndjson"):
    """An engine trace of a simulated run, so that the truth is known."""
    engine = Engine(batch_size=4, num_speculative_tokens=4, max_new_tokens=60)
    made = Scenario(
        study=Study(num_requests=requests),
        engine=engine,
        acceptance=acceptance,
        workload=Workload(prompt_tokens=Spec.of("fixed", tokens=8), output_tokens=Spec.of("fixed", tokens=60)),
    )
    rows = simulate_once(made, keep_rows=True).log.row_frame()
    stages = {
        "next_token": "bonus",
        **{f"{s}_s": 0.1 for s in ("draft", "verify", "realign", "prefill", "host", "round")},
    }
    lines = [line | stages for line in rows.drop(columns="replica").to_dict(orient="records")]
    header = HEADER | {
        "batch_size": 4, "window_size": 4, "num_speculative_tokens": 4, "max_new_tokens": 60,
        "num_sequences": requests, "prompt_lens": [8] * requests, "num_speculative_tokens_each": [4] * requests,
        "max_new_tokens_each": [60] * requests,
    }  # fmt: skip
    lines = [{k: v.item() if hasattr(v, "item") else v for k, v in line.items()} for line in lines]
    return read_engine_trace(write_engine_trace(tmp_path / name, header, lines))


def test_fits_recover_what_made_the_trace(tmp_path):
    iid = synthetic_trace(tmp_path, Spec.of("iid", probability=0.7), name="iid.ndjson")
    assert fit_iid(iid)[0]["probability"] == pytest.approx(0.7, abs=0.02)
    assert np.allclose(fit_profile(iid)[0]["probabilities"], 0.7, atol=0.05)
    assert fit_markov(iid)[0]["correlation"] < 0.05
    # Likelihoods are of the same drafts. On independent ones more parameters hardly gain anything: χ² at 1e-6.
    assert 0 <= fit_markov(iid)[1] - fit_iid(iid)[1] < 12
    assert 0 <= fit_profile(iid)[1] - fit_iid(iid)[1] < 18
    markov = synthetic_trace(tmp_path, Spec.of("markov", probability=0.7, correlation=0.4), name="markov.ndjson")
    assert fit_markov(markov)[0]["correlation"] == pytest.approx(0.4, abs=0.06)
    beta = synthetic_trace(tmp_path, Spec.of("beta", a=4.0, b=2.0), requests=400, name="beta.ndjson")
    spec, likelihood = fit_beta(beta)
    assert spec["a"] / (spec["a"] + spec["b"]) == pytest.approx(2 / 3, abs=0.05)
    assert likelihood > fit_iid(beta)[1] + 50


def test_the_right_mean_with_too_little_spread_is_found_out(tmp_path):
    trace = synthetic_trace(tmp_path, Spec.of("beta", a=3.0, b=1.5), requests=60)
    fits = fit_all(trace, replications=12)
    assert not fits["iid"].table.loc["sd_rounds", "inside"]
    assert fits["iid"].table.loc["sd_rounds", "model"] < 0.7 * fits["iid"].table.loc["sd_rounds", "trace"]
    assert fits["beta"].table["inside"].all()
    whole = trace.rows[trace.rows["seq_len"] + 5 <= 8 + 60]  # rounds that the end of the budget does not cut
    assert fits["iid"].table.loc["sd_kept", "trace"] == pytest.approx(whole["accepted"].std())
    assert fits["bootstrap"].table.loc["sd_rounds", "inside"]


def test_replayed_acceptance_serves_other_schedules(tmp_path):
    trace = synthetic_trace(tmp_path, Spec.of("iid", probability=0.7), requests=20)
    same = simulate_once(replay_scenario(trace)).log.request_frame()
    other_engine = replace(replay_scenario(trace).engine, scheduler="static")
    other = simulate_once(replace(replay_scenario(trace), engine=other_engine)).log.request_frame()
    assert same["accepted"].sum() == trace.rows["accepted"].sum()
    assert same["rounds"].equals(other["rounds"])
