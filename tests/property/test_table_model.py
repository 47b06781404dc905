"""The integer model itself: exact, and sensitive to everything that an engine can get wrong."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refimpl.layouts.store import Block
from refimpl.models.table_model import (
    ENTRY_BITS,
    MAX_POSITIONS,
    VOCAB_SIZE,
    TableModel,
    greedy_continuation,
    mix_tensor,
    mix_word,
    table_pair,
)
from refimpl.selfcheck.cases import Case, Row, acceptance_lengths, run_case

TOKENS = [3, 0, 16, 3, 7]


def plain_block(tokens: list[int], store: list[torch.Tensor] | None = None) -> Block:
    n = len(tokens)

    def append(layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if store is not None:
            store.append(torch.stack([keys[0], values[0]]))
        return keys, values

    mask = torch.ones(n, n, dtype=torch.bool).tril()[None, None]
    return Block(torch.tensor([tokens]), torch.arange(n)[None], mask, append)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5))
def test_the_two_hashes_are_the_same_function(words: list[int]) -> None:
    signed = torch.tensor([w - 2**64 if w >= 2**63 else w for w in words])
    assert [int(b) & (2**64 - 1) for b in mix_tensor(signed)] == [mix_word(w) for w in words]


def test_a_block_gives_the_plain_rows_logits_and_entries() -> None:
    model, entries = TableModel(), []
    found = model.forward(plain_block(TOKENS, entries), len(TOKENS))[0]
    feed = model.fresh_row()
    assert torch.equal(found, torch.stack([feed([token]) for token in TOKENS]))
    assert torch.equal(torch.stack(entries), model.fresh_kv(TOKENS))


def test_sums_stay_exact() -> None:
    assert MAX_POSITIONS * 2**ENTRY_BITS < 2**53
    assert TableModel().fresh_kv(TOKENS).max() > 2 ** (ENTRY_BITS - 6)


@pytest.mark.parametrize("broken", ["mask too narrow", "mask too wide", "position", "token", "entry"])
def test_every_kind_of_damage_changes_the_logits(broken: str) -> None:
    block = plain_block(TOKENS)
    right = TableModel().forward(block, 2)[0, 0].clone()
    if broken == "mask too narrow":
        block.mask[..., 3, 0] = False
    elif broken == "mask too wide":
        block.mask[..., 3, 4] = True
    elif broken == "position":
        block.position_ids[:, 1] = 2
    elif broken == "token":
        block.tokens[:, 1] = 5
    else:
        block = Block(block.tokens, block.position_ids, block.mask, lambda _, k, v: (k.roll(1, 2) * 0.5, v))
    assert not torch.equal(TableModel().forward(block, 2)[0, 0], right)


def test_damage_during_writing_is_remembered_by_the_second_layer() -> None:
    block, entries = plain_block(TOKENS, []), []
    block.mask[..., 1, 0] = False
    TableModel().forward(Block(block.tokens, block.position_ids, block.mask, plain_block(TOKENS, entries).append), 1)
    wrong = (torch.stack(entries) != TableModel().fresh_kv(TOKENS)).any(dim=-1)
    assert not wrong[0].any()
    assert wrong[1, :, 0].tolist() == [[False, True, False, False, False]] * 2


@given(prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=9))
def test_the_plain_continuation_is_the_oracles(prompt: list[int]) -> None:
    feed, fed, generated = TableModel().fresh_row(), prompt, []
    for _ in range(6):
        generated.append(int(feed(fed).argmax()))
        fed = generated[-1:]
    assert greedy_continuation(prompt, 6) == generated


@pytest.mark.parametrize("lengths", [[3, 0, 3, 3, 1], [0, 0, 0], [1, 2, 3], [3, 3]])
def test_a_script_forces_the_accepted_lengths(lengths: list[int]) -> None:
    budget = sum(lengths) + len(lengths)
    case = Case((Row((4, 4), budget, 3, None, acceptance_lengths(lengths, 3)),), batch_size=1)
    accepted = [record.rows[0].accepted for record in run_case(case).rounds]
    assert accepted[:-1] == lengths[:-1]  # the budget may cut the last round


def test_a_draft_without_script_is_always_right() -> None:
    case = Case((Row((1, 2, 3), 9, 2),))
    assert run_case(case, pair=table_pair()).stats.acceptance.draft_acceptance_rate == 1
