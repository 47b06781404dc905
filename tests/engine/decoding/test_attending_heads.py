"""Heads with K/V of their own: output as without them, and drafts as of passes that cache nothing."""

import json
import random
import re

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from refimpl import InputError, Request, generate, load_pair
from refimpl.cli import app
from refimpl.core.invariants import InvariantViolation
from refimpl.decoding.drafters import HeadDrafter
from refimpl.decoding.drafters import head as head_drafter
from refimpl.decoding.prefill import STABLE_PREFILL_TOKENS
from refimpl.models.attending_head import AttendingHead
from refimpl.models.dflash import DFlashHead
from refimpl.models.eagle3 import Eagle3Head
from refimpl.models.mtp import MtpHead
from tests.engine.heads_on_disk import (
    CONFIGURATIONS,
    SMALL,
    VOCAB_SIZE,
    write_checkpoint,
    write_dflash,
    write_eagle3,
    write_llama,
)
from tests.outputs import tokens

EAGLE3 = {
    "eagle3": {},
    "eagle3, two layers": {
        "family": "qwen3", "num_layers": 2, "norm_before_fc": True, "norm_before_residual": False, "drafts": VOCAB_SIZE,
    },
}  # fmt: skip
SPECULATORS = dict.fromkeys(EAGLE3, write_eagle3) | {"dflash": write_dflash}
READS_MTP = hasattr(transformers.modeling_layers, "MtpModel")
mtp = pytest.mark.skipif(not READS_MTP, reason="this transformers reads no MTP layers")
BY_NIGHT = {"deepseek": [pytest.mark.nightly]}  # as two of its layers show the same
KINDS = [*(pytest.param(name, marks=[mtp, *BY_NIGHT.get(name, [])]) for name in CONFIGURATIONS), *SPECULATORS]
NAMES = [*(CONFIGURATIONS if READS_MTP else ()), *SPECULATORS]
PROMPTS = [[3, 1, 4], [5], [7, 2], [3, 1, 4, 1, 5, 9, 2, 6], [7, 2, 2]]
METHODS = ["inplace", "paged+continuous", "eqspec", "rollback+fifo", "masked+grouped", "realigned+continuous"]
SAMPLED = {"temperature": 3.0, "seed": 7}
COUPLED = SAMPLED | {"acceptance": "coupled"}  # most drafts are accepted
SETTINGS = {"drafter": "head", "batch_size": 3, "max_new_tokens": 14, "num_speculative_tokens": 4, "checks": "device"}


@pytest.fixture(scope="module")
def pairs(folders):
    """By name, made when asked for."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = load_pair(drafter="head", dtype="float64", stop_token_ids=[], **folders(name))
        return made[name]

    return make


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of target and head, by the head's name."""

    def write(name):
        target = tmp_path_factory.mktemp("target")
        if name in CONFIGURATIONS:
            return {"target": write_checkpoint(name, target)}
        model = transformers.AutoModelForCausalLM.from_pretrained(write_llama(target))
        return {
            "target": target,
            "head": SPECULATORS[name](tmp_path_factory.mktemp("head"), model, **EAGLE3.get(name, {})),
        }

    return write


def by_transformers(model, prompt, num_tokens):
    ids = model.generate(torch.tensor([prompt]), max_new_tokens=num_tokens, do_sample=False, eos_token_id=None)
    return ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", KINDS)
def test_output_is_that_without_drafts(pairs, name):
    pair = pairs(name)
    greedy = [by_transformers(pair.target.model, prompt, 14) for prompt in PROMPTS]
    for i, rule in enumerate(({}, COUPLED)):
        wanted = tokens(generate(pair, PROMPTS, method="autoregressive", max_new_tokens=14, **rule))
        assert rule or wanted == greedy
        for method in METHODS[i::2]:
            found = generate(pair, PROMPTS, method=method, **SETTINGS, **rule)
            assert tokens(found) == wanted
            assert not rule or found.stats.drafters["head"].accepted > 15


