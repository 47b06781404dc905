"""A head drafts from the target's own states: the right ones, in every layout, and the output does not change."""

import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident

import pytest
import torch
from safetensors.torch import load_file, save_file

from refimpl import InputError, Request, generate, load_pair, make_pair
from refimpl.core.config import LAYOUTS, SCHEDULERS
from refimpl.core.invariants import InvariantViolation
from refimpl.core.sequence import Sequence
from refimpl.decoding.drafters import TargetStates, states
from refimpl.decoding.drafters.states import check_places
from refimpl.models.table_model import table_pair
from refimpl.pairs.heads import NORMS, load_head, save_head
from refimpl.pairs.names import TINY
from refimpl.pairs.random_pairs import random_pair
from tests.outputs import tokens

METHODS = ["+".join(parts) for parts in itertools.product(LAYOUTS, SCHEDULERS)]
RULES = {"greedy": {}, "coupled": {"temperature": 0.5, "seed": 3}}
PROMPTS = [[3, 1, 4], [5], [7, 2], [3, 1, 4, 1, 5, 9, 2, 6], [7, 2, 2]]
SETTINGS = {"drafter": "head", "batch_size": 3, "max_new_tokens": 16, "num_speculative_tokens": 4}


@pytest.fixture(scope="module")
def scripted():
    return table_pair({3: [True, True, False] * 8, 7: [True, False] * 12})


@pytest.mark.parametrize("method", METHODS)
def test_equal_to_the_oracle(scripted, method):
    """Of one row and the next in the table of methods, one is sampled."""
    rule = ("greedy", "coupled")[sum(divmod(METHODS.index(method), len(SCHEDULERS))) % 2]
    wanted = generate(scripted, PROMPTS, method="autoregressive", max_new_tokens=16, **RULES[rule])
    found = generate(scripted, PROMPTS, method=method, checks="device", **SETTINGS, **RULES[rule])
    assert tokens(found) == tokens(wanted)
    assert found.stats.drafters["head"].accepted > 10
    assert not any(row.looked_up or row.draft_passes for record in found.rounds for row in record.rows)


@pytest.mark.parametrize("kind", ["llama", "opt"])
def test_equal_in_float64(kind):
    pair = random_pair(kind, vocab_size=17)
    wanted = tokens(generate(pair, PROMPTS, method="autoregressive", max_new_tokens=10))
    for method in ("inplace", "paged+continuous", "masked", "exspec"):
        found = generate(pair, PROMPTS, method=method, checks="oracle", **SETTINGS | {"max_new_tokens": 10})
        assert tokens(found) == wanted
        assert found.stats.drafters["head"].drafted > 20


@pytest.mark.parametrize("method", ["paged", "eqspec"])
def test_tokens_under_rejection_do_not_depend_on_the_batch(scripted, method):
    sampled = SETTINGS | {"acceptance": "rejection", "temperature": 1.0}
    wanted = tokens(generate(scripted, PROMPTS, method="inplace", **sampled | {"batch_size": 1}))
    assert tokens(generate(scripted, PROMPTS, method=method, **sampled)) == wanted


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("inplace", {"draft_budget": "confidence:0.02"}),  # pads of a pass are left out
        ("paged+continuous", {"token_budget": 20}),
        ("paged", {"shape_stable": True}),
        ("masked+fifo", {}),
        ("eqspec", {}),
        ("rollback", {}),
    ],
)
def test_states_are_those_of_a_fresh_pass(llama, method, settings, monkeypatch):
    """Of the committed text but its last token."""
    used, of = [], TargetStates.of

    def spied(self, members):
        states = of(self, members)
        used.extend((m.token_ids[:-1], states[i][-1]) for i, m in enumerate(members) if self.has(m))
        return states

    monkeypatch.setattr(TargetStates, "of", spied)
    generate(llama, PROMPTS, method=method, **SETTINGS, **settings)
    assert len(used) > 20
    for text, state in used:
        assert torch.allclose(state, hidden_behind(llama.target.model, text), rtol=1e-9, atol=1e-12)


