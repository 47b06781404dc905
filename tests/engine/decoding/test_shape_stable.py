"""Shape-stable execution: the same bits as plain decoding in the same shapes, whatever the neighbours."""

from dataclasses import replace

import pytest
import torch
from transformers import MixtralConfig

from refimpl import InputError, Request, generate, load_pair
from refimpl.core import kernels
from refimpl.core.config import SCHEDULERS
from refimpl.core.invariants import InvariantViolation
from refimpl.decoding import assembly
from refimpl.decoding.memory import pool_gib
from refimpl.judging.equivalence import verify
from refimpl.layouts import InplaceLayout, make_layout
from refimpl.layouts.store import RowState
from refimpl.models.adapter import Pair
from refimpl.models.table_model import VOCAB_SIZE, ScriptedDraft, TableModel, table_pair
from refimpl.pairs import make_pair
from refimpl.pairs.names import TINY
from refimpl.pairs.random_pairs import random_models, random_pair
from refimpl.placement import PoolSize
from refimpl.prompts import read_prompts

SAMPLING = {"temperature": 0.9, "top_p": 0.95, "seed": 3}
EXPERTS = {
    "vocab_size": 61, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_local_experts": 4, "max_position_embeddings": 64,
}  # fmt: skip
SHORT = {"max_new_tokens": 12, "max_prompt_tokens": 40}


@pytest.fixture(scope="module")
def prompts():
    return read_prompts(TINY / "prompts.jsonl", "first", 6)


def by_rule_and_dtype():
    """Each rule and each number format every day, their other pairs by night."""
    return [
        pytest.param(sampling, dtype, id=f"{name}-{dtype}", marks=[pytest.mark.nightly] * (daily is not dtype))
        for name, sampling, daily in (("greedy", {}, torch.bfloat16), ("coupled", SAMPLING, torch.float32))
        for dtype in (torch.bfloat16, torch.float32)
    ]


@pytest.mark.parametrize(("sampling", "dtype"), by_rule_and_dtype())
def test_every_bit_is_plain_decodings(tiny, prompts, sampling, dtype):
    pair = in_dtype(tiny, dtype)
    methods = [*(f"inplace+{scheduler}" for scheduler in SCHEDULERS), "paged+continuous"]
    settings = {"batch_sizes": (1, 3), "num_speculative_tokens": 3, **SHORT, **sampling}
    report = verify(pair, prompts, methods=methods, bitwise=True, **settings)
    assert [(row.method, row.batch_size, row.bitwise) for row in report.results] == [
        (method, size, 6) for method in methods for size in (1, 3)
    ]
    assert report.exact


def test_experts_keep_every_bit_where_no_product_is_of_several_rows():
    """By default the tokens of an expert are one product, and its size decides how they are added up."""
    config = MixtralConfig(**EXPERTS)
    models = random_models(config, seed=3, dtype=torch.float32, draft_noise=0.02, experts_implementation="batched_mm")
    settings = {"batch_sizes": [4], "bitwise": True, "max_new_tokens": 8}
    pair, prompts = make_pair(*models), [[1, 2, 3], [5], [7, 8, 7, 8], [9] * 11]
    report = verify(pair, prompts, methods=["inplace", "paged"], **settings)
    assert [row.bitwise for row in report.results] == [4, 4]
    models[0].set_experts_implementation("grouped_mm")
    for method in ("inplace", "autoregressive"):
        with pytest.raises(InputError, match=r"shape_stable: .*set_experts_implementation\('batched_mm'\)"):
            generate(pair, prompts, method=method, shape_stable=True, max_new_tokens=2)


@pytest.mark.parametrize("method", ["autoregressive", "inplace"])
def test_recurrent_states_are_refused(method):
    with pytest.raises(InputError, match="shape_stable: table keeps recurrent states"):
        generate(table_pair(recurrent=True), [[1, 2, 3]], method=method, shape_stable=True)


