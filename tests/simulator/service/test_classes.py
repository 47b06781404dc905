"""Requests of several classes: lengths, acceptance and limits of their own, and metrics that add up to those of all."""

import pytest

from refimpl.core.errors import InputError
from simulator.runner import simulate
from simulator.service.metrics import CLASS_METRICS
from simulator.service.simulation import simulate_once
from simulator.settings.inputs import input_files
from simulator.settings.scenario import Scenario, from_data, to_mapping

SHORT = {"name": "short", "share": 3, "output_tokens": {"kind": "fixed", "tokens": 8}, "slo_per_token_s": 0.02}
LONG = {
    "name": "long", "prompt_tokens": {"kind": "uniform", "low_tokens": 200, "high_tokens": 300},
    "acceptance": {"kind": "iid", "probability": 1.0}, "slo_first_token_s": 0.1,
}  # fmt: skip
BASE = Scenario(
    study={"kind": "open", "num_requests": 400, "arrivals": {"kind": "poisson", "rate_per_s": 8.0}},
    engine={"batch_size": 4, "max_new_tokens": 40},
    acceptance={"kind": "beta", "a": 2.0, "b": 2.0},
    service={"slo_first_token_s": 0.5},
)
MIXED = BASE.but({"workload.classes": [SHORT, LONG]})


def test_classes_without_settings_of_their_own_change_nothing():
    """Whatever their shares: only metrics of the classes are added."""
    plain, parted = simulate(BASE, 2), simulate(BASE.but({"workload.classes": [{"name": "a"}, {"name": "b"}]}), 2)
    assert parted.metrics[plain.metrics.columns].equals(plain.metrics)
    assert set(parted.metrics) - set(plain.metrics) == {f"{m}.{name}" for name in "ab" for m in CLASS_METRICS}


def test_a_class_that_all_are_of_is_a_scenario_of_its_own():
    """Its lengths, acceptance and limits stand for those of all, on the same random numbers; so do its metrics."""
    alone = BASE.but({"workload.classes": [LONG]})
    of_all = {f"workload.{name}": LONG[name] for name in ("prompt_tokens",)} | {"acceptance": LONG["acceptance"]}
    same = simulate(BASE.but(of_all | {"service.slo_first_token_s": LONG["slo_first_token_s"]}), 2).metrics
    found = simulate(alone, 2).metrics
    assert found[same.columns].equals(same)
    for metric in CLASS_METRICS:
        assert found[f"{metric}.long"].to_numpy() == pytest.approx(same[metric].to_numpy(), nan_ok=True)


def test_each_request_has_the_lengths_the_acceptance_and_the_limits_of_its_class():
    found = simulate(MIXED, 1)
    requests = found.frame("requests")
    short, long = (requests[requests["class"] == name] for name in ("short", "long"))
    assert len(short) == pytest.approx(300, abs=50)
    assert (short["output_tokens"] == 8).all()
    assert (short["prompt_tokens"] == 64).all()
    assert long["prompt_tokens"].between(200, 300).all()
    assert found["draft_acceptance_rate.long"] > 0.99 > 0.7 > found["draft_acceptance_rate.short"]
    first_s = requests["first_token_s"] - requests["arrival_s"]
    further_s = (requests["finished_s"] - requests["first_token_s"]) / (requests["generated_tokens"] - 1)
    good = {"short": (first_s <= 0.5) & (further_s <= 0.02), "long": first_s <= 0.1}
    for name, each in good.items():
        own = requests["class"] == name
        assert 0 < each[own].mean() < 1
        assert found[f"slo_attainment.{name}"] == pytest.approx(each[own].mean())
    total = sum(found[f"goodput_per_s.{name}"] for name in good)
    assert found["goodput_per_s"] == pytest.approx(total)


def test_budgets_know_the_rates_of_the_classes():
    """A draft budget that reads probabilities meets right and wrong drafts as often as each class has them."""
    knowing = MIXED.but({"engine.draft_budget": "confidence", "confidence": {"kind": "drawn", "information": 1.0}})
    found = simulate(knowing, 1)
    assert found["draft_acceptance_rate.long"] == 1
    assert found["draft_acceptance_rate.short"] > 0.9


def test_a_scenario_with_classes_is_written_and_read_back():
    assert from_data(to_mapping(MIXED)) == MIXED
    assert MIXED.content_hash != BASE.content_hash
    traced = MIXED.but({"workload.classes": [LONG | {"acceptance": {"kind": "replay", "path": "own.ndjson"}}]})
    assert str(input_files(traced)["classes[0].acceptance"]) == "own.ndjson"
    assert simulate_once(MIXED).log.request_frame().columns.tolist().count("class") == 0


def test_a_path_finds_a_class_by_its_name():
    changed = MIXED.but({"workload.classes.long.priority": -1, "workload.classes.short.output_tokens.tokens": 9})
    first, second = changed.workload.classes
    assert (first.name, first.priority, first.output_tokens["tokens"]) == ("short", 0, 9)
    assert (second.name, second.priority) == ("long", -1)
    with pytest.raises(InputError, match=r"'lang' is unknown \(did you mean long"):
        MIXED.but({"workload.classes.lang.share": 2})
    with pytest.raises(InputError, match="no such setting"):
        MIXED.but({"workload.classes": "chat", "workload.classes.chat.share": 2})


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([SHORT, SHORT], "workload.classes: a name stands twice: short, short"),
        ([SHORT | {"share": 0}], r"workload.classes\[0\].share must be a number > 0"),
        ([SHORT | {"priority": 0.5}], r"workload.classes\[0\].priority must be an integer in"),
        ([{"name": "a.b"}], r"workload.classes\[0\].name must be a word"),
        ([{"share": 1}], r"workload.classes\[0\].name is missing"),
        ("chat", "workload.classes must be a list of mappings, not 'chat'"),
        ([{"name": "a", "acceptance": {"kind": "iid"}}], r"workload.classes\[0\].acceptance.probability is missing"),
        ([SHORT | {"output_tokens": {"kind": "uniform", "low_tokens": 9, "high_tokens": 1}}],
         r"classes\[0\].output_tokens.low_tokens 9 is larger than high_tokens 1"),
    ],
)  # fmt: skip
def test_bad_classes_are_one_line(classes, message):
    with pytest.raises(InputError, match=message):
        BASE.but({"workload.classes": classes})


def test_lengths_of_a_service_trace_are_those_of_all(tmp_path):
    (tmp_path / "t.csv").write_text("time_s,prompt_tokens,output_tokens\n0,5,9\n1,5,9\n")
    logged = {"kind": "open", "arrivals": {"kind": "trace", "path": str(tmp_path / "t.csv")}}
    with pytest.raises(InputError, match="a service trace brings the lengths"):
        MIXED.but(study=logged)
