"""The oracle against transformers' own greedy generation, with a neutral generation config."""

from itertools import count

import pytest
import torch
from transformers import GenerationConfig

from refimpl import generate, verify
from refimpl.core.sequence import Sequence
from refimpl.pairs.random_pairs import TINY_ARCHITECTURES, random_pair

NEUTRAL = GenerationConfig(do_sample=False, use_cache=True, pad_token_id=0, eos_token_id=5, max_new_tokens=16)


@pytest.mark.parametrize("kind", TINY_ARCHITECTURES)
def test_same_as_generate_one_prompt_at_a_time(kind, ragged_prompts):
    pair = random_pair(kind)
    result = generate(pair, ragged_prompts, method="autoregressive", max_new_tokens=16, stop_token_ids=[5])
    for prompt, sequence in zip(ragged_prompts, result.sequences, strict=True):
        ids = torch.tensor([prompt])
        output = pair.target.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=NEUTRAL)
        assert sequence.token_ids == output[0, len(prompt) :].tolist()


def test_a_fresh_row_does_not_depend_on_how_its_prompt_is_fed(llama):
    whole, piecewise = llama.target.fresh_row(), llama.target.fresh_row()
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    for token in prompt:
        last = piecewise([token])
    torch.testing.assert_close(last, whole(prompt), rtol=0, atol=1e-9)


def test_the_oracle_has_a_stop_test_of_its_own(llama, ragged_prompts, monkeypatch):
    """An engine that overlooks stops must not find the oracle doing the same."""
    settings = {"max_new_tokens": 12, "stop_token_ids": list(range(2, 20))}
    expected = generate(llama, ragged_prompts, method="autoregressive", **settings)
    assert "stop" in {sequence.stop_reason for sequence in expected.sequences}
    monkeypatch.setattr(Sequence, "stops_at", lambda *_: False)
    again = generate(llama, ragged_prompts, method="autoregressive", **settings)
    assert [(s.token_ids, s.stop_reason) for s in again.sequences] == [
        (s.token_ids, s.stop_reason) for s in expected.sequences
    ]
    report = verify(llama, ragged_prompts, methods=["inplace"], batch_sizes=[2], checks="off", **settings)
    assert not report.exact


def test_a_long_prompt_costs_the_logits_of_one_token():
    llama, shapes = random_pair("llama"), []
    llama.target.model.lm_head.register_forward_hook(lambda module, _, output: shapes.append(tuple(output.shape)))
    generate(llama, [list(range(3, 40))], method="autoregressive", max_new_tokens=2, stop_token_ids=[])
    assert {shape[:2] for shape in shapes} == {(1, 1)}


def test_the_oracle_is_checked_by_nobody(llama):
    assert generate(llama, [[3]], method="autoregressive", max_new_tokens=2).environment["checks"] == "off"


def test_plain_decoding_counts_tokens_as_rounds(llama, ragged_prompts, monkeypatch):
    monkeypatch.setattr("time.perf_counter", count().__next__)
    stats = generate(llama, ragged_prompts, method="autoregressive", max_new_tokens=5, stop_token_ids=[]).stats
    assert stats.num_rounds == stats.num_generated == stats.acceptance.row_rounds == 5 * len(ragged_prompts)
    assert (stats.acceptance.mean_acceptance_length, stats.acceptance.histogram) == (1, (stats.num_generated,))
    assert stats.stage_s["verify"] == 5 * stats.stage_s["prefill"] > 0  # four tokens a row, and the end
