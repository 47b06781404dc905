"""A draft whose context is shorter than a row stops drafting there; output stays exact."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from refimpl import generate
from refimpl.decoding.acceptance.records import Proposal
from refimpl.decoding.drafters.base import Drafts
from refimpl.pairs import make_pair

CONTEXT, NUM_NEW = 16, 14
LENGTHS = (2, 9, 12, CONTEXT - 1, CONTEXT, 30)  # of prompts
WAYS = [
    {"method": "inplace"}, {"method": "paged+continuous", "block_size": 4}, {"method": "exspec"},
    {"method": "masked+static"}, {"method": "rollback"}, {"method": "inplace", "execution": "overlapped"},
    {"method": "inplace", "cuda_graphs": True, "checks": "host"}, {"method": "paged+continuous", "joint_prefill": True},
    {"method": "inplace", "drafter": "hybrid"}, {"method": "inplace", "temperature": 0.8, "acceptance": "coupled"},
    {"method": "paged", "kv_memory_gib": 1.2e-4, "block_size": 4},
]  # fmt: skip


@pytest.fixture(scope="module")
def pair():
    """Learned positions: a draft that is fed one it does not know fails."""
    small = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    target = GPT2LMHeadModel(GPT2Config(**small, n_positions=64)).double()
    draft = GPT2LMHeadModel(GPT2Config(**small, n_positions=CONTEXT)).double()
    weights = target.state_dict()
    draft.load_state_dict(weights | {"transformer.wpe.weight": weights["transformer.wpe.weight"][:CONTEXT]})
    return make_pair(target, draft, stop_token_ids=())


def prompts():
    return [[(3 * i + n) % 61 for i in range(n)] for n in LENGTHS]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_rows_outgrow_the_draft_and_stay_exact(pair, way):
    settings = {"max_new_tokens": NUM_NEW, "batch_size": 4, "num_speculative_tokens": 3, "checks": "oracle"} | way
    rule = {name: settings[name] for name in ("temperature", "acceptance") if name in settings}
    expected = generate(pair, prompts(), method="autoregressive", max_new_tokens=NUM_NEW, **rule)
    found = generate(pair, prompts(), **settings)
    assert [s.token_ids for s in found.sequences] == [s.token_ids for s in expected.sequences]
    rows = [row for each in found.rounds for row in each.rows]
    assert max(row.seq_len + row.drafted for row in rows if row.drafted) == CONTEXT
    assert found.stats.num_preemptions > 0 or "kv_memory_gib" not in way
    assert found.stats.acceptance.mean_acceptance_length > 1


def test_a_draft_is_not_fed_prompts_that_fill_its_context(pair):
    fed = []
    hook = pair.draft.model.register_forward_pre_hook(lambda *_: fed.append(1))
    generate(pair, [[5] * CONTEXT, [7] * 40], max_new_tokens=4)
    hook.remove()
    assert fed == []


def test_a_row_that_sits_out_has_nothing():
    drafts = Drafts(Proposal(torch.tensor([[4, 5], [6, 0]])), [2, 1], [2, 1], 3, [(0.5, 0.2), (0.1,)], [1, 2])
    spread = drafts.spread([0, 2], 3)
    assert (spread.lengths, spread.looked_up, spread.caught_up) == ([2, 0, 1], [2, 0, 1], [1, 0, 2])
    assert (spread.survival, spread.skipped, spread.passes) == ([(0.5, 0.2), (), (0.1,)], {1}, 3)
    assert [spread.proposal.tokens[i].tolist() for i in (0, 2)] == [[4, 5], [6, 0]]