@torch.inference_mode()
def hidden_behind(model, text):
    seen = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, read: seen.append(read[0]))
    model(input_ids=torch.tensor([text]), use_cache=False)
    hook.remove()
    return seen[0][0, -1]


def test_states_are_handed_out_only_where_they_are_asked_for(llama, monkeypatch):
    def refuse():
        raise AssertionError("hidden states are asked for")

    monkeypatch.setattr(llama.target.model, "get_decoder", refuse)
    generate(llama, PROMPTS, **SETTINGS | {"drafter": "model"})
    with pytest.raises(AssertionError, match="asked for"):
        generate(llama, PROMPTS, **SETTINGS)


def test_threads_that_share_a_pair_get_their_own_states(llama):
    """Another thread's pass runs the layers while this one's has not ended."""
    model, alone = llama.target.model, generate(llama, PROMPTS, **SETTINGS)
    decoder, main = model.get_decoder(), get_ident()

    def run_beside(*_):
        if get_ident() == main:
            with ThreadPoolExecutor(1) as other:
                other.submit(torch.inference_mode(decoder), torch.tensor([[1, 2, 3]])).result()

    hook = model.register_forward_hook(run_beside)
    try:
        beside = generate(llama, PROMPTS, **SETTINGS)
    finally:
        hook.remove()
    assert tokens(beside) == tokens(alone)
    assert beside.stats.acceptance == alone.stats.acceptance


@pytest.mark.parametrize("place", [(1, 3, 7), (0, 4, 7), (0, 3, 6)])
def test_a_state_of_another_place_is_noticed(place):
    row = Sequence(0, [9, 9, 9, 7, 5], 4)
    check_places(row, torch.tensor([(0, 2, 9), (0, 3, 7)]))
    with pytest.raises(InvariantViolation, match=r"INV-22 in row 0: .*expected sequence 0, position 3, token 7, found"):
        check_places(row, torch.tensor([(0, 2, 9), place]))


def test_the_state_of_a_row_that_has_left_is_forgotten(llama, monkeypatch):
    forgotten, forget = [], TargetStates.forget

    def noted(self, sequence):
        forget(self, sequence)
        forgotten.append(sequence.index)
        assert not self.has(sequence)

    monkeypatch.setattr(TargetStates, "forget", noted)
    generate(llama, PROMPTS, method="inplace", **SETTINGS)
    assert set(forgotten) == set(range(len(PROMPTS)))


@pytest.mark.parametrize(("level", "looks"), [("host", False), ("device", True)])
def test_places_are_compared_where_checks_read_the_device(llama, level, looks, monkeypatch):
    seen = []
    monkeypatch.setattr(states, "check_places", lambda sequence, _: seen.append(sequence.index))
    generate(llama, PROMPTS, method="inplace", checks=level, **SETTINGS)
    assert bool(seen) is looks


def test_rows_without_drafts_do_not_keep_others_from_theirs(scripted):
    prompts = [Request(prompt, num_speculative_tokens=k) for prompt, k in zip(PROMPTS, (0, 4, 0, 4, 4), strict=True)]
    result = generate(scripted, prompts, method="inplace+static", **SETTINGS | {"batch_size": 5})
    second = {row.sequence: row.drafted for row in result.rounds[1].rows}
    assert second == {0: 0, 1: 4, 2: 0, 3: 4, 4: 4}


def test_the_first_round_has_no_drafts(scripted):
    result = generate(scripted, PROMPTS[:1], **SETTINGS)
    drafted = [record.rows[0].drafted for record in result.rounds]
    assert drafted[0] == 0
    assert all(drafted[1:-1])


# --- files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(llama, tmp_path):
    save_head(tmp_path / "head.safetensors", llama.head.block, llama.target.model)
    return tmp_path / "head.safetensors"


