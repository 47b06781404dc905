"""What only a GPU can show: recorded rounds replayed, bits that stay, a host that does not wait."""

import warnings
from itertools import chain, islice

import pytest
import torch

from refimpl import generate, load_pair, stream
from refimpl.core.config import make_config
from refimpl.decoding.engine import Engine
from refimpl.decoding.recorded import RecordedPasses
from refimpl.judging.equivalence import verify
from refimpl.judging.tie_or_bug import judge_method
from refimpl.models.varlen import PackedKernel
from refimpl.pairs.names import TINY
from refimpl.pairs.random_pairs import random_pair
from refimpl.prompts import read_prompts
from refimpl.requests import prepare

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

SETTINGS = {"max_new_tokens": 24, "num_speculative_tokens": 4, "stop_token_ids": [5], "checks": "host"}


@pytest.fixture(scope="module")
def pair():
    """A random pair in float64, so that no tie hides an error."""
    return random_pair("llama", draft_noise=0.01, device="cuda")


def tokens(pair, prompts, **settings):
    return [s.token_ids for s in generate(pair, prompts, **SETTINGS | settings).sequences]


def test_no_attention_kernel_is_planned_for_every_width(pair):
    assert pair.device.type == "cuda"
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("method", ["rollback", "masked", "eqspec", "exspec", "inplace"])
@pytest.mark.parametrize("checks", ["host", "device"])
def test_every_method_equals_the_oracle(pair, ragged_prompts, method, checks):
    expected = tokens(pair, ragged_prompts, method="autoregressive")
    assert tokens(pair, ragged_prompts, method=method, batch_size=4, checks=checks) == expected


@pytest.mark.parametrize("batch_size", [3, 16])
@pytest.mark.parametrize("ahead", [False, True])
def test_replayed_rounds_give_the_tokens_of_ordinary_ones(pair, ragged_prompts, rule, batch_size, ahead, monkeypatch):
    monkeypatch.setattr(RecordedPasses, "overlaps", ahead)
    settings = {"method": "inplace", "batch_size": batch_size, **rule}
    expected = tokens(pair, ragged_prompts, **settings)
    assert tokens(pair, ragged_prompts, cuda_graphs=True, **settings) == expected


def test_drafts_made_ahead_are_as_good(pair, ragged_prompts, monkeypatch):
    """Acceptance would fall if a draft were launched on numbers that are not the round's."""
    accepted = []
    for ahead in (False, True):
        monkeypatch.setattr(RecordedPasses, "overlaps", ahead)
        result = generate(pair, ragged_prompts, method="inplace", batch_size=4, cuda_graphs=True, **SETTINGS)
        accepted.append(result.stats.acceptance.accepted)
    assert accepted[0] == accepted[1] > 0


@pytest.mark.parametrize("layers", ["lean", "compiled", "kernels"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_lean_layers_pass_their_trial(layers, dtype, monkeypatch):
    """What fails it raises an error here, as these layers are asked for by name; long rows of kernels are split."""
    if layers == "kernels":
        monkeypatch.setattr("refimpl.models.kernel_layers.SPAN", 64)
    pair = load_pair("tiny", device="cuda", dtype=dtype, layers=layers)
    assert {lm.layers.name for lm in pair.models()} == {layers}
    prompts = read_prompts(TINY / "prompts.jsonl", "first", 8)
    for settings in ({"method": "inplace"}, {"method": "inplace", "cuda_graphs": True}, {"method": "paged"}):
        assert judge_method(pair, prompts, max_new_tokens=24, batch_size=4, **settings).verdict != "bug"


def test_a_run_survives_the_end_of_another(pair, ragged_prompts):
    """Graphs that go take nothing with them that the graphs of another run still use."""
    settings = {"method": "inplace", "batch_size": 4, "cuda_graphs": True}
    expected = tokens(pair, ragged_prompts, **settings)
    other, run = (stream(pair, prompts, **SETTINGS | settings) for prompts in ([[1, 2, 3]], ragged_prompts))
    events, found = iter(run), [list[int]() for _ in ragged_prompts]
    begun = list(islice(events, 5))
    assert len(list(other)) > 1
    del other
    torch.cuda.empty_cache()
    for event in chain(begun, events):
        found[event.index] += event.token_ids
    assert found == expected


def test_replayed_log_probabilities(pair, ragged_prompts):
    settings = SETTINGS | {"method": "inplace", "batch_size": 4, "logprobs": 2}
    ordinary = generate(pair, ragged_prompts, **settings).sequences
    replayed = generate(pair, ragged_prompts, cuda_graphs=True, **settings).sequences
    for a, b in zip(ordinary, replayed, strict=True):
        assert [t.logprob for t in a.logprobs] == pytest.approx([t.logprob for t in b.logprobs], abs=1e-9)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.95}], ids=["greedy", "coupled"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("layers", "cuda_graphs"), [("auto", False), ("auto", True), ("kernels", True)])
