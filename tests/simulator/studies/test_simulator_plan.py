"""The cheapest fleet: what is found is what trying every fleet finds, and what is left out is told."""

import html
import json
from itertools import product
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.core.errors import InputError
from simulator.cli import main
from simulator.runner import simulate
from simulator.settings.scenario import Scenario
from simulator.studies.capacity import FAR_BEHIND, fewest, find_capacity, share_behind
from simulator.studies.plan import find_plan

PRICES = {"h100": 2.5, "l40s": 0.9}
AXES = {"method": ("paged+fifo",), "batch_size": (4, 16), "num_speculative_tokens": (0, 3)}
SERVICE = Scenario(
    study={"kind": "open", "num_requests": 150, "arrivals": {"kind": "poisson", "rate_per_s": 30.0}},
    workload={
        "prompt_tokens": {"kind": "uniform", "low_tokens": 50, "high_tokens": 400},
        "output_tokens": {"kind": "geometric", "mean_tokens": 60},
        "classes": [{"name": "hasty", "slo_per_token_s": 0.015}, {"name": "patient", "share": 2}],
    },
    acceptance={"kind": "beta", "a": 5.8, "b": 2.5},
    cost={"kind": "roofline", "device": "h100", "target": "qwen3-8b", "draft": "qwen3-0.6b"},
    service={"slo_first_token_s": 0.5, "slo_per_token_s": 0.05},
)
KEPT = 0.9


def in_time(changes, replicas):
    """Least share of a class that so many replicas serve in time; 0 where they do not keep up."""
    found = simulate(SERVICE.but({**changes, "study.arrivals.rate_per_s": 30.0 / replicas}), 2)
    kept = min(found[f"slo_attainment.{name}"] for name in ("hasty", "patient"))
    return kept if share_behind(found.frame("requests")) <= FAR_BEHIND else 0.0


def settings_of(device, method, rows, drafts):
    draft = {} if drafts else {"cost.draft": ""}
    engine = {"engine.method": method, "engine.batch_size": rows, "engine.num_speculative_tokens": drafts}
    return {"cost.device": device, **draft, **engine}


@pytest.fixture(scope="module")
def plan():
    return find_plan(SERVICE, PRICES, KEPT, axes=AXES, tries=99, replications=2)


def test_the_plan_is_what_trying_every_fleet_finds(plan):
    """No fleet that costs less keeps the promise, whatever the coarse model says of it; those found do."""
    lines = [fleet.as_mapping() for fleet in plan.fleets]
    assert [line["price_per_hour"] for line in lines] == sorted(line["price_per_hour"] for line in lines)
    for device, *values in product(PRICES, *AXES.values()):
        fewer = range(1, ceil(lines[0]["price_per_hour"] / PRICES[device]))
        assert not [n for n in fewer if in_time(settings_of(device, *values), n) >= KEPT]
    for line in lines:
        assert in_time(settings_of(*(line[name] for name in ("device", *AXES))), line["replicas"]) >= KEPT


def test_one_replica_less_may_serve_in_time_and_still_fall_behind():
    lax = {"workload.classes": [], "service.slo_first_token_s": 60.0, "service.slo_per_token_s": None}
    axes = {"batch_size": (4,), "num_speculative_tokens": (0,)}
    found = find_plan(SERVICE.but(lax), {"l40s": 0.9}, 0.5, axes=axes, replications=2)
    fleet = found.fleets[0]
    rate = {"cost.device": "l40s", "cost.draft": "", "study.arrivals.rate_per_s": 30.0 / (fleet.replicas - 1)}
    fewer = simulate(SERVICE.but({**lax, **rate, "engine.batch_size": 4, "engine.num_speculative_tokens": 0}), 2)
    assert share_behind(fewer.frame("requests")) > FAR_BEHIND
    assert next(found.reasons()) == "one replica less would serve 100.0 % in time, while its queue grows"


def test_a_line_says_what_its_fleet_costs_and_keeps(plan):
    line = plan.fleets[0].as_mapping()
    changes = settings_of(*(line[name] for name in ("device", *AXES)))
    assert line["kept"] == in_time(changes, line["replicas"]) >= KEPT > line["with_one_less"]
    priced = {"service.cost_per_hour": PRICES[line["device"]], "study.arrivals.rate_per_s": 30.0 / line["replicas"]}
    alone = simulate(SERVICE.but({**changes, **priced}), 2, keep_frames=False)
    cost = line["cost_per_million_tokens"]
    assert cost["mean"] == pytest.approx(alone["cost_per_million_tokens"])
    assert cost["low"] < cost["mean"] < cost["high"]


