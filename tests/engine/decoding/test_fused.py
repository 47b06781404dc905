"""Fused rules decide as the rules do: every bit of a decision, in graphs that are run by PyTorch's own operators."""

import importlib
import json
import os
from itertools import chain
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refimpl.core.config import make_config
from refimpl.decoding.acceptance import Proposal, RowNumbers, fuse, make_rule
from refimpl.decoding.sampling import PART, RowKeys, largest_of_parts

VOCAB, K = 2 * PART + 77, 3
COUPLED, REJECTION, BLOCK = ({"temperature": 0.8, "acceptance": rule} for rule in ("coupled", "rejection", "block"))
RULES = [
    ({}, "bfloat16"), ({"acceptance": "forced:0.2/0.3/0.1/0.4"}, "float32"), (COUPLED, "bfloat16"),
    (COUPLED | {"top_p": 0.9, "top_k": 40}, "float32"), (REJECTION | {"min_p": 0.1}, "bfloat16"), (BLOCK, "float32"),
]  # fmt: skip


def tied(generator, *shape, dtype):
    """Logits of which many are equal, the largest too."""
    return torch.randint(-4, 5, shape, generator=generator).to(dtype)


def numbers(batch, limits):
    keys = RowKeys(torch.arange(batch), torch.arange(batch) + 7, torch.full((batch,), 5))
    return RowNumbers(keys, 5 + torch.arange(K + 1).expand(batch, -1).contiguous(), limits)


def tensors(decision):
    drawn = [(each.mass, each.tokens, each.num_used) for each in decision.drawn]
    return [decision.num_accepted, decision.emitted, decision.table(), *chain.from_iterable(drawn)]


@pytest.mark.skipif("CHECK_SHAPES" in os.environ, reason="checks of shapes cannot be traced")
@pytest.mark.parametrize(("settings", "dtype"), RULES, ids=str)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)])
def test_a_fused_rule_gives_the_bits_of_the_rule(settings, dtype, backend):
    """Proposals, too. Some drafts are the target's own choices, so that they are accepted."""
    torch._dynamo.reset()
    rule, batch = make_rule(make_config(num_speculative_tokens=K, **settings)), 6
    fused, generator = fuse(rule, backend=backend, fullgraph=True), torch.Generator().manual_seed(0)
    draft, target = (tied(generator, batch, n, VOCAB, dtype=getattr(torch, dtype)) for n in (K, K + 1))
    given = numbers(batch, torch.randint(K + 1, (batch,), generator=generator))
    steps = [(draft[:, i : i + 1], given.keys, given.position[:, i : i + 1]) for i in range(K)]
    proposal, other = (Proposal.join([each.propose(*step) for step in steps]) for each in (rule, fused))
    assert torch.equal(proposal.tokens, other.tokens)
    target[:, :2] = draft[:, :2]
    decisions = [each.decide(proposal, target, given) for each in (rule, fused)]
    assert [d.whose for d in decisions[0].drawn] == [d.whose for d in decisions[1].drawn]
    assert decisions[1].ready is not None
    for found, expected in zip(*map(tensors, decisions[::-1]), strict=True):
        assert torch.equal(found, expected)


@given(st.integers(1, 3 * PART), st.sampled_from([0, 2, 9]), st.integers(0, 2**31), st.booleans())
def test_the_largest_of_parts_is_the_first_of_the_largest(size, spread, seed, odd):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-spread, spread + 1, (2, 2, size), generator=generator).double()
    if odd:
        places = torch.randint(size, (2, 2, 3), generator=generator)
        values.scatter_(-1, places, torch.tensor([torch.nan, torch.inf, -torch.inf]).double().expand(2, 2, 3))
    assert torch.equal(largest_of_parts(values), values.argmax(dim=-1))
    assert torch.equal(largest_of_parts(torch.full_like(values, -torch.inf)), torch.zeros(2, 2, dtype=torch.long))


def test_launches_are_those_of_the_page(monkeypatch):
    """Those of fused rules need Triton to be counted: they stay as committed."""
    root = Path(__file__).parents[3]
    monkeypatch.syspath_prepend(str(root / "tools"))
    launches = importlib.import_module("launches")
    monkeypatch.setattr(launches, "lowered", lambda *_: 0)
    committed = json.loads((root / "docs/results/launches.json").read_text())["decisions"]
    for rule, row in zip(launches.RULES, committed, strict=True):
        found = launches.decisions(*rule)
        assert {name: found[name]["operators"] for name in ("proposal", "decision")} == {
            name: row[name]["operators"] for name in ("proposal", "decision")
        }
    greedy, coupled = (row["decision"] for row in committed)
    said = (
        f"a greedy decision takes {greedy['fused']} launches instead of {greedy['operators']}, a coupled one "
        f"{coupled['fused']} instead of {coupled['operators']} "
    )
    assert said in " ".join((root / "docs/architecture.md").read_text().split())
