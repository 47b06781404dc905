"""Packed passes in one call a layer: a plain reference of what `varlen_attn` documents stands in for the kernel."""

import inspect
import sys
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import varlen_attn

from refimpl import InputError, Request, generate
from refimpl.decoding import prefill
from refimpl.layouts import Layout
from refimpl.layouts.store import KVShape, KVStore
from refimpl.models import varlen
from refimpl.models.varlen import TRIAL, NotOfferedError, PackedKernel, choose_kernel, offered, trial, variants
from refimpl.pairs.random_pairs import TINY_ARCHITECTURES, random_pair

EXACT = KVShape(1, 2, 8, torch.float64, torch.device("cpu"))
HEADS = 4


def reference(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *,
    scale=None, window_size=(-1, -1), enable_gqa=False, seqused_k=None, block_table=None, num_splits=None,
):  # fmt: skip
    """Row by row, as the documentation of PyTorch 2.13 says: causal from the last query and the last key backwards.

    Its kernel for CUDA takes sums and lengths without gaps alone, and tables whose rows have none.
    """
    assert all(t.dtype == torch.int32 for t in (cu_seq_q, cu_seq_k, seqused_k, block_table) if t is not None)
    assert all(t.is_contiguous() for t in (cu_seq_q, cu_seq_k, seqused_k) if t is not None)
    assert block_table is None or block_table.stride(-1) == 1
    assert enable_gqa or query.shape[1] == key.shape[-2]
    outputs = []
    for row, (start, end) in enumerate(zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True)):
        if block_table is not None:
            keys, values = (each[block_table[row].long()].flatten(0, 1) for each in (key, value))
        else:
            first, last = cu_seq_k[row : row + 2].tolist()
            assert 0 <= first < last <= len(key)
            keys, values = key[first:last], value[first:last]
        n = len(keys) if seqused_k is None else int(seqused_k[row])
        assert end - start <= max_q
        assert n <= min(max_k, len(keys))
        keys, values = (each[:n].repeat_interleave(query.shape[1] // key.shape[-2], dim=1) for each in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query[start:end], keys) * (scale or query.shape[2] ** -0.5)
        if window_size == (-1, 0):
            scores += torch.full(scores.shape[1:], float("-inf"), dtype=scores.dtype).triu(1 + n - (end - start))
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), values))
    return torch.cat(outputs)


@pytest.fixture
def offer(monkeypatch):
    """Offers a kernel on the CPU and in every number format."""

    def offering(kernel):
        monkeypatch.setattr(
            varlen, "offered", lambda shape, heads: variants(kernel, grouped=heads != shape.num_kv_heads)
        )

    return offering


class Noted:
    """The reference, and the arguments that describe the keys of each call."""

    __signature__ = inspect.signature(reference)

    def __init__(self):
        self.calls = []

    def __call__(self, *args, **settings):
        self.calls.append(settings)
        return reference(*args, **settings)

    @property
    def ways(self):
        """In which ways keys were given."""
        tables = [settings.get("block_table") is not None for settings in self.calls]
        used = [settings.get("seqused_k") is not None for settings in self.calls]
        return {"blocks" if a else "rows" if b else "gathered" for a, b in zip(tables, used, strict=True)}


@pytest.fixture(scope="module")
def kernel_pairs():
    """Pairs whose packed passes the stand-in answers, and the stand-in."""
    noted = Noted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varlen, "offered", lambda shape, heads: variants(noted, grouped=heads != shape.num_kv_heads))
        pairs = {kind: random_pair(kind, draft_noise=0.01) for kind in TINY_ARCHITECTURES}
    assert all(model.kernel.call for pair in pairs.values() for model in pair.models())
    return pairs, noted


@pytest.fixture
def kernel_pair(kernel_pairs):
    """One of them, and the stand-in, not yet called."""
    pairs, noted = kernel_pairs
    del noted.calls[:]
    return pairs["llama"], noted


