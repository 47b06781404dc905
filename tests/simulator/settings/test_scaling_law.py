"""Acceptance from a draft's size and training: what the law says, and where it is bounded."""

import json

import numpy as np
import pytest

from refimpl.core.independent import tokens_per_round
from simulator.service.acceptance import make_acceptance
from simulator.service.streams import Streams
from simulator.settings.fields import Spec
from simulator.settings.folders import DATA, find_data
from simulator.settings.inputs import input_files
from simulator.settings.scaling import ScalingLaw, read_scaling_law
from simulator.settings.scenario import Scenario

SHIPPED = json.loads((DATA / "scaling" / "tiny.json").read_text())
LAW = ScalingLaw(-6.0, 0.8, 0.5, 1e3, 1e15, 1e3, 1e9)


@pytest.mark.parametrize("draft", SHIPPED["drafts"], ids=lambda d: f"{d['parameters']}-{d['training_tokens']}")
def test_the_shipped_law_gives_back_its_drafts(draft):
    law, k = read_scaling_law("scaling/tiny.json"), SHIPPED["num_speculative_tokens"]
    length = tokens_per_round(law.probability(draft["training_tokens"], draft["parameters"]), k)
    assert abs(length - draft["mean_acceptance_length"]) < 3 * SHIPPED["left_out_tokens"]


def test_the_law_of_a_scenario_is_the_one_that_it_names_and_among_its_files():
    draft = {"kind": "scaling", "training_tokens": 1e5, "parameters": 2e5}
    acceptance = make_acceptance(Spec.of(**draft), Streams(0, 0), 5)
    assert acceptance.probability == read_scaling_law("scaling/tiny.json").probability(1e5, 2e5)
    assert input_files(Scenario(acceptance=draft))["acceptance"] == find_data("scaling/tiny.json")


def test_a_law_is_linear_in_logarithms_and_its_logistic():
    assert LAW.probability(1e6, 1e6) == pytest.approx(1 / (1 + np.exp(6.0 - 0.8 * 6 - 0.5 * 6)))
    assert LAW.probability(1e3, 1e3) == pytest.approx(1 / (1 + np.exp(2.1)))


@pytest.mark.parametrize("intercept", [-1000.0, 1000.0])
def test_probabilities_are_bounded_however_steep_the_law(intercept):
    steep = ScalingLaw(intercept, 0.8, 0.5, 1e3, 1e15, 1e3, 1e9)
    assert steep.probability(1e6, 1e6) == pytest.approx(float(intercept > 0), abs=1e-9)


def test_more_training_is_better_and_gains_less_near_the_bound():
    gains = np.diff([tokens_per_round(LAW.probability(10.0**n, 1e6), 5) for n in range(3, 16)])
    assert (gains > 0).all()
    assert tokens_per_round(LAW.probability(1e15, 1e6), 5) < 6
    steepest = int(np.argmax(gains))
    assert 0 < steepest < len(gains) - 1
    assert (np.diff(gains[steepest:]) < 0).all()