@pytest.mark.parametrize("acceptance", ["rejection", "block"])
def test_sampled_tokens_do_not_depend_on_the_batch(pairs, acceptance):
    sampled = SETTINGS | SAMPLED | {"acceptance": acceptance}
    wanted = tokens(generate(pairs("eagle3"), PROMPTS, method="inplace", **sampled | {"batch_size": 1}))
    for method in ("paged+continuous", "eqspec"):
        assert tokens(generate(pairs("eagle3"), PROMPTS, method=method, **sampled)) == wanted


# --- drafts ------------------------------------------------------------------------------------------------------


@pytest.fixture
def drafted(monkeypatch):
    """Of every row that was drafted for: its text, where the head begins in it, its drafts and their logits."""
    found, logits, draft = [], [], HeadDrafter.draft

    def watched(begin, self, rows):
        chain = begin(self, rows)
        feed, chain.feed = chain.feed, lambda tokens: logits.append(feed(tokens)[:, 0]) or logits[-1][:, None]
        return chain

    def noted(self, members, limits, numbers):
        logits.clear()
        drafts = draft(self, members, limits, numbers)
        tokens = drafts.proposal.tokens.tolist()
        for i, (member, n) in enumerate(zip(members, drafts.lengths, strict=True)):
            if n:
                first, _ = self._entries[member.index]
                found.append((list(member.token_ids), first, tokens[i][:n], [each[i] for each in logits[:n]]))
        return drafts

    for head in (AttendingHead, DFlashHead):
        monkeypatch.setattr(head, "begin", lambda self, rows, begin=head.begin: watched(begin, self, rows))
    monkeypatch.setattr(HeadDrafter, "draft", noted)
    return found


@torch.inference_mode()
def assert_fresh(pair, drafted):
    """Every draft's logits are those of whole passes without K/V; a head has states from `begin` on."""
    fresh = {MtpHead: fresh_mtp, Eagle3Head: fresh_eagle3, DFlashHead: fresh_dflash}[type(pair.head)]
    assert len(drafted) > 4
    for text, begin, drafts, found in drafted:
        for i, logits in enumerate(found):
            tokens = torch.tensor([text[begin + 1 :] + drafts[:i]])
            wanted = fresh(pair, text[:-1], tokens, begin, i)
            assert torch.allclose(logits.double(), wanted, rtol=1e-4, atol=1e-4)  # norms are rounded to float32


def fresh_mtp(pair, fed, tokens, begin, num_drafts):
    """As transformers masks its layers, behind the states of all that was fed."""
    mtp, depth = pair.head._mtp, pair.head.depth
    states = pair.target.model.get_decoder()(input_ids=torch.tensor([fed]), use_cache=False)[0][:, begin:]
    positions = torch.arange(begin + 1, begin + 1 + tokens.shape[1])[None]
    for step in range(num_drafts + 1):
        layer, n = min(step, depth - 1), states.shape[1]
        if step >= depth:  # the last layer goes on, behind its own last state
            states, n = torch.cat([read, states[:, -1:]], dim=1), n + 1
        read, part = states, slice(layer, layer + n)
        none = transformers.cache_utils.MtpCache(config=mtp.config)
        states = mtp.forward_layer(layer, read, positions[:, part], none, input_ids=tokens[:, part])
    return mtp.shared_head(states[0, -1])


def fresh_eagle3(pair, fed, tokens, begin, num_drafts):
    """From the tensors alone."""
    w, settings, states = told(pair, fed, begin)
    states = normed(states, w["input_norm.weight"]) if settings.norm_before_fc else states
    states = states @ w["fc.weight"].T
    for _ in range(num_drafts + 1):
        n = len(states)
        position, out = torch.arange(begin + 1, begin + 1 + n), states
        for i in range(settings.config.num_hidden_layers):
            layer = {name.removeprefix(f"layers.{i}."): t for name, t in w.items() if name.startswith(f"layers.{i}.")}
            own = normed(out, layer["input_layernorm.weight"])
            if i == 0:
                embedded = normed(w["embed_tokens.weight"][tokens[0, :n]], layer["input_layernorm.weight"])
                entered = normed(out, layer["hidden_norm.weight"])
                own, out = torch.cat([embedded, entered], dim=-1), entered if settings.norm_before_residual else out
            out = out + attention(own, own, layer, position, position)
            out = out + mlp_of(layer, out)
        states = torch.cat([states, out[-1:]])
    return over_target(w, settings, states[-1])