def test_a_draft_that_never_runs_is_asked_nothing():
    pair = Pair(TableModel(), ScriptedDraft({}, recurrent=True), vocab_size=VOCAB_SIZE)
    pair.draft.recordable = False
    want = generate(pair, [[1, 2, 1]], method="autoregressive", max_new_tokens=8).sequences[0].token_ids
    for settings in ({"shape_stable": True}, {"cuda_graphs": True, "checks": "host"}):
        with pytest.raises(InputError, match=r"recurrent states|its states wait"):
            generate(pair, [[1, 2, 1]], method="inplace+static", **settings)
        for idle in ({"drafter": "ngram"}, {"num_speculative_tokens": 0})["cuda_graphs" in settings :]:
            found = generate(pair, [[1, 2, 1]], method="inplace+static", max_new_tokens=8, **settings, **idle)
            assert found.sequences[0].token_ids == want


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "inplace"},
        {"method": "inplace+static", "cuda_graphs": True, "checks": "off"},
        {"method": "paged", "block_size": 4},
        {"method": "paged+continuous", "token_budget": 9},
    ],
    ids=lambda settings: settings["method"],
)
def test_float64_adds_up_every_row_alike(settings):
    """Its matrix kernels add up the last rows otherwise where rows times tokens are no multiple of 4."""
    pair = random_pair("llama", draft_noise=0.02, dtype=torch.float64)
    requests = [Request([7 * i + 1, 3 + i, i], sequence_id=i) for i in range(5)]
    for batch_size, k in ((3, 2), (2, 4), (5, 0)):
        shape = {"batch_size": batch_size, "num_speculative_tokens": k, "shape_stable": True, "max_new_tokens": 9}
        alone = generate(pair, requests, method="autoregressive", logprobs=0, **shape).sequences
        found = generate(pair, requests, logprobs=0, **shape, **settings).sequences
        assert [s.logprobs for s in found] == [s.logprobs for s in alone], (batch_size, k)


def rounding_in_large_passes(kind):
    """A pair whose linear layers round what they read to steps of 1/32 in passes of more than 16 tokens."""
    pair = random_pair(kind, dtype=torch.float32)

    def rounded(_, read):
        return (read[0].mul(32).round().div(32) if read[0].shape[:-1].numel() > 16 else read[0],)

    for module in pair.target.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(rounded)
    return make_pair(pair.target.model, pair.draft.model, stop_token_ids=())


def test_numbers_that_depend_on_the_shape_of_a_pass_need_shape_stable(ragged_prompts):
    pair, settings = rounding_in_large_passes("llama"), {"max_new_tokens": 8, "batch_size": 4}
    with pytest.raises(InputError, match=r"depend on the shape of a pass .*: use shape_stable$"):
        generate(pair, ragged_prompts, **settings)
    assert verify(
        pair, ragged_prompts, methods=["inplace", "paged"], batch_sizes=[4], max_new_tokens=8, bitwise=True
    ).exact
    assert generate(random_pair("llama", dtype=torch.float32), ragged_prompts, **settings).sequences


def test_pads_that_fill_a_window_are_checked(llama, monkeypatch):
    """Three tokens a row are fed, and one pad."""
    built = InplaceLayout.block

    def shifted(self, tokens, offset):
        block = built(self, tokens, offset)
        ahead = torch.tensor([0, 0, 0, 1]) if tokens.shape[1] == 4 else 0
        return replace(block, position_ids=block.position_ids + ahead)

    settings = {"method": "inplace", "num_speculative_tokens": 2, "shape_stable": True, "max_new_tokens": 9}
    generate(llama, [[1, 2]], checks="device", **settings)
    monkeypatch.setattr(InplaceLayout, "block", shifted)
    with pytest.raises(InvariantViolation, match="INV-2"):
        generate(llama, [[1, 2]], checks="device", **settings)


def test_bits_are_counted_where_log_probabilities_say_them(tiny, prompts):
    """Shape-stable runs without them are compared by their tokens alone, with an oracle in the shapes of each batch."""
    counted = {}
    for settings in ({"shape_stable": True}, {"shape_stable": True, "logprobs": 0}):
        report = verify(tiny, prompts[:3], methods=["inplace"], batch_sizes=(1, 3), **SHORT, **settings)
        assert report.exact
        assert [report.references[size].config.batch_size for size in (1, 3)] == [1, 3]
        counted["logprobs" in settings] = [row.bitwise for row in report.results]
    assert counted == {False: [None, None], True: [3, 3]}


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_preempted_rows_have_the_same_bits(tiny, prompts, num_drafts):
    """What was generated is cached again in the shape of the verify passes, and what was a prompt in its own."""
    prompts = [tiny.tokenizer(text)["input_ids"][:20] for text in prompts[:4]]
    settings = {"max_new_tokens": 16, "num_speculative_tokens": num_drafts, "block_size": 4}
    for method in ("paged", "paged+continuous"):
        need = (max(map(len, prompts)) + 16) // 4 + 2
        room = pool_gib(tiny, need, 4)
        report = verify(
            tiny, prompts, methods=[method], batch_sizes=(3,), bitwise=True, kv_memory_gib=room, **settings
        ).results[0]
        assert report.stats.num_preemptions > 0
        assert report.bitwise == len(prompts)