# --- the choice --------------------------------------------------------------------------------------------------


def of_format(dtype):
    return KVShape(3, 2, 8, dtype, torch.device("cpu"))


DTYPES = [torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("heads", [2, 4, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_kernel_serves_every_pool(offer, dtype, heads):
    offer(reference)
    kernel = choose_kernel(of_format(dtype), heads)
    assert kernel.call.keywords == {"window_size": (-1, 0), "num_splits": 1} | (
        {"enable_gqa": True} if heads > 2 else {}
    )
    assert (kernel.in_rows, kernel.block_sizes, kernel.reasons) == (True, frozenset(varlen.BLOCK_SIZES), {})
    assert kernel.describe(0) == kernel.describe(16) == "varlen_attn"


def signed(kernel):
    """A kernel that shows the signature of the reference."""
    kernel.__signature__ = inspect.signature(reference)
    return kernel


def altered(**changes):
    """The reference with arguments changed on their way."""

    @signed
    def kernel(*args, **settings):
        given = {name: settings[name] for name in changes if settings.get(name) is not None}
        return reference(*args, **settings | {name: changes[name](value) for name, value in given.items()})

    return kernel


def shifted(sums):
    """Each row's queries but the first row's begin one too late."""
    return torch.cat([sums[:1], sums[1:-1] + 1, sums[-1:]])


@signed
def first_keys(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size, **settings):
    """Aligns the first query with the first key."""
    ends = zip(cu_seq_q[1:].tolist(), cu_seq_q[:-1].tolist(), cu_seq_k[:-1].tolist(), strict=True)
    seen = [torch.arange(first, first + end - start) for end, start, first in ends]
    keys = [each[torch.cat(seen)] for each in (key, value)]
    return reference(query, *keys, cu_seq_q, cu_seq_q, max_q, max_q, window_size=window_size, **settings)


WRONG = {
    "no mask": (altered(window_size=lambda _: (-1, -1)), "differs from the loop"),
    "queries of another row": (altered(cu_seq_q=shifted, max_q=lambda n: n + 1), "differs from the loop"),
    "first query at the first key": (first_keys, "differs from the loop"),
    "not a number": (signed(lambda query, *_, **__: query * float("nan")), "differs from the loop"),
    "another shape": (signed(lambda query, *_, **__: query[:-1]), "fails, "),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_kernel_is_not_used(offer, wrong, dtype):
    kernel, reason = WRONG[wrong]
    offer(kernel)
    found = choose_kernel(of_format(dtype), HEADS)
    assert found.call is None
    assert found.describe(16).startswith(f"loop: varlen_attn {reason}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "wrong", [lambda n: n - 1, lambda n: n + 1, lambda n: n.roll(1)], ids=["less", "more", "other"]
)
def test_a_kernel_that_sees_other_lengths_is_given_copies(offer, wrong, dtype):
    offer(altered(seqused_k=wrong, max_k=lambda n: n + 1))
    kernel = choose_kernel(of_format(dtype), HEADS)
    assert (kernel.call is None, kernel.in_rows, kernel.block_sizes) == (False, False, frozenset())
    assert kernel.describe(0).startswith("varlen_attn, rows gathered: varlen_attn ")
    assert kernel.describe(16).startswith("varlen_attn, blocks gathered: varlen_attn ")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kernel_that_reads_tables_of_other_rows_is_given_copies(offer, dtype):
    offer(altered(block_table=lambda table: table.roll(1, dims=0)))
    kernel = choose_kernel(of_format(dtype), HEADS)
    assert (kernel.in_rows, kernel.block_sizes) == (True, frozenset())


def test_a_kernel_that_takes_some_pages_reads_those(offer):
    def picky(query, key, *args, block_table=None, **settings):
        if block_table is not None and key.shape[1] % 32:
            raise RuntimeError(f"page size must be\na multiple of 32, not {key.shape[1]}")
        return reference(query, key, *args, block_table=block_table, **settings)

    offer(signed(picky))
    kernel = choose_kernel(EXACT, HEADS)
    assert kernel.block_sizes == {32, 64}
    assert kernel.describe(64) == kernel.describe(0) == "varlen_attn"
    reason = "varlen_attn fails, RuntimeError: page size must be a multiple of 32, not"
    assert [kernel.describe(n) for n in (1, 16)] == [f"varlen_attn, blocks gathered: {reason} {n}" for n in (1, 16)]


def test_a_kernel_that_cannot_be_told_not_to_split_is_not_told(offer):
    def splits(*args, num_splits=None, **settings):
        if num_splits is not None:
            raise RuntimeError("num_splits needs another build")
        return reference(*args, **settings)

    offer(signed(splits))
    kernel = choose_kernel(EXACT, HEADS)
    assert kernel.call.keywords == {"window_size": (-1, 0), "enable_gqa": True}
    assert kernel.describe(16) == "varlen_attn"


def test_an_earlier_signature_is_called_by_its_names(offer):
    def earlier(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, *, scale=None):
        assert is_causal
        settings = {"scale": scale, "window_size": (-1, 0), "enable_gqa": True}
        return reference(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **settings)

    offer(earlier)
    kernel = choose_kernel(EXACT, HEADS)
    assert (kernel.call.keywords, kernel.in_rows, kernel.block_sizes) == ({"is_causal": True}, False, frozenset())
    assert "unexpected keyword argument" in kernel.describe(16)
    assert "rows gathered: varlen_attn fails, TypeError: " in kernel.describe(0)


@pytest.mark.parametrize(
    ("device", "dtype", "reason"),
    [
        ("cpu", torch.bfloat16, "varlen_attn needs a CUDA device"),
        ("cuda", torch.float32, "varlen_attn needs numbers of 16 bits, not float32"),
    ],
)
def test_where_there_is_none(device, dtype, reason):
    shape = KVShape(1, 2, 8, dtype, torch.device(device))
    with pytest.raises(NotOfferedError, match=reason):
        offered(shape, HEADS)
    assert choose_kernel(shape, HEADS).describe(16) == f"loop: {reason}"


def test_a_pytorch_without_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    shape = KVShape(1, 2, 8, torch.bfloat16, torch.device("cuda"))
    assert choose_kernel(shape, HEADS).reason == "this version of PyTorch has no varlen_attn"


# --- the engine --------------------------------------------------------------------------------------------------

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
    monkeypatch.setattr(Layout, "pooled", noting(looked_up, Layout.pooled))
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
    "rows that are shorter": (Layout, "pooled", longer),
}


@pytest.mark.parametrize("error", PLANTED)
def test_planted_errors_change_tokens_and_are_found_on_loading(kernel_pair, offer, monkeypatch, error):
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
    offer(noted)
    chosen = choose_kernel(EXACT, HEADS)
    assert chosen.call is None or not (chosen.block_sizes if name == "in_blocks" else chosen.in_rows)


@pytest.mark.parametrize(
    ("block_size", "ways"), [(16, {"block_sizes": frozenset([16])}), (0, {"in_rows": True}), (16, {})]
)
@pytest.mark.parametrize("heads", [2, 4])
def test_the_installed_kernel_takes_these_arguments(block_size, ways, heads):
    """On tensors without values, for which PyTorch describes its kernel."""
    needed = {"block_sizes": "block_table", "in_rows": "seqused_k"}
    if {needed[name] for name in ways} - inspect.signature(varlen_attn).parameters.keys():
        pytest.skip("this version has no such argument")
    for kernel in variants(varlen_attn, grouped=heads != EXACT.num_kv_heads):
        with FakeTensorMode():
            found = trial(of_format(torch.bfloat16), heads, block_size, PackedKernel(kernel, **ways))
        assert found.shape == (sum(end for _, end in TRIAL), heads, EXACT.key_dim)
