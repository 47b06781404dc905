"""The roofline beside what was measured: a table of its own seconds is matched, one that is slower by its share."""

import json

import numpy as np
import pandas as pd
import pytest

from refimpl.core.errors import InputError
from refimpl.core.formats import POINT_COLUMNS
from simulator.cli import main
from simulator.service.roofline import RooflineCost
from simulator.settings.calibration import RECORDED, find_calibration
from simulator.settings.fields import Spec
from simulator.studies.roofline_calibration import COMPUTED, compare_calibration, summarize_components

NAMES = ("device", "target", "draft")
MEASURED, FACTS = "nvidia-h200/vicuna", ("h200", "vicuna-7b", "vicuna-68m")
OPTIONS = [f"--{name}={value}" for name, value in zip(NAMES, FACTS, strict=True)]
AT = (
    ("verify", "inplace", 8, 6, 500), ("verify", "inplace_scattered", 8, 6, 500), ("draft", "inplace", 8, 5, 500),
    ("prefill", "any", 4, 255, 0), ("realign", "realigned", 8, 0, 500), ("mixed", "any", 2, 64, 100),
)  # fmt: skip


def folder_of(tmp_path, slowness, **meta):
    """A calibration whose points are the roofline's own seconds, times a factor."""
    facts = {"graphs": False, "layers": "transformers"} | dict(zip(NAMES, FACTS, strict=True))
    cost = RooflineCost(Spec.of("roofline", **facts), None)
    lines = []
    for component, layout, rows, tokens, width in AT:
        one = cost.seconds(component, rows, tokens, np.array([float(width)]), layout == "inplace_scattered")[0]
        seconds = slowness * float(one)
        lines.append((component, layout, rows, tokens, width, 5, *[seconds] * 4))
    lines.append(("host", "any", 8, 6, 0, 5, *[1e-3] * 4))
    pd.DataFrame(lines, columns=list(POINT_COLUMNS)).to_csv(tmp_path / "points.csv", index=False)
    known = json.loads((find_calibration(MEASURED) / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps(known | meta))
    return str(tmp_path)


@pytest.mark.parametrize("slowness", [1.0, 1.25])
def test_the_error_of_every_component_is_told(tmp_path, slowness):
    found = summarize_components(compare_calibration(folder_of(tmp_path, slowness), *FACTS))
    assert set(found.index) == {component for component, *_ in AT} <= set(COMPUTED)
    assert found.loc["verify", "points"] == 2
    for column in ("mean", "worst"):
        assert found[column].to_numpy() == pytest.approx(1 / slowness - 1, abs=1e-9)
    assert found["median"].to_numpy() == pytest.approx(1 - 1 / slowness, abs=1e-9)


def test_recorded_rounds_are_compared_with_recorded_ones(tmp_path):
    """The host launches none of their operations: they are faster than others, which are not compared with them."""
    folder = folder_of(tmp_path, 1.0)
    points = pd.read_csv(tmp_path / "points.csv")
    drafts = points[points["component"] == "draft"]
    pd.concat([points, drafts.assign(layout=RECORDED)]).to_csv(tmp_path / "points.csv", index=False)
    found = compare_calibration(folder, *FACTS).set_index(["component", "layout"])["relative_error"]
    assert found["draft", RECORDED] < -0.5
    assert found["draft", "inplace"] == pytest.approx(0)


@pytest.mark.parametrize(
    ("meta", "facts", "reason"),
    [
        ({"num_layers": {"target": 36, "draft": 2}}, FACTS, "with a target of 36 layers, target has 32"),
        ({}, ("l40s", *FACTS[1:]), "calibration .* was measured on 'NVIDIA H200', device is 'NVIDIA L40S'"),
        ({"dtype": "float32"}, FACTS, "of float32: choose"),
        ({}, ("h2000", *FACTS[1:]), "h2000"),
    ],
)
def test_other_facts_than_those_measured_are_refused(tmp_path, meta, facts, reason):
    with pytest.raises(InputError, match=reason):
        compare_calibration(folder_of(tmp_path, 1.0, **meta), *facts)


def test_the_command_writes_all_points_or_says_what_is_missing(tmp_path, capsys):
    given = ["validate", "--roofline", "--calibration", MEASURED]
    assert main([*given, *OPTIONS, "--json", "--out", str(tmp_path / "all.csv")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(pd.read_csv(tmp_path / "all.csv")) == len(printed["rows"]) > 100
    assert {line["component"] for line in printed["components"]} == set(COMPUTED)
    assert main([*given, *OPTIONS[:2]]) == 2
    assert "also needs --draft" in capsys.readouterr().err