def test_shape_stable_execution_keeps_every_bit(dtype, sampling, layers, cuda_graphs):
    prompts = read_prompts(TINY / "prompts.jsonl", "first", 6)
    report = verify(
        load_pair("tiny", device="cuda", dtype=dtype, layers=layers),
        prompts,
        methods="inplace,inplace+static",
        cuda_graphs=cuda_graphs,
        bitwise=True,
        batch_sizes=(1, 4),
        max_new_tokens=12,
        **sampling,
    )
    assert report.exact
    assert all(row.bitwise == 6 for row in report.results)


def test_a_replayed_round_waits_for_nothing_but_its_decision(pair):
    """The decision's arrival is an event; no other call of a round may synchronise with the device."""
    config = make_config(method="inplace", batch_size=4, cuda_graphs=True, checks="off", max_new_tokens=60)
    engine = Engine(pair, prepare(pair, [[1, 2, 3], [4, 5], [6]], config), config)
    engine.run_one_round()  # prefill and recording
    rounds = len(engine.context.passes._recordings)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        for _ in range(3):
            engine.run_one_round()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(engine.context.passes._recordings) == rounds, "all in the same width"


@pytest.mark.parametrize("method", ["inplace", "paged"])
@pytest.mark.parametrize("drafter", ["model", "ngram", "head"])
def test_drafts_in_a_second_stream_are_those_of_one(pair, ragged_prompts, method, drafter):
    """Many rounds, and prompts that are cached between them: a missing wait would change tokens, or acceptance."""
    settings = SETTINGS | {"method": method, "batch_size": 4, "drafter": drafter}
    found = generate(pair, ragged_prompts * 4, execution="overlapped", **settings)
    assert [s.token_ids for s in found.sequences] == tokens(pair, ragged_prompts * 4, method="autoregressive")
    wanted = generate(pair, ragged_prompts * 4, **settings)
    assert found.stats.acceptance.accepted == wanted.stats.acceptance.accepted


@pytest.fixture(scope="module", params=["float16", "bfloat16"])
def half(request):
    """The bundled pair in 16 bit."""
    return load_pair("tiny", device="cuda", dtype=request.param)


@pytest.mark.parametrize("method", ["inplace", "inplace+continuous", "paged", "paged+continuous", "exspec"])
def test_packed_passes_in_one_call_are_right_up_to_rounding(half, method):
    """Where no kernel is used, the reason is there to be read."""
    prompts, settings = read_prompts(TINY / "prompts.jsonl", "first", 8), {"method": method, "batch_size": 4}
    assert judge_method(half, prompts, max_new_tokens=24, **settings).verdict != "bug"
    said = generate(half, prompts[:1], max_new_tokens=1, **settings).environment["packed_attention"]
    assert said.startswith(("varlen_attn", "loop: varlen_attn "))


def test_what_a_kernel_computes_does_not_depend_on_where_keys_are(half, monkeypatch):
    """The ways to give it keys, and the loop, round alike enough to agree on most tokens."""
    prompts, settings = read_prompts(TINY / "prompts.jsonl", "first", 8), {"method": "paged", "max_new_tokens": 16}
    kernel = half.target.kernel
    if kernel.call is None:
        pytest.skip(kernel.reason)
    outputs = []
    for each in (kernel, PackedKernel(kernel.call), PackedKernel()):
        monkeypatch.setattr(half.target, "kernel", each)
        outputs.append([s.token_ids for s in generate(half, prompts, **settings).sequences])
    agree = [sum(map(list.__eq__, outputs[0], other)) for other in outputs[1:]]
    assert min(agree) >= len(prompts) // 2
