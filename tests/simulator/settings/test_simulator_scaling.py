"""Acceptance from a draft's size and training: what the law says, where it is bounded, and what is refused."""

import json
from math import inf

import numpy as np
import pytest

from refimpl.core.errors import InputError
from simulator.analytic import tokens_per_round
from simulator.runner import simulate
from simulator.service.acceptance import make_acceptance
from simulator.service.streams import Streams
from simulator.settings.fields import Spec
from simulator.settings.folders import DATA, find_data
from simulator.settings.inputs import input_files
from simulator.settings.scaling import read_scaling_law
from simulator.settings.scenario import Scenario

SHIPPED = json.loads((DATA / "scaling" / "tiny.json").read_text())
LAW = {
    "intercept": -6.0, "per_tenfold_tokens": 0.8, "per_tenfold_parameters": 0.5,
    "least_training_tokens": 1e3, "most_training_tokens": 1e15, "least_parameters": 1e3, "most_parameters": 1e9,
}  # fmt: skip


@pytest.fixture
def written(tmp_path):
    """Write a law, or whatever is given for one, and return the file."""

    def write(law):
        path = tmp_path / "law.json"
        path.write_text(json.dumps({"law": law, "notes": "whatever else the file says"}))
        return str(path)

    return write


def acceptance(path, tokens=1e6, parameters=1e6, k=5):
    spec = Spec.of("scaling", training_tokens=tokens, parameters=parameters, path=path)
    return make_acceptance(spec, Streams(0, 0), k)


@pytest.mark.parametrize("draft", SHIPPED["drafts"], ids=lambda d: f"{d['parameters']}-{d['training_tokens']}")
def test_the_shipped_law_gives_back_its_drafts(draft):
    law, k = read_scaling_law("scaling/tiny.json"), SHIPPED["num_speculative_tokens"]
    length = tokens_per_round(law.probability(draft["training_tokens"], draft["parameters"]), k)
    assert abs(length - draft["mean_acceptance_length"]) < 3 * SHIPPED["left_out_tokens"]


def test_a_law_is_linear_in_logarithms_and_its_logistic(written):
    assert acceptance(written(LAW)).probability == pytest.approx(1 / (1 + np.exp(6.0 - 0.8 * 6 - 0.5 * 6)))
    assert acceptance(written(LAW), tokens=1e3, parameters=1e3).probability == pytest.approx(1 / (1 + np.exp(2.1)))


@pytest.mark.parametrize(("intercept", "tokens_a_round"), [(-1000.0, 1), (1000.0, 4)])
def test_rounds_are_bounded_however_steep_the_law(written, intercept, tokens_a_round):
    path = written(LAW | {"intercept": intercept})
    scenario = Scenario(engine={"num_speculative_tokens": 3}, study={"num_requests": 4}).but(
        {"acceptance": {"kind": "scaling", "training_tokens": 1e6, "parameters": 1e6, "path": path}}
    )
    assert simulate(scenario, 1)["mean_acceptance_length"] == pytest.approx(tokens_a_round, abs=0.1)


def test_more_training_is_better_and_gains_less_near_the_bound(written):
    path = written(LAW)
    lengths = [tokens_per_round(acceptance(path, 10.0**n, 1e6).probability, 5) for n in range(3, 16)]
    gains = np.diff(lengths)
    assert (gains > 0).all()
    assert lengths[-1] < 6
    steepest = int(np.argmax(gains))
    assert 0 < steepest < len(gains) - 1
    assert (np.diff(gains[steepest:]) < 0).all()


@pytest.mark.parametrize(("tokens", "parameters"), [(999, 1e6), (1.1e15, 1e6), (1e6, 999), (1e6, 1.1e9)])
def test_drafts_outside_of_those_that_the_law_was_fitted_to_are_refused(written, tokens, parameters):
    name = "parameters" if tokens == 1e6 else "training_tokens"
    with pytest.raises(InputError, match=rf"^acceptance\.{name} \S+ is outside of the drafts: the law was fitted to "):
        acceptance(written(LAW), tokens, parameters)


@pytest.mark.parametrize(
    ("law", "message"),
    [
        (None, "law must be a mapping, not nothing"),
        ({}, r"law\.intercept is missing"),
        (LAW | {"intercept": inf}, r"law\.intercept must be finite"),
        (LAW | {"slope": 1}, "law: unknown key slope"),
        (LAW | {"least_parameters": 0}, r"law\.least_parameters must be a number > 0"),
    ],
)
def test_a_file_without_a_whole_law_is_refused(written, law, message):
    with pytest.raises(InputError, match=rf"law\.json: {message}"):
        acceptance(written(law))


def test_a_law_that_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"^nowhere\.json: no such scaling law$"):
        acceptance("nowhere.json")


def test_the_law_is_among_the_files_that_a_scenario_reads():
    scenario = Scenario(acceptance={"kind": "scaling", "training_tokens": 1e5, "parameters": 1e5})
    assert input_files(scenario)["acceptance"] == find_data("scaling/tiny.json")
