"""Which way the kernel for packed passes is called: each way is tried on loading, and a wrong one is not used."""

import inspect
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import varlen_attn

from refimpl.layouts.store import KVShape
from refimpl.models import varlen
from refimpl.models.varlen import TRIAL, NotOfferedError, PackedKernel, choose_kernel, offered, trial, variants
from tests.engine.packed_kernels import EXACT, HEADS, of_format, offering, reference, shifted, signed

DTYPES = [torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture
def offer(monkeypatch):
    """Offers a kernel."""
    return lambda kernel: monkeypatch.setattr(varlen, "offered", offering(kernel))


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


def altered(**changes):
    """The reference with arguments changed on their way."""

    @signed
    def kernel(*args, **settings):
        given = {name: settings[name] for name in changes if settings.get(name) is not None}
        return reference(*args, **settings | {name: changes[name](value) for name, value in given.items()})

    return kernel


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
    "another shape": (
        signed(lambda query, *_, **__: query[:-1]),
        ("fails, ", "differs from the loop"),
    ),  # shapes checked
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_kernel_is_not_used(offer, wrong, dtype):
    kernel, reasons = WRONG[wrong]
    offer(kernel)
    found = choose_kernel(of_format(dtype), HEADS)
    assert found.call is None
    assert found.describe(16).removeprefix("loop: varlen_attn ").startswith(reasons)


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