def test_a_head_may_lie_in_the_users_folder(llama, saved, monkeypatch):
    monkeypatch.setenv("HOME", str(saved.parent))
    assert make_pair(llama.target.model, head=f"~/{saved.name}", stop_token_ids=()).head is not None


def test_a_head_is_read_as_it_was_written(llama, saved):
    state = torch.get_rng_state()
    head = load_head(saved, llama.target.model)
    assert torch.equal(torch.get_rng_state(), state)
    for found, wanted in zip(head.block.parameters(), llama.head.block.parameters(), strict=True):
        assert found.dtype == torch.float64
        assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-6)
    pair = make_pair(llama.target.model, head=saved, stop_token_ids=())
    assert generate(pair, PROMPTS, **SETTINGS).stats.drafters["head"].drafted


def test_a_head_is_written_whole_or_not_at_all(llama, saved, monkeypatch):
    before = saved.read_bytes()
    with pytest.raises(InputError, match=r"cannot write .*nowhere/head.safetensors: the folder .* does not exist"):
        save_head(saved.parent / "nowhere" / "head.safetensors", llama.head.block, llama.target.model)
    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_head(saved, llama.head.block, llama.target.model)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"kind": "llama", "vocab_size": 50},
            "was trained for a target with a hidden size of 32 and 61 ids, not 32 an",
        ),
        ({"kind": "llama", "seed": 5}, "was trained for another target: choose one that was trained for this one"),
    ],
)
def test_a_head_of_another_target_is_refused(saved, other, message):
    target = random_pair(other.pop("kind"), **other).target.model
    with pytest.raises(InputError, match=f"the head .*head.safetensors {message}"):
        make_pair(target, head=saved)


def test_what_is_no_head_is_refused(saved, llama, tmp_path):
    tensors = load_file(saved)
    damaged = {
        "norms.safetensors": {name: t for name, t in tensors.items() if name != NORMS},
        "width.safetensors": tensors | {"outer.weight": tensors["outer.weight"][:, 1:].contiguous()},
        "more.safetensors": tensors | {"more": tensors[NORMS].clone()},
        "one.safetensors": tensors | {NORMS: tensors[NORMS][0].clone()},
        "table.safetensors": tensors | {NORMS: tensors[NORMS][:, None].repeat(1, 2)},
    }
    for name, content in damaged.items():
        save_file(content, tmp_path / name)
        with pytest.raises(InputError, match=f"cannot load the head .*{name}: its tensors are not those of a draft"):
            load_head(tmp_path / name, llama.target.model)
    (tmp_path / "text").write_text("no tensors")
    for name, reason in (("text", ""), ("nothing", "it is no file, and no checkpoint")):
        with pytest.raises(InputError, match=f"cannot load the head .*{name}: {reason}"):
            load_head(tmp_path / name, llama.target.model)


def test_a_pair_without_a_head(llama):
    with pytest.raises(InputError, match="the pair 'random llama' has no draft head: load one that was trained for"):
        generate(dataclasses.replace(llama, head=None), PROMPTS, **SETTINGS)
    with pytest.raises(InputError, match="drafter 'head' needs a head that was trained for qwen3: give its file"):
        load_pair("qwen3", drafter="head", random_weights=True)


def test_the_bundled_head(bundled_prompts):
    """In float32, without the draft."""
    pair = load_pair("tiny", drafter="head")
    assert pair.draft is None
    assert (TINY / "head.safetensors").stat().st_size < 2e6
    given = {"max_prompt_tokens": 64, "max_new_tokens": 24}
    for rule in RULES.values():
        wanted = generate(pair, bundled_prompts[:6], method="autoregressive", **given, **rule)
        for method in ("inplace", "paged", "exspec"):
            found = generate(pair, bundled_prompts[:6], method=method, batch_size=4, drafter="head", **given, **rule)
            assert tokens(found) == tokens(wanted)
            assert found.stats.acceptance.mean_acceptance_length > 1.5