def fresh_dflash(pair, fed, tokens, begin, num_drafts):
    """From the tensors alone: masks behind the last committed token, which see each other."""
    w, settings, states = told(pair, fed, begin)
    states = normed(states @ w["fc.weight"].T, w["hidden_norm.weight"])
    last = tokens[0, len(fed) - begin - 1 :][:1].tolist()
    x = w["embed_tokens.weight"][last + [settings.mask_token_id] * (settings.block_size - 1)]
    position, block = torch.arange(begin, len(fed)), torch.arange(len(fed), len(fed) + settings.block_size)
    for i in range(settings.config.num_hidden_layers):
        layer = {name.removeprefix(f"layers.{i}."): t for name, t in w.items() if name.startswith(f"layers.{i}.")}
        own = normed(x, layer["input_layernorm.weight"])
        both, places = torch.cat([states, own]), torch.cat([position, block])
        x = x + attention(own, both, layer, block.new_full(block.shape, 10**6), places, block)
        x = x + mlp_of(layer, x)
    return over_target(w, settings, x[1 + num_drafts])


def told(pair, fed, begin):
    """Tensors of a head, its settings, and the states that it reads."""
    head = pair.head
    w = {name: tensor.double() for name, tensor in head.weights.state_dict().items()}
    found = pair.target.model(input_ids=torch.tensor([fed]), output_hidden_states=True).hidden_states
    last = []
    hook = pair.target.model.get_decoder().layers[-1].register_forward_hook(lambda *each: last.append(each[2]))
    pair.target.model(input_ids=torch.tensor([fed]))
    hook.remove()  # transformers norms the last of its states
    states = [*found[:-1], last[0]]
    return w, head._settings, torch.cat([states[i][0, begin:] for i in head.reads.layers], dim=-1).double()


def over_target(w, settings, state):
    logits = torch.full((VOCAB_SIZE,), -torch.inf, dtype=torch.float64)
    logits[(w["d2t"] + torch.arange(settings.draft_vocab_size)).long()] = w["lm_head.weight"] @ normed(
        state, w["norm.weight"]
    )
    return logits


def mlp_of(layer, x):
    own = normed(x, layer["post_attention_layernorm.weight"])
    gate = torch.nn.functional.silu(own @ layer["mlp.gate_proj.weight"].T)
    return (gate * (own @ layer["mlp.up_proj.weight"].T)) @ layer["mlp.down_proj.weight"].T


