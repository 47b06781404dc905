"""Recorded rounds, unrecorded where there is no CUDA: the very tokens of ordinary rounds, and the oracle's."""

from collections import Counter, defaultdict
from dataclasses import is_dataclass
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refimpl import InputError, Request, generate, stream
from refimpl.decoding.graphs import Recording, stream_of
from refimpl.decoding.recorded import RecordedPasses, _Ahead, context_width
from refimpl.pairs.random_pairs import random_pair

SETTINGS = {"max_new_tokens": 14, "num_speculative_tokens": 4, "stop_token_ids": [5], "checks": "host"}


class Replayed(Recording):
    """Every call gives the same tensors and overwrites them, as the replay of a graph does."""

    def __call__(self):
        found = super().__call__()
        self._kept = getattr(self, "_kept", found)
        for kept, new in zip(tensors_in(self._kept), tensors_in(found), strict=True):
            kept.copy_(new)
        return self._kept


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    parts = [getattr(value, name) for name in value.__slots__] if is_dataclass(value) else value
    return [tensor for part in parts for tensor in tensors_in(part)] if isinstance(parts, list | tuple) else []


def go_on(monkeypatch):
    """Have passes launched ahead of their round, as where a device works on while the host does."""
    monkeypatch.setattr(RecordedPasses, "overlaps", True)
    monkeypatch.setattr("refimpl.decoding.recorded.Recording", Replayed)


@pytest.fixture(params=[False, True], ids=["", "ahead"])
def ahead(request, monkeypatch):
    """Whether passes are launched ahead of their round."""
    if request.param:
        go_on(monkeypatch)
    return request.param


@pytest.fixture
def passes(monkeypatch):
    """Counts passes of each kind that were run, those ahead, and rounds that could use them."""
    counts = Counter()

    def counted(name, method):
        def run(self, *arguments):
            result = method(self, *arguments)
            counts[name] += result is not False
            return result

        return run

    names = [(RecordedPasses, name) for name in ("_propose", "_advance", "_decide", "verify")]
    for owner, name in [*names, (_Ahead, "serves")]:
        monkeypatch.setattr(owner, name, counted(name, getattr(owner, name)))
    return counts


def outputs(pair, prompts, **settings):
    result = generate(pair, prompts, **SETTINGS | settings)
    return [(s.token_ids, s.logprobs, s.stats) for s in result.sequences]


@pytest.mark.parametrize("batch_size", [1, 3, 16])
@pytest.mark.parametrize("method", ["inplace", "inplace+static"])
def test_the_same_run(llama, ragged_prompts, rule, method, batch_size, monkeypatch):
    """Also where passes are launched ahead."""
    settings = {"method": method, "batch_size": batch_size, **rule}
    expected = outputs(llama, ragged_prompts, **settings)
    assert outputs(llama, ragged_prompts, cuda_graphs=True, **settings) == expected
    go_on(monkeypatch)
    assert outputs(llama, ragged_prompts, cuda_graphs=True, **settings) == expected


@pytest.mark.parametrize("kind", ["qwen3", "opt", "gpt2"])
def test_equal_to_the_oracle(kind, ragged_prompts):
    pair = random_pair(kind, draft_noise=0.01)
    expected = [s.token_ids for s in generate(pair, ragged_prompts, method="autoregressive", **SETTINGS).sequences]
    result = generate(pair, ragged_prompts, method="inplace", batch_size=4, cuda_graphs=True, **SETTINGS)
    assert [s.token_ids for s in result.sequences] == expected
    assert result.stats.acceptance.accepted > 0


def test_requests_of_their_own(llama, ragged_prompts, ahead):
    """Rows without drafts are drafted beside the others, so that the draft never falls behind."""
    requests = [Request(p, 3 + i, i % 5, sequence_id=i) for i, p in enumerate(ragged_prompts)]
    settings = {"method": "inplace", "batch_size": 3, "logprobs": 2}
    expected = outputs(llama, requests, **settings)
    found = outputs(llama, requests, cuda_graphs=True, **settings)
    assert [f[0] for f in found] == [e[0] for e in expected]


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_random_numbers_are_keyed_by_sequence_id_and_seed(llama, acceptance, ahead):
    requests = [Request([3 + i, 1], seed=i % 2, sequence_id=40 - i) for i in range(5)]
    settings = {"method": "inplace", "batch_size": 3, "temperature": 1.0, "acceptance": acceptance}
    assert outputs(llama, requests, cuda_graphs=True, **settings) == outputs(llama, requests, **settings)


def test_drafts_made_ahead_are_used_until_a_sequence_joins(llama, monkeypatch, passes):
    """Two rows of equal budgets, then one more: what the device drafted for the rounds between is not made again."""
    go_on(monkeypatch)
    result = generate(llama, [[1, 2], [3, 4, 5], [6]], method="inplace", batch_size=2, cuda_graphs=True, **SETTINGS)
    assert 0 < passes["serves"] <= passes["_advance"]
    num_widths = 1
    assert passes["_propose"] == len(result.rounds) + passes["_advance"] - passes["serves"] + num_widths


