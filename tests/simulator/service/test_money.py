"""What tokens cost in money and energy, recomputed from the rounds; blank where nobody says."""

import math

import pytest

from simulator.cli import main
from simulator.runner import simulate
from simulator.settings.hardware import hardware_file, load_device, shipped
from simulator.settings.scenario import Scenario
from simulator.studies.comparison import compare

PAIR = {"kind": "roofline", "device": "h100", "target": "qwen3-8b", "draft": "qwen3-0.6b"}
BASE = Scenario(
    study={"num_requests": 12}, engine={"batch_size": 4}, cost=PAIR, service={"cost_per_hour": 2.5}, noise=False
)
PLAIN = BASE.but({"cost": {"kind": "linear", "verify_base_s": 0.01}, "service.cost_per_hour": None})


@pytest.mark.parametrize(
    ("changes", "devices"),
    [
        ({}, 1), ({"service.replicas": 3}, 3), ({"cost.tensor_parallel": 4}, 4),
        ({"engine.execution": "overlapped", "engine.scheduler": "fifo", "engine.layout": "inplace"}, 2),
        ({"engine.execution": "overlapped", "engine.contention": 1.0}, 1),
    ],
)  # fmt: skip
def test_all_devices_are_paid_and_draw_power_all_the_time(changes, devices):
    found = simulate(BASE.but(changes), 1)
    tokens, seconds = found.frame("requests")["generated_tokens"].sum(), found["makespan_s"]
    assert found["cost_per_million_tokens"] == pytest.approx(devices * 2.5 * seconds / 3600 / tokens * 1e6)
    assert found["tokens_per_joule"] == pytest.approx(tokens / (devices * 700.0 * seconds))


def test_what_is_given_comes_before_the_file_of_the_device(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("cost_per_hour: 9.0\n" + hardware_file("devices", "h100").read_text())
    mine = BASE.but({"cost.device": str(own), "service.cost_per_hour": None})
    prices = (mine, mine.but({"service.cost_per_hour": 5.0}))
    nine, five = (simulate(each, 1)["cost_per_million_tokens"] for each in prices)
    assert nine / five == pytest.approx(9 / 5)
    watts = simulate(BASE.but({"service.watts": 350.0}), 1)["tokens_per_joule"]
    assert watts == pytest.approx(2 * simulate(BASE, 1)["tokens_per_joule"])
    assert all(load_device(name).watts and not load_device(name).cost_per_hour for name in shipped("devices"))


def test_it_is_blank_where_nobody_says_and_shown_where_somebody_does(capsys):
    silent = simulate(PLAIN, 1)
    assert all(math.isnan(silent[name]) for name in ("cost_per_million_tokens", "tokens_per_joule"))
    assert main(["run", "-n", "2"]) == 0
    assert "per_million" not in capsys.readouterr().out
    assert main(["run", "-n", "2", "-s", "service.cost_per_hour=2"]) == 0
    printed = capsys.readouterr().out
    assert "cost_per_million_tokens" in printed
    assert "tokens_per_joule" not in printed


def test_cheaper_is_better():
    table = compare(BASE, BASE.but({"service.cost_per_hour": 1.0, "service.watts": 300.0}), 3).table["verdict"]
    assert table["cost_per_million_tokens"] == "b lower, better"
    assert table["tokens_per_joule"] == "b higher, better"
