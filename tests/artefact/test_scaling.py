"""Drafts of several sizes and trainings: judged as the engine would, trained once, and a law that errs as it says."""

import json

import numpy as np
import pytest
import torch
from scipy.special import expit, logit

import refimpl
from refimpl.core.errors import InputError
from refimpl.core.independent import probability_of, tokens_per_round
from refimpl.pairs.names import TINY
from refimpl.prompts import read_prompts
from simulator.settings.folders import find_data
from tools.train_tiny import draft as training
from tools.train_tiny import scaling
from tools.train_tiny.evaluation import load_float32
from tools.train_tiny.scaling import Continuation, K, Study, acceptance_length, continue_prompts, measure, row_rounds
from tools.train_tiny.scaling_fit import Trained, columns, fit_law, fit_line
from tools.train_tiny.settings import Config

PLANTED = {"intercept": -5.0, "per_tenfold_tokens": 0.5, "per_tenfold_parameters": 0.3}


def planted_drafts(noise=0.0, seed=0):
    """Sixteen drafts that follow a law, up to noise in the logit."""
    draw = np.random.default_rng(seed).normal
    logits = [
        (p, t, PLANTED["intercept"] + PLANTED["per_tenfold_tokens"] * np.log10(t)
         + PLANTED["per_tenfold_parameters"] * np.log10(p) + draw(0, noise))
        for p in (10**5, 10**6, 10**7, 10**8) for t in (10**4, 10**5, 10**6, 10**7)
    ]  # fmt: skip
    return [Trained(p, t, tokens_per_round(float(expit(logit)), K)) for p, t, logit in logits]


def test_a_law_that_drafts_follow_is_found_again():
    found = fit_law(planted_drafts(), K)
    assert {name: found["law"][name] for name in PLANTED} == pytest.approx(PLANTED)
    assert found["left_out_tokens"] == pytest.approx(0, abs=1e-9)
    assert found["straight"]["left_out_tokens"] > 0.1  # so many tokens are not linear in the logarithms
    assert found["law"]["most_training_tokens"] == 10**7
    assert found["law"]["least_parameters"] == 10**5


def test_intervals_cover_the_law_as_often_as_they_say():
    """Misses of 300 fits; the bounds are those of 5 % with a false alarm rate of 1e-6."""
    missed = 0
    for seed in range(300):
        drafts = planted_drafts(0.1, seed)
        y = logit([probability_of(draft.mean_acceptance_length, K) for draft in drafts])
        _, low, high = fit_line(columns(drafts), y).intervals()[1]
        missed += not low <= PLANTED["per_tenfold_tokens"] <= high
    assert 1 <= missed <= 37


def test_a_value_left_out_does_not_know_itself():
    x = np.column_stack([np.ones(6), np.arange(6.0)])
    y = np.array([0.0, 1, 2, 3, 4, 50])
    assert fit_line(x, y).left_out[-1] == pytest.approx(5)  # the other five are on a line


def test_a_draft_that_is_never_right_has_no_logit():
    drafts = [*planted_drafts()[1:], Trained(100_000, 10_000, 1.0)]
    with pytest.raises(InputError, match="100000 parameters and 10000 training tokens is never right: train it longer"):
        fit_law(drafts, K)


def test_the_committed_law_is_that_of_its_drafts():
    data = json.loads(find_data("scaling/tiny.json").read_text())
    drafts = [Trained(**draft) for draft in data["drafts"]]
    found = fit_law(drafts, data["num_speculative_tokens"])
    for name in ("law", "intervals", "straight"):
        for key, value in found[name].items():
            assert data[name][key] == pytest.approx(value, rel=1e-6)
    assert data["left_out_tokens"] == pytest.approx(found["left_out_tokens"], rel=1e-6)
    tokens = [config.draft_text_steps * config.draft_batch * training.TEXT_LEN for config in Study().configs()]
    assert [draft.training_tokens for draft in drafts] == tokens


@pytest.mark.parametrize(
    ("right", "rounds"),
    [([1] * 8, [5, 1]), ([0] * 3, [0, 0, 0]), ([1, 1, 0, 0, 1], [2, 0, 0]), ([1], [0]), ([1, 1], [1])],
)
def test_rounds_of_a_row(right, rounds):
    """The last token of a round is the target's own, whether the draft was right about it or not."""
    assert list(row_rounds(right)) == rounds


def test_a_draft_is_judged_as_the_engine_runs_it(tiny, monkeypatch):
    monkeypatch.setattr(scaling, "NEW_TOKENS", 16)
    texts = continue_prompts(tiny, limit=4)
    prompts = read_prompts(TINY / "prompts.jsonl", limit=4)
    settings = {"num_speculative_tokens": K, "max_new_tokens": 16, "batch_size": 4, "checks": "off"}
    result = refimpl.generate(tiny, prompts, method="inplace", **settings)
    assert all(s.stop_reason == "length" for s in result.sequences)  # else the engine drafts beyond the stop
    assert acceptance_length(load_float32(TINY / "draft"), texts) == result.stats.acceptance.mean_acceptance_length


def test_drafts_are_trained_once(tmp_path, monkeypatch):
    study = Study(Config(draft_batch=1, warmup_steps=1, draft_text_lr_end=0.0), (32, 64), (1, 3))
    texts = [Continuation(torch.arange(5, 45), 8)]
    stream = torch.arange(4000) % 2048
    first = measure(study, stream, texts, tmp_path)
    assert [(d.parameters, d.training_tokens) for d in first] == [
        (parameters, tokens) for tokens in (256, 768) for parameters in (78496, 166144)
    ]
    monkeypatch.setattr(training, "text_loss", None)  # nothing is trained again
    assert measure(study, stream, texts, tmp_path) == first
    changed = Study(Config(draft_batch=1, warmup_steps=2, draft_text_lr_end=0.0), (32,), (1,))
    with pytest.raises(TypeError):
        measure(changed, stream, texts, tmp_path)


def test_the_rate_falls_to_what_is_asked():
    config = Config(draft_text_steps=100, warmup_steps=10, draft_text_lr_end=0.0)
    scales = [training.text_lr_scale(config, step) for step in range(100)]
    assert max(scales) == pytest.approx(0.91)
    assert scales[99] == pytest.approx(0.01)
    assert {training.text_lr_scale(Config(), step) for step in range(50, 600)} == {1.0}