def test_the_coarse_model_leaves_out_what_would_not_win(plan):
    """Of few tries the plan costs as much, and the sentence about the others holds."""
    few = find_plan(SERVICE, PRICES, KEPT, axes=AXES, tries=3, replications=2)
    assert len(few.fleets) == 3
    assert few.fleets[0].price_per_hour == plan.fleets[0].price_per_hour
    assert len(few.left_out) + len(few.fleets) + sum(few.impossible.values()) == 8
    assert min(c.estimate_per_hour for c in few.left_out) == few.left_out[0].estimate_per_hour
    assert f"not simulated: {len(few.left_out)}, which cost at least" in " ".join(few.reasons())


LOOKED_UP = {"engine.drafter": "ngram", "cost.draft": "", "lookup.found": 0.4, "lookup.probability": 0.6}


@pytest.mark.parametrize(("rows", "drafts", "changes"), [(8, 0, {}), (16, 3, {}), (16, 4, LOOKED_UP)])
def test_the_coarse_model_is_near_what_is_simulated(rows, drafts, changes):
    """Which orders the choices, and from which the search for the fewest replicas starts."""
    axes = {"method": ("paged+fifo",), "batch_size": (rows,), "num_speculative_tokens": (drafts,)}
    choice = find_plan(SERVICE.but(changes), {"h100": 1.0}, KEPT, axes=axes, replications=1).fleets[0].choice
    searched = find_capacity(choice.scenario.but({"study.num_requests": 400}), KEPT, tolerance=0.1, replications=1)
    assert choice.rate_per_s == pytest.approx(searched.rate_per_s, rel=0.25)


@given(st.integers(1, 200), st.integers(1, 300), st.integers(1, 256))
def test_the_fewest_are_found_from_any_guess(needed, guess, most):
    tried = []
    found = fewest(lambda n: tried.append(n) or n >= needed, guess, most)
    assert found == (needed if needed <= most else None)
    assert len(tried) == len(set(tried)) <= 20
    assert found is None or found == 1 or found - 1 in tried


def test_the_command_prints_and_writes_the_fleets_and_why(capsys, tmp_path):
    SERVICE.but(name="chat & code").save(tmp_path / "a.yaml")
    page = tmp_path / "plan.html"
    options = "-a method=paged+fifo -a batch_size=16 -a num_speculative_tokens=0,3 -n 2 -s cost.target=qwen3-14b"
    options += f" --attainment 0.8 --device h100=2.5 --device rtx-4090=0.4 --json --html {page}"
    assert main(["plan", str(tmp_path / "a.yaml"), *options.split()]) == 0
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert data["fleets"][0]["cost_per_million_tokens"]["mean"] > 0
    assert all(reason in printed.err for reason in data["reasons"])
    assert "the runner-up costs" in " ".join(data["reasons"])
    assert "GB of weights do not fit" in " ".join(data["reasons"])
    assert "not looked at: pools for prompts alone" in data["reasons"][-1]
    text = html.unescape(page.read_text(encoding="utf-8"))
    cheapest, *_ = data["fleets"]
    assert f"<h1>{cheapest['replicas']} × h100 for {cheapest['price_per_hour']:.2f} per hour</h1>" in text
    assert text.count("<td>h100</td>") == len(data["fleets"])
    assert all(f"<li>{reason}</li>" in text for reason in data["reasons"])
    assert SERVICE.but({"cost.target": "qwen3-14b"}, name="chat & code").to_yaml() in text
    assert "chat &amp; code" in page.read_text(encoding="utf-8")


def test_pages_of_rates_are_refused(capsys, tmp_path):
    assert main(["plan", "--html", str(tmp_path / "plan.html")]) == 2
    assert "--axis and --html belong to fleets" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prices", "changes", "message"),
    [
        ({"h100": None}, {}, "no price of h100: give DEVICE=PRICE, or cost_per_hour in its file"),
        ({"h100": -1.0}, {}, "price of h100 must be a number > 0"),
        ({"h100": 1.0}, {"cost": {"kind": "linear", "verify_base_s": 0.01}}, "plan needs costs of kind roofline"),
        ({"h100": 1.0}, {"service.slo_first_token_s": 1e-4}, "no choice can serve: whose limits no batch keeps"),
        ({"h100": 1.0}, {"study": {"num_requests": 9}}, "needs a study of kind open"),
        (
            {"h100": 1.0},
            {"service.failures": {"kind": "random", "mean_between_s": 9.0}},
            "that do everything, and are al",
        ),
    ],
)
def test_plans_that_cannot_be_made_are_refused(prices, changes, message):
    with pytest.raises(InputError, match=message):
        find_plan(SERVICE.but(changes), prices, KEPT, axes=AXES, replications=1)
