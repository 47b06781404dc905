"""A measured machine over the roofline: measured inside of the points, the roofline's growth outside of them."""

from itertools import product

import numpy as np
import pytest

from refimpl.core.errors import InputError
from simulator.runner import simulate
from simulator.service.cost import Fed
from simulator.service.scenario_cost import make_cost
from simulator.service.simulation import Simulation
from simulator.service.streams import Streams
from simulator.settings.fields import Spec
from simulator.settings.hardware import hardware_file, load_device, shipped
from simulator.settings.inputs import input_files
from simulator.settings.scenario import load_scenario
from tests.synthetic_inputs import SYNTHETIC_META, synthetic_points, write_calibration

SCENARIO = """\
engine: {batch_size: 4, max_new_tokens: 32}
study: {num_requests: 6}
noise: false
cost: {kind: roofline, device: h100, target: target.yaml, draft: draft.yaml, from_calibration: calibration}
"""
META = SYNTHETIC_META | {  # of what the scenario names: models of 2 and 1 layers, with 8 heads of 128 numbers in 16 bit
    "device": "NVIDIA H100 80GB HBM3", "dtype": "bfloat16", "kv_bytes_per_token": {"target": 8192, "draft": 4096},
}  # fmt: skip


@pytest.fixture
def scenario(calibration, tmp_path):
    write_calibration(calibration, META)
    for name, model, layers in (("target", "qwen3-8b", 2), ("draft", "qwen3-0.6b", 1)):
        lines = hardware_file("architectures", model).read_text().splitlines()
        made = [f"layers: {layers}" if line.startswith("layers:") else line for line in lines]
        (tmp_path / f"{name}.yaml").write_text("\n".join(made))
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    return load_scenario(tmp_path / "scenario.yaml")


def costs_of(scenario, calibration):
    """With the overlay, of its table, of its roofline."""
    settings = {name: value for name, value in scenario.cost.values if name != "from_calibration"}
    others = Spec.of("table", calibration=str(calibration), outside="extrapolate"), Spec.of("roofline", **settings)
    specs = (scenario.cost, *others)
    return [Simulation(scenario.but({"cost": spec.as_mapping()})).cost for spec in specs]


@pytest.mark.parametrize(("component", "rows", "tokens"), [("verify", 3, 5), ("draft", 8, 2), ("realign", 2, 0)])
def test_seconds_within_the_points_are_the_measured_ones(scenario, calibration, component, rows, tokens):
    overlaid, table, _ = costs_of(scenario, calibration)
    for width in (8, 77, 512):
        assert overlaid.line(component, rows, tokens)[width] == pytest.approx(
            table.line(component, rows, tokens)[width]
        )
    assert not overlaid.extrapolated


@pytest.mark.parametrize(("rows", "tokens", "width"), [(64, 9, 512), (8, 33, 512), (8, 9, 9000), (64, 33, 9000)])
@pytest.mark.parametrize("widest", [512, 8])
def test_beyond_the_points_they_grow_as_the_roofline_does(scenario, calibration, widest, rows, tokens, width):
    """Where many wide rows did not fit, growth begins at the widest rows that did, of as many."""
    points = [p for p in synthetic_points() if p[0] != "verify" or p[2] < 8 or p[4] <= widest]
    write_calibration(calibration, META, points)
    overlaid, table, roofline = costs_of(scenario, calibration)
    growth = roofline.line("verify", rows, tokens)[width] / roofline.line("verify", 8, 9)[widest]
    assert growth > 1
    expected = table.line("verify", 8, 9)[widest] * growth
    assert overlaid.line("verify", rows, tokens).at(width) == pytest.approx(expected)
    assert overlaid.line("verify", 1, 9)[512] == pytest.approx(table.line("verify", 1, 9)[512])
    overlaid.check_widths()
    assert overlaid.extrapolated


def test_passes_that_the_host_launches_grow_otherwise_beyond_the_points(scenario, calibration):
    """A pass that waits for the host takes no longer with more rows; what was measured stays as it is."""
    recorded, *_ = costs_of(scenario, calibration)
    launched, *_ = costs_of(scenario.but({"cost.graphs": False, "cost.eager_pass_s": 10.0}), calibration)
    assert launched.line("verify", 8, 9)[512] == recorded.line("verify", 8, 9)[512]
    assert launched.line("verify", 64, 9)[512] == pytest.approx(launched.line("verify", 8, 9)[512])
    assert recorded.line("verify", 64, 9)[512] > launched.line("verify", 64, 9)[512]


@pytest.mark.parametrize(("rows", "width"), [(8, 300), (5, 512)])
def test_a_corner_that_was_not_measured_lies_outside(scenario, calibration, rows, width):
    write_calibration(
        calibration, META, [p for p in synthetic_points() if p[0] != "verify" or (p[2], p[4]) != (8, 512)]
    )
    overlaid, table, roofline = costs_of(scenario, calibration)
    growth = roofline.line("verify", rows, 9)[width] / roofline.line("verify", rows, 9)[8]
    assert overlaid.line("verify", rows, 9).at(width) == pytest.approx(table.line("verify", rows, 9)[8] * growth)
    overlaid.check_widths()
    assert overlaid.extrapolated