def test_cancelling_a_row_leaves_the_others_alone(llama, monkeypatch, passes):
    go_on(monkeypatch)
    prompts, settings = [[1, 2], [3, 4, 5], [6], [7, 8]], {"method": "inplace", "batch_size": 2, **SETTINGS}
    expected = [s.token_ids for s in generate(llama, prompts, **settings).sequences]
    run, found = stream(llama, prompts, cuda_graphs=True, **settings), [list[int]() for _ in prompts]
    for event in run:
        found[event.index] += event.token_ids
        run.cancel(0)
    assert found[1:] == expected[1:]
    assert passes["serves"] > 0


def test_without_drafts_every_round_is_recorded(llama, ragged_prompts, passes):
    settings = {"method": "inplace", "batch_size": 4, "num_speculative_tokens": 0}
    expected = outputs(llama, ragged_prompts, **settings)
    assert outputs(llama, ragged_prompts, cuda_graphs=True, **settings) == expected
    assert passes["verify"] == len(generate(llama, ragged_prompts, **SETTINGS | settings).rounds)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_without_drafts_the_next_pass_is_launched_ahead(llama, ragged_prompts, monkeypatch, passes, temperature):
    """What it overwrites was copied: tokens and log-probabilities are those of ordinary rounds."""
    settings = {"method": "inplace", "batch_size": 3, "num_speculative_tokens": 0, "temperature": temperature}
    expected = outputs(llama, ragged_prompts, logprobs=2, **settings)
    go_on(monkeypatch)
    found = outputs(llama, ragged_prompts, logprobs=2, cuda_graphs=True, **settings)
    assert [f[0] for f in found] == [e[0] for e in expected]
    for (_, mine, _), (_, ordinary, _) in zip(found, expected, strict=True):
        assert [t.logprob for t in mine] == pytest.approx([t.logprob for t in ordinary], abs=1e-9)
    assert 0 < passes["serves"] <= passes["_advance"]
    assert passes["_decide"] == passes["verify"] + passes["_advance"] - passes["serves"]


def test_a_pass_launched_ahead_hides_no_error_of_the_one_before(llama, monkeypatch):
    run, counted = llama.target.run_layers, count()

    def broken(block, num_logits):
        return run(block, num_logits) * (torch.nan if next(counted) == 4 else 1)

    go_on(monkeypatch)
    monkeypatch.setattr(llama.target, "run_layers", broken)
    settings = SETTINGS | {"method": "inplace", "num_speculative_tokens": 0, "cuda_graphs": True}
    with pytest.raises(InputError, match="the target's logits are not finite in row 0"):
        generate(llama, [[1, 2, 3], [4, 5]], **settings)


@pytest.mark.parametrize("budget", ["by_load:2=2,3=1", "by_load:2=0", "goodput:1=1.2/1.5/1.8,3=1.5/2.2"])
def test_budgets_that_choose_before_anything_is_drafted(llama, ragged_prompts, budget, ahead):
    settings = {"method": "inplace", "batch_size": 3, "draft_budget": budget}
    expected = outputs(llama, ragged_prompts, **settings)
    assert outputs(llama, ragged_prompts, cuda_graphs=True, **settings) == expected


def test_a_draft_that_sat_out_rounds_catches_up(ahead):
    """Two rows have no drafts; one alone has some, all of them right, as the draft is the target."""
    requests = [Request([1, 2, 3], 24), Request([4, 5], 60)]
    settings = {"method": "inplace", "draft_budget": "by_load:2=0", "num_speculative_tokens": 4, "cuda_graphs": True}
    found = generate(random_pair("llama", draft_noise=0.0), requests, **settings).stats.acceptance
    assert found.accepted == found.drafted > 0


def test_bits_stay_under_shape_stable_execution(tiny, bundled_prompts):
    settings = {"method": "inplace", "batch_size": 3, "shape_stable": True, "logprobs": 0, "max_new_tokens": 8}
    expected = generate(tiny, bundled_prompts[:4], **settings).sequences
    found = generate(tiny, bundled_prompts[:4], cuda_graphs=True, checks="off", **settings).sequences
    assert [s.logprobs for s in found] == [s.logprobs for s in expected]


def test_the_living_share_no_stream_and_those_of_the_dead_are_used_again(monkeypatch):
    class Owner:
        pass

    monkeypatch.setattr("refimpl.decoding.graphs._free_streams", defaultdict(list))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: [device])
    device, first, second = torch.device("cuda", 0), Owner(), Owner()
    streams = [stream_of(owner, device) for owner in (first, second)]
    assert streams[0] is not streams[1]
    del first
    third = Owner()
    assert stream_of(third, device) is streams[0]
    assert stream_of(third, torch.device("cuda", 1)) == [torch.device("cuda", 1)]


@given(st.integers(1, 100_000), st.integers(1, 100_000))
def test_widths_hold_what_they_must_and_are_few(columns, most):
    width = context_width(columns, max(columns, most))
    assert columns <= width <= max(columns, most)
    assert width <= max(columns * 1.25, columns + 32) or width == max(columns, most)
    octave = {context_width(c, 1 << 20) for c in range(1024, 2048)}
    assert len(octave) <= 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "inplace+grouped"}, "cuda_graphs need rows that stay where they are"),
        ({"method": "eqspec"}, "cuda_graphs need rows that stay where they are"),
        ({"method": "inplace", "checks": "device"}, "recorded rounds cannot be checked at level device"),
    ],
)
def test_what_cannot_be_recorded_is_refused(llama, settings, message):
    with pytest.raises(InputError, match=message):
        generate(llama, [[1, 2]], cuda_graphs=True, **settings)
