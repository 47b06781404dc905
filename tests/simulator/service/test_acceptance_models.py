"""Acceptance models: their mean, their spread, and numbers that do not depend on what was asked before."""

import numpy as np
import pytest

from simulator.service.acceptance import make_acceptance
from simulator.service.simulation import simulate_once
from simulator.service.streams import TILE_POSITIONS, Purpose, Streams
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Workload

STREAMS = Streams(7, 0)
KINDS = [
    Spec.of("iid", probability=0.7),
    Spec.of("profile", probabilities=[0.7]),
    Spec.of("markov", probability=0.7, correlation=0.0),
    Spec.of("beta", a=7e4, b=3e4),
]


def runs_of(model, index, positions):
    """Run from each of a request's first positions."""
    tiles = [model.tile(index, number) for number in range(-(-positions // TILE_POSITIONS))]
    return [run for tile in tiles for run in tile][:positions]


def test_models_degenerate_to_independence():
    draws = [make_acceptance(spec, STREAMS, 5) for spec in KINDS]
    runs = [[runs_of(model, i, 50) for i in range(40)] for model in draws]
    assert runs[0] == runs[1] == runs[2]
    assert np.mean(np.array(runs[0]) == np.array(runs[3])) > 0.98


SPREAD = [  # of the same mean, and how much more requests differ than independent drafts would make them
    (KINDS[0], 0.9, 1.1),
    (Spec.of("markov", probability=0.7, correlation=0.4), 1.3, 1.7),
    (Spec.of("beta", a=7.0, b=3.0), 2.0, np.inf),
]


@pytest.mark.parametrize(("spec", "least", "most"), SPREAD, ids=lambda value: getattr(value, "kind", ""))
def test_models_keep_their_mean_and_spread(spec, least, most):
    model = make_acceptance(spec, STREAMS, 1)
    runs = np.array([runs_of(model, i, 100) for i in range(2000)])
    assert runs.mean() == pytest.approx(0.7, abs=0.03)
    assert least < runs.sum(axis=1).std() / (100 * 0.7 * 0.3) ** 0.5 < most


@pytest.mark.parametrize(
    ("tokens", "drafts", "k", "probability"),
    [(1.0, None, 5, 0.0), (6.0, None, 5, 1.0), (2.3056, 4, 5, 0.6), (3, None, 0, 0), (3, 5, 0, 0)],
)
def test_a_mean_length_stands_for_a_probability(tokens, drafts, k, probability):
    """It may be compared with no drafts."""
    model = make_acceptance(Spec.of("mean_length", tokens=tokens, drafts=drafts), STREAMS, k)
    assert model.probability == pytest.approx(probability, abs=1e-9)


def test_runs_count_consecutive_right_proposals():
    model = make_acceptance(Spec.of("iid", probability=0.6), STREAMS, 4)
    bits = np.concatenate([STREAMS.tile(Purpose.ACCEPT, 0, number)[3] for number in range(2)]) < 0.6
    for at, run in enumerate(runs_of(model, 3, 80)):
        expected = next((n for n in range(4) if not bits[at + n]), 4)
        assert run == expected


@pytest.mark.parametrize("kind", [*KINDS, Spec.of("markov", probability=0.7, correlation=0.5)])
def test_a_tile_is_the_same_whatever_was_asked_before(kind):
    asked_in_order, asked_at_once = (make_acceptance(kind, STREAMS, 5) for _ in range(2))
    runs = runs_of(asked_in_order, 300, 64 * 5)
    assert list(asked_at_once.tile(300, 4)) == runs[256:]


def test_a_large_budget_that_is_not_used_is_not_drawn_and_what_is_finished_is_let_go():
    scenario = Scenario(
        study=Study(num_requests=1),
        engine=Engine(max_new_tokens=2**18),
        workload=Workload(output_tokens=Spec.of("fixed", tokens=70)),
    )
    simulation = simulate_once(scenario)
    assert simulation.acceptance._runs.cache_info().currsize <= 2
    assert [request.runs for request in simulation.log.requests] == [b""]
