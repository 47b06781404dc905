"""The committed data: complete, replayed without a difference, and the validation table as its command writes it."""

import gzip
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from refimpl.core.config import LAYOUTS, SCHEDULERS
from refimpl.core.errors import InputError
from simulator.engine_runs.acceptance_fit import fit_all, fit_profile, request_counts
from simulator.engine_runs.parity import check_parity
from simulator.engine_runs.validation import FIT, read_validation, speed_cv, validate
from simulator.runner import simulate
from simulator.service.acceptance import BootstrapAcceptance
from simulator.service.streams import Streams
from simulator.service.table_cost import UNMEASURED
from simulator.settings.calibration import available_calibrations, load_calibration
from simulator.settings.folders import DATA, VALIDATION
from simulator.settings.scenario import Scenario
from simulator.settings.traces import read_engine_trace

TRACES = sorted(DATA.glob("*/*/*/*.ndjson.gz"))
VALIDATED = sorted(str(path.parent.relative_to(VALIDATION)) for path in VALIDATION.glob("*/*/validation.csv"))
EVERY = [pytest.param(28, marks=pytest.mark.nightly), 10_000]  # held-out runs: one of so many is simulated again
GAPS = {("nvidia-h200/vicuna", "masked"): ["compact"]}  # components that were measured of short rows only


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.removesuffix(".ndjson.gz"))
def test_every_engine_trace_is_replayed_without_a_difference(path):
    parity = check_parity(path)
    assert parity.exact, parity.first_difference


def test_the_traces_cover_every_scheduler_and_layout():
    texts = [gzip.decompress(path.read_bytes()) for path in TRACES]
    headers = [json.loads(text.partition(b"\n")[0]) for text in texts]
    assert {header["scheduler"] for header in headers} == set(SCHEDULERS)
    assert {header["layout"] for header in headers} == set(LAYOUTS)
    modes = {mode for text in texts for mode in re.findall(rb'"mode": ?"(\w+)"', text)}
    assert modes == {b"static", b"fifo", b"grouped", b"fallback", b"aged", b"continuous"}


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("name", VALIDATED)
def test_the_committed_validation_table_is_what_the_command_writes(name, every):
    committed = pd.read_csv(VALIDATION / name / "validation.csv", index_col="run")
    held_out = sorted(path.name.removesuffix(".ndjson.gz") for path in (VALIDATION / name).glob("*.ndjson.gz"))
    assert sorted(committed.index) == held_out
    found = validate(name, runs=slice(0, None, every))
    table = found.table.join(found.stages.add_suffix("_stage_error"))
    for column in committed.select_dtypes("number"):
        ours, theirs = table[column].astype(float), committed.loc[table.index, column]
        assert np.allclose(theirs, ours, rtol=1e-4, atol=1e-5, equal_nan=True), column


@pytest.mark.parametrize("name", VALIDATED)
def test_the_committed_validation_is_exact_in_decisions_and_tells_its_drift(name):
    found = read_validation(name)
    assert found.parity == 1
    assert (found.table["scheduler_error"] == 0).all()
    assert found.meta["origin"] == "measured"
    assert load_calibration(name).meta["utc_time"] == found.meta["utc_time"]


@pytest.mark.parametrize("name", available_calibrations())
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_method_runs_on_a_shipped_calibration(name, layout, scheduler):
    made = Scenario().but(
        {"workload.prompt_tokens": {"kind": "uniform", "low_tokens": 8, "high_tokens": 100}},
        engine={"layout": layout, "scheduler": scheduler, "batch_size": 4, "max_new_tokens": 40},
        study={"num_requests": 12},
        cost={"kind": "table", "calibration": name, "outside": "extrapolate"},
    )
    results = simulate(made, 2)
    assert results["completed"] == 12
    assert load_calibration(name).meta["origin"] in ("measured", "published")
    assert "measured" in results.origin
    chunks = scheduler == "continuous" and load_calibration(name).find("mixed", layout) is None
    assert (UNMEASURED in results.extrapolated) == chunks
    outside = {what.partition(":")[0] for what in results.extrapolated if what != UNMEASURED}
    assert sorted(outside) == GAPS.get((name, layout), [])


def test_positions_that_a_rollback_drafts_again_count_once():
    """Else likelihoods of the models would be of different drafts, and could not be compared."""
    trace = read_engine_trace("validation/cpu/tiny/rollback-b6-k4-0.ndjson.gz")
    right, wrong = request_counts(trace)
    known = sum((trace.match_bits(i) >= 0).sum() for i in range(trace.header["num_sequences"]))
    assert right.sum() + wrong.sum() == known < trace.rows["accepted"].sum()
    with pytest.raises(InputError, match="a profile cannot be told from a run of layout rollback"):
        fit_profile(trace)
    assert set(fit_all(trace, 1)) == {"iid", "beta", "markov", "bootstrap"}


def test_bands_are_wider_where_the_speed_of_the_machine_is_drawn(tmp_path):
    """As wide as an independent factor makes them: relative widths add up as squares, at 90 % of 200 replications."""
    table = read_validation("cpu/tiny").table
    relative = (table["band_high_s"] - table["band_low_s"]) / table["speed"]
    drawn = table["planner_band_high_s"] - table["planner_band_low_s"]
    middle = (table["planner_band_high_s"] + table["planner_band_low_s"]) / 2
    cv = speed_cv(VALIDATION / "cpu/tiny", {})
    assert 0.01 < cv < 0.1
    assert speed_cv(tmp_path, {"reference_cv": 0.07}) == 0.07  # of a pass, where there are no probes
    expected = np.sqrt(relative**2 + (2 * 1.645 * cv * middle) ** 2)
    assert (drawn / expected).between(0.75, 1.3).all()
    assert (drawn / expected).mean() == pytest.approx(1, abs=0.05)
    assert drawn.mean() > relative.mean()


def test_a_bootstrap_sample_consists_of_whole_documents():
    trace = read_engine_trace(VALIDATION / "cpu/tiny" / FIT)
    sizes = np.bincount(trace.documents)
    counts = set()
    for replication in range(5):
        model = BootstrapAcceptance(Streams(0, replication), 2, path=trace.path, resample=True)
        times = np.bincount(model.drawn, minlength=len(trace.documents))
        per_document = [times[trace.documents == document] for document in range(len(sizes))]
        assert all(len(set(each)) == 1 for each in per_document)
        assert sum(each[0] for each in per_document) == len(sizes)
        assert model.copied(0).max() < len(trace.documents)
        counts.add(tuple(times))
    assert len(counts) == 5


def test_shares_of_runs_come_with_their_interval():
    """76 of 84: 0.821 … 0.958 in tables of the exact binomial interval."""
    found = read_validation("cpu/tiny")
    table = found.table.iloc[np.arange(84) % len(found.table)].assign(in_band=np.arange(84) < 76)
    assert replace(found, table=table).interval() == pytest.approx((0.821, 0.958), abs=1e-3)
    assert replace(found, table=table.assign(in_cost_band=True)).missed_studies == []
    missed = table.assign(in_cost_band=table["study"] != "masked-b3-k5")
    assert replace(found, table=missed).missed_studies == ["masked-b3-k5"]
