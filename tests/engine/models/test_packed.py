"""Packed passes: what a row computes depends neither on the rows beside it nor on the cut of its tokens into passes."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from refimpl import Pair, Request, generate
from refimpl.core.config import make_config
from refimpl.decoding import prefill
from refimpl.decoding.engine import Engine
from refimpl.layouts.packed import PackedBlock, Rectangle
from refimpl.layouts.spans import FULL
from refimpl.layouts.store import KVStore
from refimpl.models import attention, probe
from refimpl.models.adapter import HuggingFaceLM
from refimpl.pairs.random_pairs import TINY_ARCHITECTURES, random_pair
from refimpl.requests import prepare

PROMPTS = [[5, 3, 8, 1, 9, 2, 7], [4], [6, 2], [1, 1, 2, 3, 5, 8, 13, 21, 34, 3, 9, 14, 2]]


def prefilled(pair: Pair, method: str = "inplace", **settings) -> list[torch.Tensor]:
    """K/V of the prompts' tokens but the last, from the target's pool."""
    config = make_config(method=method, batch_size=len(PROMPTS), checks="device", max_new_tokens=8, **settings)
    engine = Engine(pair, prepare(pair, PROMPTS, config), config)
    with torch.inference_mode():
        engine.admit()
    assert engine.scheduler.allocator.reserve(engine.sequences)
    target = engine.context.target
    target.begin(engine.sequences, span=1)
    target.block(torch.tensor([[s.token_ids[-1]] for s in engine.sequences]), -1, [])
    return [target.layout.read(i) for i in range(len(PROMPTS))]


@pytest.mark.parametrize("kind", sorted(TINY_ARCHITECTURES))
@pytest.mark.parametrize("chunk", [512, 4, 1])
def test_keys_and_values_are_those_of_each_prompt_by_itself(kind, chunk, monkeypatch):
    monkeypatch.setattr(prefill, "PREFILL_CHUNK_TOKENS", chunk)
    pair = random_pair(kind)
    assert pair.target.forward_packed is not None
    for prompt, found in zip(PROMPTS, prefilled(pair), strict=True):
        if len(prompt) > 1:
            wanted = pair.target.fresh_kv(prompt[:-1])
            assert (found - wanted).abs().max() <= 1e-12 * wanted.abs().max()


@pytest.mark.parametrize("chunk", [512, 4])
def test_blocks_get_the_same_bits(llama, chunk, monkeypatch):
    monkeypatch.setattr(prefill, "PREFILL_CHUNK_TOKENS", chunk)
    wanted = prefilled(llama)
    for size in (1, 4, 16):
        assert all(map(torch.equal, prefilled(llama, "paged", block_size=size), wanted))


@pytest.mark.parametrize("method", ["eqspec", "exspec", "masked", "inplace", "paged"])
def test_tokens_are_those_of_rectangles(llama, method, monkeypatch):
    packed = generate(llama, PROMPTS, method=method, max_new_tokens=12, checks="device", batch_size=3)
    monkeypatch.setattr(llama.target, "forward_packed", None)
    monkeypatch.setattr(llama.draft, "forward_packed", None)
    padded = generate(llama, PROMPTS, method=method, max_new_tokens=12, checks="device", batch_size=3)
    assert [s.token_ids for s in packed.sequences] == [s.token_ids for s in padded.sequences]


def test_no_pad_is_fed(llama, monkeypatch):
    fed = []
    forward = llama.target.forward_packed
    monkeypatch.setattr(llama.target, "forward_packed", lambda block, n: (fed.append(block.tokens), forward(block, n)))
    prefilled(llama)
    assert [tokens.tolist() for tokens in fed] == [[[t for prompt in PROMPTS for t in prompt[:-1]]]]


def leaks(block, query, scaling):
    """The rows of a packed block see each other."""
    keys, values = (torch.cat(parts, dim=2) for parts in zip(*block.seen, strict=True))
    return attention._causal(query, keys, values, scaling, FULL).transpose(1, 2).contiguous()


def test_a_model_that_mixes_packed_rows_is_fed_rectangles(llama, monkeypatch):
    monkeypatch.setattr(attention, "packed_attention", leaks)
    assert not probe.runs_packed_blocks(llama.target, llama.target._run_packed)
    assert HuggingFaceLM(llama.target.model).forward_packed is None


def test_a_model_that_leaves_the_packed_block_out_is_fed_rectangles():
    """With one layer its K/V are right all the same: they are made before attention."""
    config = LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).double()
    assert HuggingFaceLM(model).forward_packed is not None
    right = model.forward
    model.forward = lambda *inputs, packed=None, **rest: right(*inputs, **rest)
    assert HuggingFaceLM(model).forward_packed is None


def test_a_model_that_fails_on_packed_blocks_is_fed_rectangles(llama):
    def fail(block, num_logits):
        raise TypeError("unexpected keyword 'packed'")

    assert not probe.runs_packed_blocks(llama.target, fail)


REQUESTS = [
    Request(prompt, num_speculative_tokens=k, max_new_tokens=n)
    for prompt, k, n in zip([*PROMPTS, [7, 7, 3]], (1, 6, 0, 3, 2), (9, 14, 5, 12, 11), strict=True)
]
SHAPES = ["inplace", "paged", "eqspec", "exspec", "masked", "rollback", "inplace+continuous", "masked+continuous"]


@pytest.fixture
def rectangles(monkeypatch):
    """Tokens of each row, for every packed pass of rows that decode."""
    fed = []
    of_rows = PackedBlock.of_rows
    monkeypatch.setattr(PackedBlock, "of_rows", lambda block, counts: (fed.append(counts), of_rows(block, counts))[1])
    return fed


@pytest.mark.parametrize("rule", [{}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.0, "acceptance": "rejection"}])
@pytest.mark.parametrize("method", SHAPES)
def test_rows_that_draft_differently_feed_their_own_tokens_alone(llama, method, rule, rectangles, monkeypatch):
    settings = {"method": method, "batch_size": 4, "num_speculative_tokens": 6, "checks": "device", **rule}
    found = generate(llama, REQUESTS, **settings)
    assert any(len(set(counts)) > 1 for counts in rectangles)
    assert all(0 < sum(counts) <= 0.75 * len(counts) * max(counts) for counts in rectangles if "+" not in method)
    monkeypatch.setattr(llama.target, "forward_packed", None)
    assert [s.token_ids for s in found.sequences] == [
        s.token_ids for s in generate(llama, REQUESTS, **settings).sequences
    ]


@pytest.mark.parametrize("kind", sorted(TINY_ARCHITECTURES))
def test_every_architecture_verifies_packed_rows(kind, rectangles):
    pair = random_pair(kind, draft_noise=0.01)
    found = generate(pair, REQUESTS, batch_size=4, checks="device")
    wanted = generate(pair, REQUESTS, method="autoregressive")
    assert [s.token_ids for s in found.sequences] == [s.token_ids for s in wanted.sequences]
    assert rectangles


def test_packed_rows_in_blocks_get_the_same_bits(llama, rectangles):
    wanted, found = (generate(llama, REQUESTS, method=m, batch_size=4, logprobs=2) for m in ("inplace", "paged"))
    assert [s.logprobs for s in found.sequences] == [s.logprobs for s in wanted.sequences]
    assert rectangles


def test_rows_of_a_static_batch_that_have_finished_feed_nothing(llama, rectangles):
    requests = [Request([1, 2], max_new_tokens=n) for n in (2, 24)]
    generate(llama, requests, method="eqspec", batch_size=2, stop_token_ids=[])
    assert any(0 in counts for counts in rectangles)


def test_passes_of_one_shape_are_not_packed(llama, rectangles):
    generate(llama, REQUESTS, shape_stable=True)
    assert not rectangles


@pytest.mark.parametrize("method", ["inplace", "paged"])
def test_rows_write_their_own_tokens_alone(llama, method, monkeypatch):
    """What a row would be padded with leaves the slots behind its tokens as they were."""
    written: list[torch.Tensor] = []
    fed = []
    write, forward = KVStore.write_slots, llama.target.forward_packed

    def note_slots(store, layer, slots, keys, values):
        written.append(slots)
        write(store, layer, slots, keys, values)

    def note_pass(block, num_logits):
        written.clear()
        logits = forward(block, num_logits)
        fed.append((block, written[:]))
        return logits

    monkeypatch.setattr(KVStore, "write_slots", note_slots)
    monkeypatch.setattr(llama.target, "forward_packed", note_pass)
    generate(llama, REQUESTS, method=method, batch_size=4, num_speculative_tokens=6)
    of_rows = [(block, slots) for block, slots in fed if block.rectangle]
    assert of_rows
    for block, slots in of_rows:
        assert [len(each) for each in slots] == [block.tokens.shape[1]] * llama.target.kv_shape.num_layers


def test_folded_queries_are_those_of_the_rectangle():
    """Two heads share a key head: row by row, key head by key head, the queries of both, and back."""
    rectangle = Rectangle(torch.tensor([[0, 0, 0], [1, 2, 3]]), torch.tensor([0, 3, 4, 5]), lambda span: torch.empty(0))
    query = torch.arange(4 * 4 * 2.0).view(1, 4, 4, 2)
    folded = rectangle.fold(query, 2)
    spread = rectangle.spread(query[0])
    assert torch.equal(folded, spread.reshape(2, 2, 2 * 3, 2))
    assert torch.equal(rectangle.unfold(folded, 4), query.transpose(1, 2))
