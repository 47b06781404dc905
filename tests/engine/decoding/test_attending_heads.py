"""Heads with K/V of their own: output as without them, and drafts as of passes that cache nothing."""

import json
import random

import pytest
import torch
import transformers
from typer.testing import CliRunner

from refimpl import InputError, Request, generate, load_pair
from refimpl.cli import app
from refimpl.decoding.drafters import HeadDrafter
from refimpl.decoding.drafters import head as head_drafter
from refimpl.models.mtp import MtpHead
from tests.engine.heads_on_disk import CONFIGURATIONS, SMALL, VOCAB_SIZE, write_checkpoint

pytestmark = pytest.mark.skipif(
    not hasattr(transformers.modeling_layers, "MtpModel"), reason="this transformers reads no MTP layers"
)
PROMPTS = [[3, 1, 4], [5], [7, 2], [3, 1, 4, 1, 5, 9, 2, 6], [7, 2, 2]]
METHODS = ["inplace", "paged+continuous", "eqspec", "rollback+fifo", "masked+grouped", "realigned+continuous"]
SAMPLED = {"temperature": 3.0, "seed": 7}
RULES = [{}, SAMPLED | {"acceptance": "coupled"}]
SETTINGS = {"drafter": "head", "batch_size": 3, "max_new_tokens": 14, "num_speculative_tokens": 4, "checks": "device"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """By name, made when asked for."""
    made = {}

    def make(name):
        if name not in made:
            folder = write_checkpoint(name, tmp_path_factory.mktemp("checkpoint"))
            made[name] = load_pair(folder, drafter="head", dtype="float64", stop_token_ids=[])
        return made[name]

    return make


def tokens(result):
    return [s.token_ids for s in result.sequences]


def by_transformers(model, prompt, num_tokens):
    ids = model.generate(torch.tensor([prompt]), max_new_tokens=num_tokens, do_sample=False, eos_token_id=None)
    return ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_output_is_that_without_drafts(pairs, name):
    pair = pairs(name)
    greedy = [by_transformers(pair.target.model, prompt, 14) for prompt in PROMPTS]
    for rule in RULES:
        wanted = tokens(generate(pair, PROMPTS, method="autoregressive", max_new_tokens=14, **rule))
        assert rule or wanted == greedy
        for method in METHODS:
            found = generate(pair, PROMPTS, method=method, **SETTINGS, **rule)
            assert tokens(found) == wanted
            assert found.stats.drafters["head"].accepted > 5


@pytest.mark.parametrize("acceptance", ["rejection", "block"])
def test_sampled_tokens_do_not_depend_on_the_batch(pairs, acceptance):
    sampled = SETTINGS | SAMPLED | {"acceptance": acceptance}
    wanted = tokens(generate(pairs("glm"), PROMPTS, method="inplace", **sampled | {"batch_size": 1}))
    for method in ("paged+continuous", "eqspec"):
        assert tokens(generate(pairs("glm"), PROMPTS, method=method, **sampled)) == wanted


# --- drafts ------------------------------------------------------------------------------------------------------


@pytest.fixture
def drafted(monkeypatch):
    """Of every row that was drafted for: its text, where the head begins in it, and its drafts."""
    found, draft = [], HeadDrafter.draft

    def noted(self, members, limits, numbers):
        drafts = draft(self, members, limits, numbers)
        for member, length, row in zip(members, drafts.lengths, drafts.proposal.tokens.tolist(), strict=True):
            if length:
                found.append((list(member.token_ids), self._entries[member.index][0], row[:length]))
        return drafts

    monkeypatch.setattr(HeadDrafter, "draft", noted)
    return found


@torch.inference_mode()
def fresh_drafts(pair, text, begin, k):
    """What a head drafts behind a text, each from whole passes without any K/V: its states begin at `begin`."""
    fresh, drafts = {MtpHead: fresh_mtp}[type(pair.head)], []
    for _ in range(k):
        logits = fresh(pair, text[:-1], torch.tensor([text[begin + 1 :] + drafts]), begin, len(drafts))
        drafts.append(int(logits.argmax()))
    return drafts


def fresh_mtp(pair, fed, tokens, begin, num_drafts):
    """As transformers masks its layers, behind the states of all that was fed."""
    mtp, depth = pair.head._mtp, pair.head.depth
    states = pair.target.model.get_decoder()(input_ids=torch.tensor([fed]), use_cache=False)[0][:, begin:]
    positions = torch.arange(begin + 1, begin + 1 + tokens.shape[1])[None]
    for step in range(num_drafts + 1):
        layer, n = min(step, depth - 1), states.shape[1]
        if step >= depth:  # the last layer goes on, behind its own last state
            states, n = torch.cat([read, states[:, -1:]], dim=1), n + 1
        first = layer
        read, part = states, slice(first, first + n)
        none = transformers.cache_utils.MtpCache(config=mtp.config)
        states = mtp.forward_layer(layer, read, positions[:, part], none, input_ids=tokens[:, part])
    return mtp.shared_head(states[0, -1])


def assert_fresh(pair, drafted):
    assert drafted
    for text, begin, drafts in drafted:
        assert drafts == fresh_drafts(pair, text, begin, len(drafts))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_drafts_are_those_of_passes_without_kv(pairs, name, drafted):
    for method in ("inplace", "paged+continuous", "eqspec"):
        generate(pairs(name), PROMPTS, method=method, **SETTINGS)
    assert len(drafted) > 60
    assert_fresh(pairs(name), drafted)


@pytest.mark.parametrize(
    "way",
    [
        {"method": "inplace", "execution": "overlapped"},
        {"method": "paged+continuous", "token_budget": 9, "joint_prefill": True, "block_size": 4},
        {"method": "inplace+static", "draft_budget": "confidence:0.12"},
    ],
)
def test_drafts_are_fresh_however_passes_are_run(pairs, way, drafted):
    generate(pairs("deepseek, two"), PROMPTS, **SETTINGS | way)
    assert len(drafted) > 10
    assert_fresh(pairs("deepseek, two"), drafted)


def test_kv_of_rejected_drafts_would_be_seen(pairs, drafted, monkeypatch):
    monkeypatch.setattr(head_drafter, "cut", lambda entries, n: entries)
    generate(pairs("glm"), PROMPTS, **SETTINGS)
    with pytest.raises(AssertionError):
        assert_fresh(pairs("glm"), drafted)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_to_a_row(pairs, drafted, seed):
    """Chunks of prompts, shared prefixes, preemptions, rows that wait or have fewer drafts or none."""
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
    pair = pairs(rng.choice(list(CONFIGURATIONS)))
    wanted = tokens(generate(pair, requests, method="autoregressive"))
    assert tokens(generate(pair, requests, **SETTINGS | settings)) == wanted
    assert_fresh(pair, drafted)


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


def test_mtp_layers_of_another_width_are_refused(tmp_path):
    glm = write_checkpoint("glm", tmp_path / "glm")
    wide = transformers.Glm4MoeConfig(**CONFIGURATIONS["glm"][3] | {"hidden_size": 48}, num_hidden_layers=1)
    transformers.Glm4MoeForCausalLM(wide).save_pretrained(tmp_path / "wide")
    assert "glm was trained for a target with a hidden size of 32, not 48" in refusal(tmp_path / "wide", glm)