def test_prompts_look_back_though_they_were_measured_alone(scenario, calibration):
    overlaid, table, roofline = costs_of(scenario, calibration)
    growth = roofline.point("prefill", 4, 63, 8192) / roofline.point("prefill", 4, 63)
    assert overlaid.point("prefill", 4, 63, 8192) == pytest.approx(table.point("prefill", 4, 63) * growth)


def test_a_study_runs_on_it_and_room_comes_from_the_facts(scenario, calibration):
    overlaid, _, roofline = costs_of(scenario, calibration)
    assert overlaid.kv_capacity_bytes == roofline.kv_capacity_bytes
    assert overlaid.kv_bytes_per_token == roofline.kv_bytes_per_token
    assert overlaid.seconds("host", 2, 3, np.zeros(1), False)[0] > 0  # the roofline has none to grow
    results = simulate(scenario.but({"engine.batch_size": 16, "study.num_requests": 20}), 1)
    assert any("verify: batch_size 16 is outside 1 … 8" in what for what in results.extrapolated)
    assert "(synthetic) over roofline of NVIDIA H100" in results.origin
    assert {"calibration", "calibration meta", "device", "target"} <= set(input_files(scenario))


def test_a_device_of_ones_own_is_known_by_its_name_or_by_what_is_reported(scenario, calibration, tmp_path):
    """So is a processor, where its number format is one that a roofline has; that of the shipped one is none."""
    facts = [line for line in hardware_file("devices", "l40s").read_text().splitlines() if line[:4] != "name"]
    own = tmp_path / "own.yaml"
    processor = "AMD EPYC, 2 cores"
    for device, lines in (("Mine", ["name: Mine"]), (processor, ["name: x", f"reported_as: {processor}"])):
        write_calibration(calibration, META | {"device": device})
        own.write_text("\n".join([*lines, *facts]))
        assert "(synthetic) over" in Simulation(scenario.but({"cost.device": str(own)})).cost.origin
    write_calibration(calibration, META | {"device": processor, "dtype": "float32"})
    with pytest.raises(InputError, match=r"was measured in float32, cost\.dtype is bfloat16$"):
        Simulation(scenario.but({"cost.device": str(own)}))


@pytest.mark.parametrize("name", shipped("devices"))
def test_every_shipped_device_knows_what_it_is_reported_as(name):
    """Names that PyTorch has for them."""
    reported = {
        "NVIDIA A100-SXM4-80GB", "NVIDIA B200", "NVIDIA H100 80GB HBM3", "NVIDIA H20", "NVIDIA H200", "NVIDIA L40S",
        "AMD Instinct MI300X", "NVIDIA GeForce RTX 4090",
    }  # fmt: skip
    assert len(reported & set(load_device(name).names)) == 1


@pytest.fixture
def costs_with_chunks(scenario, calibration):
    """As `costs_of`, once chunks were measured, which cost more after many tokens; and the overlay of before."""
    points = [
        ("mixed", "any", *place, 5, *[0.02 + place[1] * (1e-4 + 1e-7 * place[2])] * 4)
        for place in product((1, 8), (0, 64), (0, 512))
    ]
    points += [("draft_chunk", *point[1:6], *[1e-5 * point[3]] * 4) for point in points]
    before = costs_of(scenario, calibration)[0]
    write_calibration(calibration, META, [*synthetic_points(), *points])
    return *costs_of(scenario, calibration)[:2], before


def test_chunks_beside_rows_are_measured_within_the_points_and_grow_beyond_them(costs_with_chunks):
    overlaid, table, _ = costs_with_chunks
    for cost in (overlaid, table):
        assert cost.beside(Fed(4, 4, 64), [Fed(1, 40, 100)]) == pytest.approx((4e-4, 40 * (1e-4 + 1e-5)))
    assert not overlaid.extrapolated
    far, near = overlaid.beside(Fed(8, 4, 64), [Fed(1, 4096, 9000)]), table.beside(Fed(8, 4, 64), [Fed(1, 64, 512)])
    assert all(farther > nearer for farther, nearer in zip(far, near, strict=True))
    assert overlaid.extrapolated


def test_tokens_before_a_chunk_alone_are_paid_once(costs_with_chunks):
    """As measured where chunks were; the roofline's growth of prompts, which knows of them too, is not added."""
    overlaid, table, before = costs_with_chunks
    chunk = [Fed(1, 40, 300)]
    assert overlaid.prefill_s(chunk) == pytest.approx(table.prefill_s(chunk), rel=1e-12)
    assert table.prefill_s(chunk) - table.prefill_s([Fed(1, 40, 0)]) == pytest.approx(40 * 300 * 1e-7)
    assert before.prefill_s(chunk) > before.prefill_s([Fed(1, 40, 0)])  # where none were, by the roofline alone


def test_what_the_points_are_off_says_nothing_about_the_roofline(scenario):
    """Both are drawn for each replication: their correlation over 400 of them is within five standard errors of 0."""
    noisy = scenario.but(noise=True)
    costs = [make_cost(noisy, Streams(0, replication)) for replication in range(400)]
    points = [cost.factors["prefill"] for cost in costs]
    constants = [cost.roofline.machine.factors["linear"] for cost in costs]
    assert np.std(points) > 0 < np.std(constants)
    assert abs(np.corrcoef(points, constants)[0, 1]) < 5 / 400**0.5
