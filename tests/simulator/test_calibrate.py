"""From the engine to the simulator and back: calibrate a random pair on a small grid, validate on its held-out runs."""

import json

import pytest

from refimpl import calibrate
from refimpl.pairs.loading import random_pair
from simulator.calibration import load_calibration
from simulator.cli import main
from simulator.validation import validate

STUDIES = (
    calibrate.HeldOut("eqspec", "eqspec", 2, 2, 6, 10, 20),
    calibrate.HeldOut("exspec", "exspec", 2, 2, 8, 10, 20, window_size=6),
    calibrate.HeldOut("masked-fifo", "masked+fifo", 2, 2, 6, 10, 20),
    calibrate.HeldOut("rollback", "rollback", 3, 1, 6, 8, 20),
    calibrate.HeldOut("inplace-grouped", "inplace+grouped", 2, 2, 6, 10, 20, window_size=5),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    prompts = [[(7 * i + 3 * j) % 50 + 5 for j in range(3 + 5 * i % 29)] for i in range(40)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "BATCH_SIZES", (1, 3))
        patch.setattr(calibrate, "DRAFTS", (0, 2))
        patch.setattr(calibrate, "PROMPT_LENS", (2, 40))
        patch.setattr(calibrate, "PREFILL_LENS", (2, 24))
        patch.setattr(calibrate, "HELD_OUT", STUDIES)
        patch.setattr(calibrate, "FIT", calibrate.HeldOut("fit", "inplace", 3, 2, 12, 10, 20))
        pair = random_pair("llama", draft_noise=0.01)
        calibrate.calibrate(pair, prompts, folder, pair_name=pair.name, passes=2, repeats=1, command="tests")
    return folder


def folder_of(data, kind):
    return next((data / kind).glob("*/*"))


def test_what_the_engine_writes_the_simulator_reads(data):
    calibration = load_calibration(str(folder_of(data, "calibration")))
    assert calibration.meta["origin"] == "measured"
    components = {component for component, _ in calibration.grids}
    assert components >= {"prefill", "draft", "verify", "regroup", "compact", "host"}
    assert all((grid.mean_s > 0).all() for grid in calibration.grids.values())


def test_held_out_runs_are_judged_and_decided_alike(data, capsys):
    calibration, runs = str(folder_of(data, "calibration")), folder_of(data, "validation")
    found = validate(calibration, runs, replications=5)
    assert found.parity == 1
    assert len(found.table) == len(STUDIES)
    assert (found.table["scheduler_error"] == 0).all()
    both = (1 + found.table["cost_error"]) * (1 + found.table["acceptance_error"])
    assert (both - 1 - found.table["makespan_error"]).abs().max() < 1e-9
    code = main(["validate", "--calibration", calibration, "--runs", str(runs), "-n", "3", "--write", "--json"])
    assert code == 0
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]) == len(STUDIES)
    assert (runs / "validation.csv").is_file()


def test_a_calibration_of_another_pair_is_refused(data, tmp_path, capsys):
    runs = folder_of(data, "validation")
    meta = json.loads((runs / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps(meta | {"pair": "other"}))
    first = next(runs.glob("*.ndjson.gz"))
    (tmp_path / first.name).write_bytes(first.read_bytes())
    assert main(["validate", "--calibration", str(folder_of(data, "calibration")), "--runs", str(tmp_path)]) == 2
    assert "the calibration's is 'other'" in capsys.readouterr().err


def test_interruptions_are_left_out():
    assert calibrate.uninterrupted([1.0, 1.1, 0.9, 300.0]) == [1.0, 1.1, 0.9]
    assert calibrate.uninterrupted([1.0, 2.0, 9.0]) == [1.0, 2.0, 9.0]
