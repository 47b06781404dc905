"""Every kernel gives the same on integers, numpy arrays and torch tensors, and what its docstring says."""

import inspect
import itertools

import numpy as np
import pytest
import torch

from refimpl.core import kernels

INDEX_KERNELS = [
    f
    for name, f in inspect.getmembers(kernels, inspect.isfunction)
    if name not in {"where", "num_accepted", "last_accepted", "accepts", "overlap", "residual", "block_mass"}
]


@pytest.mark.parametrize("kernel", INDEX_KERNELS, ids=lambda f: f.__name__)
def test_same_on_integers_numpy_and_torch(kernel):
    names = inspect.signature(kernel).parameters
    points = list(itertools.product(*(range(1 if name in {"block_size", "size"} else -1, 4) for name in names)))
    columns = list(zip(*points, strict=True))
    expected = [int(kernel(*point)) for point in points]
    assert [int(v) for v in kernel(*(np.array(c) for c in columns))] == expected
    assert [int(v) for v in kernel(*(torch.tensor(c) for c in columns))] == expected


@pytest.mark.parametrize("matches", list(itertools.product([0, 1], repeat=4)))
@pytest.mark.parametrize("limit", range(5))
def test_num_accepted_is_the_leading_run(matches, limit):
    run = (*matches, 0).index(0)
    assert kernels.num_accepted(matches, limit) == min(run, limit)
    assert kernels.num_accepted(torch.tensor([matches]).unbind(1), torch.tensor([limit])).tolist() == [min(run, limit)]


@pytest.mark.parametrize("matches", list(itertools.product([0, 1], repeat=4)))
@pytest.mark.parametrize("limit", range(5))
def test_last_accepted_is_the_deepest_match_within_the_limit(matches, limit):
    last = max([i + 1 for i in range(limit) if matches[i]], default=0)
    assert kernels.last_accepted(matches, limit) == last
    assert kernels.last_accepted(torch.tensor([matches]).unbind(1), torch.tensor([limit])).tolist() == [last]


@pytest.mark.parametrize(
    ("mass", "p", "q", "expected"), [(1.0, 0.5, 0.25, 1.0), (0.5, 0.25, 0.5, 0.25), (0.5, 0.5, 0.25, 1.0)]
)
def test_block_mass_is_a_product_of_ratios_capped_at_one(mass, p, q, expected):
    assert kernels.block_mass(mass, p, q) == expected
    assert kernels.block_mass(*(torch.tensor([x]) for x in (mass, p, q))).tolist() == [expected]


@pytest.mark.parametrize(("accepted", "lag"), [(0, 1), (2, 1), (4, 1), (5, 2)])
def test_draft_lags_by_two_only_after_full_acceptance(accepted, lag):
    seq_len, k = 10, 5
    new_seq_len = seq_len + kernels.num_kept(accepted)
    assert new_seq_len - kernels.draft_cached_after(seq_len, k, new_seq_len) == lag


@pytest.mark.parametrize(("p", "q"), [(0.5, 0.25), (0.25, 0.5), (0.25, 0.25), (0.0, 1.0)])
def test_overlap_and_residual_add_up_to_the_target(p, q):
    assert kernels.overlap(p, q) + kernels.residual(p, q) == p