def normed(x, weight):
    return weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def attention(x, seen, layer, horizon, places, turned=None):
    """Of four heads on two, with RoPE: each query sees what is placed up to its horizon."""
    own = horizon if turned is None else turned
    q = (x @ layer["self_attn.q_proj.weight"].T).unflatten(-1, (-1, 8))
    k, v = ((seen @ layer[f"self_attn.{name}_proj.weight"].T).unflatten(-1, (-1, 8)) for name in "kv")
    if "self_attn.q_norm.weight" in layer:
        q, k = normed(q, layer["self_attn.q_norm.weight"]), normed(k, layer["self_attn.k_norm.weight"])
    q, k = rotated(q, own), rotated(k, places).repeat_interleave(2, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / 8**0.5
    scores = scores.masked_fill(horizon[:, None] < places, -torch.inf).softmax(-1)
    mixed = torch.einsum("hqk,khd->qhd", scores, v.repeat_interleave(2, dim=1))
    return mixed.flatten(1) @ layer["self_attn.o_proj.weight"].T


def rotated(x, position):
    turns = torch.polar(torch.ones(1), position[:, None] / 10000 ** (torch.arange(4) / 4)).to(torch.complex128)
    found = torch.complex(*x.chunk(2, dim=-1)) * turns[:, None]
    return torch.cat([found.real, found.imag], dim=-1)


@pytest.mark.parametrize("name", KINDS)
def test_drafts_are_those_of_passes_without_kv(pairs, name, drafted):
    """Where most are accepted, and where most are not."""
    for method, rule in (("inplace", {}), ("paged+continuous", COUPLED), ("eqspec", COUPLED)):
        generate(pairs(name), PROMPTS, method=method, **SETTINGS, **rule)
    assert all(begin == 0 for _, begin, *_ in drafted), "a head reads whole prompts"
    assert_fresh(pairs(name), drafted)


@pytest.mark.parametrize(
    "way",
    [
        {"method": "inplace", "execution": "overlapped"},
        {"method": "paged+continuous", "token_budget": 9, "joint_prefill": True, "block_size": 4},
        {"method": "inplace+static", "draft_budget": "confidence:0.12"},
        {"method": "inplace+fifo", "draft_budget": "by_load:2=1"},
    ],
)
def test_drafts_are_fresh_however_passes_are_run(pairs, way, drafted):
    requests = [Request(prompt, max_new_tokens=n) for prompt, n in zip(PROMPTS, (6, 9, 24, 14, 10), strict=True)]
    generate(pairs(NAMES[1]), requests, **SETTINGS | COUPLED | way)
    assert_fresh(pairs(NAMES[1]), drafted)


@pytest.mark.parametrize("settings", [{"method": "paged+continuous", "token_budget": 20}, {"shape_stable": True}])
def test_lean_layers_show_inner_states(folders, drafted, settings):
    pair = load_pair(drafter="head", dtype="float32", layers="lean", **folders("eagle3"))
    in_passes = [i % VOCAB_SIZE for i in range(STABLE_PREFILL_TOKENS + 3)]
    generate(pair, [*PROMPTS, in_passes], **SETTINGS | COUPLED | settings)
    assert_fresh(pair, drafted)


def test_kv_of_rejected_drafts_would_be_seen(pairs, drafted, monkeypatch):
    """By the run-time check, and without it by what is drafted."""
    monkeypatch.setattr(head_drafter, "cut", lambda entries, n: entries)
    with pytest.raises(InvariantViolation, match=r"^INV-22 .* expected K/V of 3 states before, found K/V of 6"):
        generate(pairs("eagle3"), PROMPTS, **SETTINGS)
    drafted.clear()
    generate(pairs("eagle3"), PROMPTS, **SETTINGS | {"checks": "host"})
    with pytest.raises(AssertionError):
        assert_fresh(pairs("eagle3"), drafted)


@pytest.mark.parametrize("seed", range(7))
def test_whatever_happens_to_a_row(pairs, drafted, seed):
    """Chunks, shared prefixes, preemptions, passes of one shape, rows that wait or have fewer drafts or none."""
    rng = random.Random(seed)
    stem = [rng.randrange(VOCAB_SIZE) for _ in range(9)]
    requests = [
        Request(
            stem[: rng.choice([0, 5, 9])] + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 7))],
            max_new_tokens=rng.randint(1, 16),
            num_speculative_tokens=rng.choice([0, 1, 4, 4]),
        )
        for _ in range(8)
    ]
    settings = {
        "method": rng.choice(["paged", "paged+fifo", "inplace+continuous"]),
        "token_budget": rng.choice([None, 6, 20]),
        "draft_budget": rng.choice(["fixed", "confidence:0.12", "by_load:2=1"]),
    }
    if settings["method"].startswith("paged"):
        settings |= {"block_size": 4}
    if settings["method"] == "paged+fifo":
        settings["token_budget"] = None
    name = NAMES[seed % len(NAMES)]
    settings["shape_stable"] = settings["token_budget"] is None and name in SPECULATORS  # others have experts
    pair = pairs(name)
    wanted = tokens(generate(pair, requests, method="autoregressive", **COUPLED))
    assert tokens(generate(pair, requests, **SETTINGS | COUPLED | settings)) == wanted
    assert_fresh(pair, drafted)


@mtp
def test_the_command_takes_a_folder(tmp_path):
    folder = write_checkpoint("glm", tmp_path / "glm")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": [3, 1, 4]}\n')
    words = ["generate", "--target", str(folder), "--drafter", "head", "--prompts", str(tmp_path / "prompts.jsonl")]
    done = CliRunner().invoke(app, [*words, "-n", "1", "--max-new-tokens", "8", "--json"])
    assert json.loads(done.stdout)["mean_acceptance_length"] > 1


