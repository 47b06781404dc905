"""What a recorded round may not do, seen without a GPU: its work is done on `meta` tensors, which have no values.

While a CUDA graph is recorded, the host may not wait for the device. It would, to read a value, to learn how many
elements a mask selects, or to hand over values of its own. Here the first raises by itself; the rest is looked for.
"""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from refimpl.core.config import make_config
from refimpl.decoding.engine import Engine
from refimpl.decoding.graphs import Recording
from refimpl.decoding.recorded import RecordedPasses
from refimpl.pairs.random_pairs import TINY_ARCHITECTURES, random_pair
from refimpl.requests import prepare

META = torch.device("meta")
PROMPTS = [[1, 2, 3], [4], [5] * 9]
INDEXING = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)


def tensors_in(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class NoTensorFromPython(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        assert function not in (torch.tensor, torch.as_tensor), "values of the host are handed over"
        return function(*args, **(kwargs or {}))


class NoTensorOfTheHost(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        assert all(t.is_meta for t in tensors_in((args, kwargs, result))), f"{function} works on the host"
        if function.overloadpacket in INDEXING:
            assert all(t.dtype != torch.bool for t in tensors_in(args[1])), f"{function} must count what a mask selects"
        return result


@contextmanager
def on_device_only():
    with NoTensorFromPython(), NoTensorOfTheHost():
        yield


class WatchedRecording(Recording):
    """Works once unwatched, as before it would be recorded, and is watched ever after."""

    def __init__(self, work, stream, memory):
        super().__init__(work, stream, memory)
        work()

    def __call__(self):
        with on_device_only():
            return super().__call__()


@pytest.fixture
def run_rounds(monkeypatch):
    """Runs rounds of an architecture on `meta`; the host is told that every draft was rejected."""

    def nothing_accepted(table):
        return torch.zeros(table._values.shape, dtype=torch.long)

    def run(kind, **settings):
        pair = random_pair(kind)
        for lm in (pair.target, pair.draft):
            lm.model.to(META)
            lm.kv_shape = replace(lm.kv_shape, device=META)
        config = make_config(cuda_graphs=True, stop_token_ids=(), **{"num_speculative_tokens": 4, **settings})
        engine = Engine(pair, prepare(pair, PROMPTS, config), config)
        return [engine.run_one_round() for _ in range(3)]

    monkeypatch.setattr("refimpl.decoding.recorded.Recording", WatchedRecording)
    monkeypatch.setattr(RecordedPasses, "overlaps", True)
    monkeypatch.setattr("refimpl.decoding.rounds._ToHost.wait", nothing_accepted)
    return run


@pytest.mark.parametrize("shape_stable", [False, True])
def test_no_rule_reads_a_value(run_rounds, rule, shape_stable):
    assert all(len(record.rows) == len(PROMPTS) for record in run_rounds("llama", shape_stable=shape_stable, **rule))


@pytest.mark.parametrize("shape", [{"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"temperature": 0.0}])
def test_no_shape_of_the_distribution_needs_one(run_rounds, shape):
    records = run_rounds("llama", **{"temperature": 0.7, "acceptance": "rejection", **shape})
    assert all(len(record.rows) == len(PROMPTS) for record in records)


@pytest.mark.parametrize("kind", sorted(set(TINY_ARCHITECTURES) - {"llama"}))
def test_no_architecture_reads_a_value(run_rounds, kind):
    assert all(len(record.rows) == len(PROMPTS) for record in run_rounds(kind))


@pytest.mark.parametrize(
    "illegal",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: bool(x.any()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.where(x > 0),
        lambda x: x.index_put_((x > 0,), x.sum()),
        lambda x: x + torch.arange(4),
        lambda x: x + torch.tensor([1, 2, 3, 4], device=META),
    ],
)
def test_what_would_break_a_recording_is_seen(illegal):
    x = torch.ones(4, device=META)
    with on_device_only():
        torch.where(x > 0, 0, x.cumsum(dim=0)).masked_fill_(x > 1, 2.0)[x.argsort()]
        with pytest.raises((AssertionError, NotImplementedError, RuntimeError)):
            illegal(x)