def test_a_prompt_shares_no_block_that_a_row_has_generated(tiny, prompts, monkeypatch):
    """That was cached in passes of another shape: if all text is shared, the bits of the second row differ."""
    prompt = tiny.tokenizer(prompts[0])["input_ids"][:20]
    settings = {"max_new_tokens": 16, "num_speculative_tokens": 3, "block_size": 4}
    begun = generate(tiny, [prompt], **settings).sequences[0].token_ids
    given = [prompt, prompt + begun[:12]]
    found = []
    for _ in range(2):
        report = verify(tiny, given, methods=["paged"], batch_sizes=(1,), bitwise=True, **settings).results[0]
        found.append((report.bitwise, report.stats.num_prefix_hits))
        monkeypatch.setattr(assembly, "sharing_of", lambda _: "texts")
    assert found == [(2, 12), (1, 24)], "full blocks of the prompt are shared, or of all the text"


def test_rows_that_are_missing_are_idle_slots_in_order(tiny):
    size = PoolSize(rows=5, columns=32, batch_rows=4)
    layout = make_layout("inplace", tiny.target.kv_shape, size, max_positions=99, tagged=False, block_rows=4)
    rows = [RowState(3, 7, 9, 8), RowState(1, 6, 5, 4)]
    filled, places = layout._with_idle_rows(rows, 4)
    assert [(row.slot, row.sequence, row.finished) for row in filled] == [
        (0, -1, True), (1, 6, False), (2, -1, True), (3, 7, False),
    ]  # fmt: skip
    assert places.tolist() == [3, 1]


def test_neighbours_order_and_budgets_change_no_bit(tiny, prompts):
    pair = in_dtype(tiny, torch.bfloat16)
    settings = {"method": "inplace", "batch_size": 3, "shape_stable": True, "logprobs": 0, **SHORT}
    requests = [Request(prompt, sequence_id=i) for i, prompt in enumerate(prompts[:4])]
    whole = generate(pair, requests, **settings).sequences
    backwards = generate(pair, requests[::-1], **settings).sequences[::-1]
    assert [s.logprobs for s in backwards] == [s.logprobs for s in whole]
    others = [Request(p, 3 + i, i % 4, sequence_id=i) for i, p in enumerate(prompts[1:4], start=1)]
    mixed = generate(pair, [requests[0], *others], **settings).sequences
    assert mixed[0].logprobs == whole[0].logprobs, "budgets and k of the neighbours differ"


def test_without_it_the_shape_shows(tiny, prompts):
    """The power of the comparison: ordinary passes in bfloat16 do differ in their last bits."""
    pair = in_dtype(tiny, torch.bfloat16)
    settings = {"logprobs": 0, **SHORT}
    plain = generate(pair, prompts[:3], method="autoregressive", **settings).sequences
    batched = generate(pair, prompts[:3], method="inplace", batch_size=3, **settings).sequences
    assert any(a.logprobs != b.logprobs for a, b in zip(plain, batched, strict=True))


def test_checks_stay_at_the_level_of_the_device(llama, monkeypatch):
    """A mask that shows one column too many changes no integer of the host: only the blocks themselves show it.

    Without drafts all passes are the target's, whose shape is fixed.
    """
    assert generate(llama, [[1, 2]], shape_stable=True, max_new_tokens=2).environment["checks"] == "device"
    right = kernels.visible_by_position
    monkeypatch.setattr(kernels, "visible_by_position", lambda slot, query: right(slot, query + 1))
    with pytest.raises(InvariantViolation, match="INV-3"):
        generate(llama, [[1, 2, 3]], shape_stable=True, max_new_tokens=2, num_speculative_tokens=0)


@pytest.mark.parametrize("method", ["eqspec", "exspec", "masked+fifo", "rollback"])
def test_layouts_that_move_tokens_are_refused(tiny, method):
    with pytest.raises(InputError, match="shape-stable execution needs every token at a column of its own"):
        generate(tiny, [[1, 2]], method=method, shape_stable=True)


def in_dtype(pair, dtype):
    """The bundled pair in another number format."""
    return pair if dtype == torch.float32 else load_pair("tiny", dtype=str(dtype).removeprefix("torch."))
