"""The processed distribution: transformers' warpers, the oracle's own processing, ties and extreme settings."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from refimpl.core.config import SamplingConfig
from refimpl.decoding.sampling import RowSampling, probabilities
from refimpl.oracle.autoregressive import shape_distribution

SETTINGS = [
    SamplingConfig(temperature=t, top_k=k, top_p=p, min_p=m)
    for t, k, p, m in itertools.product((0.7, 1.0), (0, 1, 20), (0.3, 0.95, 1.0), (0.0, 0.05))
]


def warped(logits: torch.Tensor, config: SamplingConfig) -> torch.Tensor:
    """What generate() of transformers would sample from."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(config.temperature)])
    if config.top_k:
        warpers.append(TopKLogitsWarper(config.top_k))
    if config.top_p < 1:
        warpers.append(TopPLogitsWarper(config.top_p))
    if config.min_p:
        warpers.append(MinPLogitsWarper(config.min_p))
    return warpers(None, logits.double()).softmax(dim=-1)


@pytest.mark.parametrize("config", SETTINGS, ids=str)
def test_equals_the_warpers_of_transformers(config):
    logits = 3 * torch.randn(20, 97, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(probabilities(logits, config), warped(logits, config), rtol=0, atol=1e-14)


def test_ties_at_top_k_all_stay_as_in_transformers():
    logits, config = torch.tensor([[1.0, 2.0, 1.0, 0.0, 1.0]]), SamplingConfig(temperature=1.0, top_k=2)
    assert (probabilities(logits, config) > 0).tolist() == [[True, True, True, False, True]]
    torch.testing.assert_close(probabilities(logits, config), warped(logits, config))


def test_ties_at_top_p_keep_as_many_as_transformers_the_lowest_ids():
    logits, config = torch.zeros(1, 8), SamplingConfig(temperature=1.0, top_p=0.5)
    assert (probabilities(logits, config) > 0)[0].tolist() == [True] * 4 + [False] * 4
    assert (warped(logits, config) > 0).sum() == 4


def test_a_row_without_top_p_loses_nothing_beside_one_that_has_it():
    logits = torch.tensor([[[0.0, -30.0]], [[0.0, -30.0]]])
    rows = RowSampling.of([SamplingConfig(1.0), SamplingConfig(1.0, top_p=0.5)], logits.device)
    assert (probabilities(logits, rows) > 0).tolist() == [[[True, True]], [[True, False]]]


logit_lists = st.lists(st.integers(-6, 6).map(lambda n: n / 2), min_size=1, max_size=12)  # many ties
configs = st.builds(
    SamplingConfig,
    temperature=st.sampled_from([1e-300, 1e-3, 0.7, 1.0, 2.0, 1e9]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([1e-9, 0.31, 0.77, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
)


@given(logit_lists, configs)
def test_equals_the_oracle_for_any_setting_ties_included(values, config):
    logits = torch.tensor(values)
    mass = probabilities(logits[None], config)[0]
    torch.testing.assert_close(mass, shape_distribution(logits, config), rtol=1e-12, atol=0)
    assert float(mass.sum()) == pytest.approx(1)
    assert mass[logits.argmax()] > 0


@given(st.lists(st.tuples(logit_lists, configs | st.just(SamplingConfig())), min_size=1, max_size=5))
def test_a_row_of_a_mixed_batch_has_the_bits_that_it_has_alone(rows):
    size = max(len(values) for values, _ in rows)
    logits = torch.tensor([[values + [-9.0] * (size - len(values))] * 2 for values, _ in rows])
    found = probabilities(logits, RowSampling.of([config for _, config in rows], logits.device))
    for row, (_, config) in enumerate(rows):
        assert torch.equal(found[row], probabilities(logits[row : row + 1], config)[0])


def test_nan_spoils_its_own_row_alone_in_a_mixed_batch():
    configs = [SamplingConfig(), SamplingConfig(temperature=2.0, top_k=1), SamplingConfig(temperature=1.0, top_p=0.5)]
    logits = torch.tensor([[[0.0, torch.nan, 1.0]], [[0.0, 2.0, 1.0]], [[0.0, torch.inf, 1.0]]])
    mass = probabilities(logits, RowSampling.of(configs, logits.device))
    assert [bool(row.isnan().all()) for row in mass] == [True, False, True]
    assert mass[1].tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("top_p", [0.1, 0.2, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("top_k", [0, 5])
def test_sums_that_reach_top_p_exactly_end_alike_in_engine_and_oracle(top_p, top_k):
    """Equal masses add up to top_p, but for rounding, which differs between a cumulative sum and a loop."""
    config = SamplingConfig(temperature=1.0, top_p=top_p, top_k=top_k)
    for size in range(5, 61, 5):
        logits = torch.zeros(size, dtype=torch.float64)
        kept = probabilities(logits[None], config)[0] > 0
        assert torch.equal(kept, shape_distribution(logits, config) > 0)
        if not top_k:
            assert kept.sum() == math.ceil(round(top_p * size, 6))


def test_the_smallest_temperature_overflows_nowhere():
    mass = probabilities(torch.tensor([30.0, 29.0]), SamplingConfig(temperature=1e-307))
    assert mass.tolist() == [1, 0]


def test_top_p_of_one_keeps_even_what_rounding_has_lost():
    """The more probable token has mass 1 after rounding, but it is not all."""
    mass = probabilities(torch.tensor([0.0, -50.0]), SamplingConfig(temperature=1.0, top_p=1.0))
    assert mass[0] == 1
    assert mass[1] == pytest.approx(math.exp(-50), abs=0)


def test_temperature_zero_takes_the_most_probable_token():
    mass = probabilities(torch.tensor([[0.0, 5.0, 5.0]]), SamplingConfig())
    assert mass.tolist() == [[0, 1, 0]]


def test_half_precision_logits_are_processed_in_double():
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    config = SamplingConfig(temperature=0.7, top_p=0.9)
    assert torch.equal(probabilities(logits, config), probabilities(logits.double(), config))


def test_impossible_tokens_stay_impossible_and_nan_stays_nan():
    config = SamplingConfig(temperature=1.0, top_p=0.99)
    mass = probabilities(torch.tensor([[0.0, -torch.inf, 1.0], [0.0, torch.nan, 1.0]]), config)
    assert mass[0, 1] == 0
    assert mass[0].sum() == pytest.approx(1)
    assert mass[1].isnan().all()


def test_nan_spoils_its_own_row_alone_at_temperature_zero():
    mass = probabilities(torch.tensor([[0.0, torch.nan, 1.0], [0.0, 2.0, 1.0]]), SamplingConfig(temperature=0.0))
    assert mass[0].isnan().all()
    assert mass[1].tolist() == [0, 1, 0]