# --- bad input ---------------------------------------------------------------------------------------------------


def refusal(target, head):
    with pytest.raises(InputError) as caught:
        load_pair(target, drafter="head", head=head)
    message = str(caught.value)
    assert "\n" not in message
    return message


@mtp
def test_checkpoints_without_mtp_layers_are_refused(tmp_path):
    llama = transformers.LlamaConfig(**SMALL, num_hidden_layers=1)
    transformers.LlamaForCausalLM(llama).save_pretrained(tmp_path / "plain")
    glm = write_checkpoint("glm", tmp_path / "glm")
    absent = "the checkpoint has no MTP layers, or not all of their tensors"
    assert absent in refusal(tmp_path / "plain", None)
    assert absent in refusal(glm, tmp_path / "plain")
    (tmp_path / "empty").mkdir()
    assert "empty/config.json: cannot be read" in refusal(glm, tmp_path / "empty")
    assert "it is no file, and no checkpoint" in refusal(glm, tmp_path / "nowhere")


@mtp
def test_mtp_layers_of_another_width_are_refused(tmp_path):
    glm = write_checkpoint("glm", tmp_path / "glm")
    wide = transformers.Glm4MoeConfig(**CONFIGURATIONS["glm"][3] | {"hidden_size": 48}, num_hidden_layers=1)
    transformers.Glm4MoeForCausalLM(wide).save_pretrained(tmp_path / "wide")
    assert "glm was trained for a target with a hidden size of 32, not 48" in refusal(tmp_path / "wide", glm)


FIELDS = [
    ("eagle3", {"speculators_model_type": "medusa"}, "must be eagle3 or dflash, not 'medusa'"),
    ("eagle3", {"target_hidden_size": 64}, "for a target with a hidden size of 64 and 11 ids, not 32 and 11"),
    ("eagle3", {"eagle_aux_hidden_state_layer_ids": [1, 2, 5]}, "must be layers in 1 … 4 of the target, each once"),
    ("eagle3", {"speculators_config": {"default_proposal_method": "dynamic_tree"}}, "a head that proposes trees"),
    ("eagle3", {"norm_before_fc": True}, 'its tensors: .*Missing key.*"input_norm.weight"'),
    ("eagle3", {"draft_vocab_size": None}, "config.json: it has no draft_vocab_size"),
    ("eagle3", {"transformer_layer_config": {}}, "its tensors|hidden size"),
    ("eagle3", {"transformer_layer_config": {"model_type": "gpt2"}}, "must be those of llama or qwen3, not 'gpt2'"),
    ("dflash", {"block_size": None}, "block_size must be in 2 … 1024, not None"),
    ("dflash", {"mask_token_id": VOCAB_SIZE}, "mask_token_id must be in 0 … 10, not 11"),
    ("dflash", {"sample_from_anchor": True}, "sample_from_anchor must be False, not True"),
    ("dflash", {"transformer_layer_config": SMALL | {"model_type": "llama"}}, "must be those of qwen3, not 'llama'"),
    ("dflash", {"aux_hidden_state_layer_ids": [1, 1]}, "aux_hidden_state_layer_ids must be layers in 1 … 4"),
]


@pytest.mark.parametrize(("head", "fields", "reason"), FIELDS)
def test_fields_that_do_not_fit_are_refused(folders, head, fields, reason):
    given = folders(head)
    path = given["head"] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    assert re.search(reason, refusal(**given))


def test_tensors_that_do_not_fit_are_refused(folders):
    given = folders("eagle3")
    path = given["head"] / "model.safetensors"
    tensors = load_file(path)
    for other, reason in (
        ({"d2t": tensors["d2t"] + VOCAB_SIZE}, "d2t must map to ids below 11"),
        ({"fc.weight": tensors["fc.weight"][1:]}, "size mismatch for fc.weight"),
        ({"more": tensors["norm.weight"].clone()}, "Unexpected key"),
    ):
        save_file(tensors | other, path)
        assert re.search(reason, refusal(**given))
    path.unlink()
    assert "there is no .safetensors file" in refusal(**given)
