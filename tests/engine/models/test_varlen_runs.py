"""Packed passes in one call a layer: whole runs, with a stand-in for `varlen_attn` that answers them."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from refimpl import InputError, Request, generate
from refimpl.decoding import prefill
from refimpl.layouts import Layout
from refimpl.layouts.store import KVStore
from refimpl.models import varlen
from refimpl.models.varlen import PackedKernel, choose_kernel
from refimpl.pairs.random_pairs import TINY_ARCHITECTURES, random_pair
from tests.engine.packed_kernels import EXACT, HEADS, Noted, offering, shifted

PROMPTS = [[5, 3, 8, 1, 9, 2, 7], [4], [6, 2], [1, 1, 2, 3, 5, 8, 13, 21, 34, 3, 9, 14, 2], [7, 7, 3]]
REQUESTS = [
    Request(prompt, num_speculative_tokens=k, max_new_tokens=n)
    for prompt, k, n in zip(PROMPTS, (1, 6, 0, 3, 2), (9, 14, 5, 12, 11), strict=True)
]
SETTINGS = {"batch_size": 4, "num_speculative_tokens": 6, "checks": "host"}
COUPLED = {"temperature": 0.8, "seed": 3}
REJECTION = {"temperature": 1.0, "acceptance": "rejection"}
CASES = [
    ("inplace", 512, {}), ("inplace", 4, {}), ("inplace+continuous", 4, COUPLED), ("paged", 4, COUPLED),
    ("paged", 512, REJECTION), ("paged+continuous", 4, {}), ("paged+continuous", 4, REJECTION),
    ("paged+grouped", 512, {}), ("exspec", 4, {}), ("masked+continuous", 4, COUPLED),
]  # fmt: skip


@pytest.fixture(scope="module")
def kernel_pairs():
    """Pairs whose packed passes the stand-in answers, and the stand-in."""
    noted = Noted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varlen, "offered", offering(noted))
        pairs = {kind: random_pair(kind, draft_noise=0.01) for kind in TINY_ARCHITECTURES}
    assert all(model.kernel.call for pair in pairs.values() for model in pair.models())
    return pairs, noted


@pytest.fixture
def kernel_pair(kernel_pairs):
    """One of them, and the stand-in, not yet called."""
    pairs, noted = kernel_pairs
    del noted.calls[:]
    return pairs["llama"], noted


def tokens(pair, method, **settings):
    chunked = {"token_budget": 32} if "continuous" in method else {}
    return [s.token_ids for s in generate(pair, REQUESTS, method=method, **SETTINGS | chunked | settings).sequences]


def noting(calls, original):
    """The original, which leaves the arguments of each call."""

    def noted(*args):
        calls.append(args)
        return original(*args)

    return noted


@cache
def oracle(pair, **rule):
    return tokens(pair, "autoregressive", **rule)


@pytest.mark.parametrize(("method", "chunk", "rule"), CASES)
def test_outputs_are_the_oracles(kernel_pair, method, chunk, rule, monkeypatch):
    """Ragged prompts, chunks, rows with different drafts, heads that share keys, in rows and in blocks."""
    monkeypatch.setattr(prefill, "PREFILL_CHUNK_TOKENS", chunk)
    pair, noted = kernel_pair
    found = tokens(pair, method, **rule)
    assert noted.calls
    if rule != REJECTION:
        assert found == oracle(pair, **rule)
    monkeypatch.setattr(pair.target, "kernel", PackedKernel())
    assert found == tokens(pair, method, **rule)


@pytest.mark.parametrize("kind", sorted(set(TINY_ARCHITECTURES) - {"llama"}))
def test_every_architecture(kernel_pairs, kind):
    pairs, noted = kernel_pairs
    del noted.calls[:]
    assert tokens(pairs[kind], "paged+continuous") == oracle(pairs[kind])
    assert noted.calls


@pytest.mark.parametrize(
    ("method", "ways", "seen"),
    [
        ("paged", {}, {"blocks"}),
        ("paged", {"block_sizes": frozenset(), "in_rows": False}, {"gathered"}),
        ("inplace+static", {"block_sizes": frozenset()}, {"rows"}),
        ("inplace+static", {"block_sizes": frozenset(), "in_rows": False}, {"gathered"}),
        ("inplace+continuous", {"block_sizes": frozenset()}, {"rows", "gathered"}),  # prompts stand before rows
        ("masked", {"block_sizes": frozenset()}, {"rows"}),  # of prompts; later, masks say what rows see
    ],
)
def test_keys_are_given_as_the_pool_has_them(kernel_pair, monkeypatch, method, ways, seen):
    pair, noted = kernel_pair
    for model in pair.models():
        monkeypatch.setattr(model, "kernel", replace(model.kernel, **ways))
    assert tokens(pair, method) == oracle(pair)
    assert noted.ways == seen


def test_one_call_a_layer_and_no_block_is_gathered(kernel_pair, monkeypatch):
    pair, noted = kernel_pair
    passes, forward = [], pair.target.forward_packed

    def packed(block, num_logits):
        passes.append(block)
        with monkeypatch.context() as patch:
            patch.setattr(KVStore, "view_blocks", None)
            return forward(block, num_logits)

    monkeypatch.setattr(pair.target, "forward_packed", packed)
    monkeypatch.setattr(pair.draft, "kernel", PackedKernel())
    tokens(pair, "paged+continuous")
    assert len(noted.calls) == pair.target.kv_shape.num_layers * len(passes)
    assert any(len(block.counts) > 1 and block.rectangle for block in passes), "chunks beside rows"


@pytest.mark.parametrize("method", ["inplace+static", "paged"])
def test_rows_are_looked_up_for_packed_passes_alone(llama, monkeypatch, method):
    looked_up, passes = [], []
    monkeypatch.setattr(Layout, "rows_in_pool", noting(looked_up, Layout.rows_in_pool))
    for model in llama.models():
        monkeypatch.setattr(model, "forward_packed", noting(passes, model.forward_packed))
    tokens(llama, method)
    assert len(looked_up) == len(passes) > 2


@pytest.mark.parametrize("checks", ["off", "host", "device", "oracle"])
def test_what_is_checked_is_attended_behind_masks(kernel_pair, checks):
    pair, noted = kernel_pair
    result = generate(pair, REQUESTS, method="paged", **SETTINGS | {"checks": checks})
    masked = checks in ("device", "oracle")
    assert [s.token_ids for s in result.sequences] == oracle(pair)
    assert bool(noted.calls) != masked
    wanted = f"loop: checks {checks} look at masks" if masked else "varlen_attn"
    assert result.environment["packed_attention"] == result.header["packed_attention"] == wanted


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"method": "inplace"}, "loop: varlen_attn needs a CUDA device"),
        ({"method": "masked"}, "loop: varlen_attn needs a CUDA device (prompts alone)"),
        ({"method": "inplace", "cuda_graphs": True}, "loop: varlen_attn needs a CUDA device (prompts alone)"),
        ({"method": "autoregressive"}, "no packed passes"),
        ({"method": "inplace", "shape_stable": True}, "no packed passes"),
    ],
)
def test_a_run_says_how_it_attends(llama, settings, wanted):
    result = generate(llama, [[1, 2]], max_new_tokens=2, **{"checks": "host"} | settings)
    assert result.environment["packed_attention"] == wanted


# --- planted errors ----------------------------------------------------------------------------------------------


def told(name, change):
    """A way with one thing that it tells the kernel changed."""
    return lambda original: (
        lambda numbers: (
            original(numbers)[0],
            {key: change(value) if key == name else value for key, value in original(numbers)[1].items()},
        )
    )


def longer(original):
    """Rows count one token more than they have, or fewer."""
    return lambda self, rows: original(self, [(row, count, length - 1) for row, count, length in rows])


PLANTED = {
    "one key too few": (varlen, "in_blocks", told("seqused_k", lambda n: n - 1)),
    "one key too many": (varlen, "in_blocks", told("seqused_k", lambda n: n + 1)),
    "another row's table": (varlen, "in_blocks", told("block_table", lambda table: table.roll(1, dims=0))),
    "another row's beginning": (varlen, "in_rows", told("cu_seq_k", lambda sums: torch.cat([sums[1:-1], sums[-2:]]))),
    "borders of copies": (varlen, "gathered", told("cu_seq_k", shifted)),
    "borders of queries": (varlen, "_sums", lambda original: lambda counts: shifted(original(counts))),
    "rows that are shorter": (Layout, "rows_in_pool", longer),
}


@pytest.mark.parametrize("error", PLANTED)
def test_planted_errors_change_tokens_and_are_found_on_loading(kernel_pair, monkeypatch, error):
    """Once a kernel is in use, outputs show an error; a kernel that is tried with it is not used in that way."""
    (pair, noted), (owner, name, make) = kernel_pair, PLANTED[error]
    ways = {"block_sizes": frozenset(), "in_rows": name == "in_rows"} if name in ("in_rows", "gathered") else {}
    monkeypatch.setattr(pair.target, "kernel", replace(pair.target.kernel, **ways))
    wanted = oracle(pair)
    monkeypatch.setattr(owner, name, make(getattr(owner, name)))
    try:
        found = tokens(pair, "inplace+static" if name == "in_rows" else "paged")
    except (AssertionError, InputError):
        found = None  # the stand-in looks at what it is told, the engine at its logits
    assert found != wanted
    monkeypatch.setattr(varlen, "offered", offering(noted))
    chosen = choose_kernel(EXACT, HEADS)
    assert chosen.call is None or not (chosen.block_sizes if name == "in_blocks" else chosen.in_rows)
