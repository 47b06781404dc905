"""Make docs/models.md and docs/results/models.md: which models are supported, how, and why the others are not.

    python tools/models_table.py [--check]

Every configuration of `model_families` is built with random weights and handed to `make_pair`; nothing is downloaded.
With --check nothing is written: exit code 1 where a page differs.
"""

import argparse
import logging
import sys
import warnings
from pathlib import Path

import transformers
from model_families import FAMILIES, IN_NO_RELEASE, Family, Verdict, judge

ROOT = Path(__file__).parent.parent
PAGE, FULL_PAGE = ROOT / "docs" / "models.md", ROOT / "docs" / "results" / "models.md"
HEAD = """\
# Models

What a model declares and does decides whether it is supported, not its name; a model that is not is rejected when the
pair is made, with the reason. Both tables come from `python tools/models_table.py` (transformers {version}), which
builds tiny models with random weights. In float64, tests compare their tokens with transformers' `generate` at batch 1,
with ragged prompts that outgrow every window, under drafts that are right, wrong, ragged and missing.

## What people run

| model | its layers | here |
|---|---|---|
{rows}

- *packed*: rows are fed without pads; *rectangles*: short rows are padded.

## How it works

- **Windows and chunks** are one more bound on positions in a layer's mask. Where every layer of target and draft has
  one (Mistral 7B 0.1, Phi 3, StarCoder 2), rows of `paged` give back the blocks that no later query sees, in each of
  their rounds and chunks (INV-26). All layers share one block table, so beside a layer with full attention (Gemma 3,
  GPT-OSS) a row keeps all of its blocks, as it keeps all of its K/V in other layouts. To enter, also after preemption,
  a row needs blocks for all of its text.
- **ALiBi** (Bloom, Falcon) counts the keys that a row sees, not columns.
- **Softcaps and sinks**, which PyTorch's SDPA does not compute, are left to the function in the model's own file.
- **Layers of several widths** (Gemma 4) are stored as wide as the widest; layers that read the K/V of others store
  nothing.
- **MTP layers** in a checkpoint draft for it with `drafter="head"` ([which](engine.md#draft-heads)).
- **Recurrent states**, of targets and drafts: in a verify pass, attention, MLP and experts take in all tokens of a row
  at once and recurrent layers one after the other. The state behind each token of a round is kept until the round is
  decided; the row then keeps the one behind its last committed token (INV-24): nothing is rolled back, and pads never
  enter a state. It costs k+1 reads of the recurrent layers' weights a pass and k+2 states of a row during it, which
  `memory-plan` and the [simulator](scenarios.md#a-gpu-that-you-do-not-own) count. Prompts are cached one row at a time
  (token by token where layers begin anew in a pass of several, as Mamba 1 does in transformers), and a recurrent draft
  runs one pass more a round. Prefix sharing is off, as a shared block holds no state to go on from; `shape_stable` and
  recorded rounds are refused.

## What is refused

- encoder-decoder models, and recurrent ones with a cache of their own (RWKV, xLSTM)
- attention that chooses keys by their values (DeepSeek V3.2, GLM 5), or is biased by a key's column (MPT)
- models that compute with the length of the cache, count positions by themselves or ignore a 4-D mask

[All {total} configurations](results/models.md) of transformers' causal families: {accepted} are supported. `load_pair`
takes a causal class, or the class in a checkpoint's `architectures` where transformers has none for its configuration.
"""
FULL_HEAD = """\
# All configurations

Made by `python tools/models_table.py` with transformers {version}: of {total} tiny configurations with random
weights, {accepted} are supported ([what that means](../models.md)). Where a family is listed more than once, a remark
says which settings published checkpoints have; {unreleased} supported configurations are in no release. In float64,
experts run one by one.
"""
PEOPLE = [  # model, family of tools/model_families.py, its layers
    ("Llama 3, SmolLM 3", "llama", "full attention"),
    ("Qwen 2.5, Qwen 3", "qwen3", "full attention"),
    ("Qwen 3 MoE", "qwen3_moe", "full attention, experts"),
    ("Qwen 3 VL", "qwen3_vl, reads images", "full attention"),
    ("Qwen3-Next", "qwen3_next", "gated delta net, full attention"),
    ("Qwen 3.5", "qwen3_5_text", "gated delta net, full attention"),
    ("Mistral Small 3, Ministral 3", "mistral3, Mistral Small 3", "full attention"),
    ("Mistral 7B 0.1", "mistral, sliding window", "windows"),
    ("Mixtral", "mixtral", "full attention, experts"),
    ("Phi 4", "phi3, full attention", "full attention"),
    ("Gemma 2", "gemma2", "windows, softcap"),
    ("Gemma 3", "gemma3_text, mixed windows", "windows beside full attention"),
    ("Gemma 3n", "gemma3n_text, layers that share K/V", "windows, K/V of other layers"),
    ("Gemma 4", "gemma4_text, layers that share K/V", "windows, heads of two widths, K/V of other layers"),
    ("GPT-OSS", "gpt_oss", "windows, sinks, experts"),
    ("Llama 4", "llama4_text, attention scaled by position", "chunks, attention scaled by position, experts"),
    ("DeepSeek V3, Kimi K2", "deepseek_v3", "latent attention, experts"),
    ("DeepSeek V3.2", "deepseek_v32", "chosen keys"),
    ("GLM 4.5", "glm4_moe", "full attention, experts"),
    ("MiniMax M2", "minimax_m2", "full attention, experts"),
    ("OLMo 3", "olmo3, mixed windows", "windows beside full attention"),
    ("Granite 4", "granitemoehybrid", "Mamba 2, full attention"),
    ("Falcon-H1", "falcon_h1", "Mamba 2 and attention in each layer"),
    ("Nemotron-H", "nemotron_h", "Mamba 2, full attention, experts"),
    ("LFM 2", "lfm2, with convolutions", "short convolutions, full attention"),
    ("Jamba", "jamba", "Mamba 1, full attention"),
    ("Mamba 2", "mamba2", "Mamba 2"),
]
PARTS = {"## Supported": True, "## Rejected": False}
SAME = "no remark"


def remark(family: Family, verdict: Verdict) -> str:
    """What the page says of a family."""
    return "; ".join(filter(None, (verdict.text, family.release))) or SAME


def committed() -> dict[str, str]:
    """Heading and remark under which each family stands on the page as it is."""
    found, heading = {}, ""
    for line in FULL_PAGE.read_text(encoding="utf-8").splitlines():
        heading = line if line in PARTS else heading
        if line.startswith("- **") and heading:
            text, names = line.removeprefix("- **").split("**: ", 1)
            found |= dict.fromkeys(names.split(" · "), f"{heading}: {text}")
    return found


def place(family: Family, verdict: Verdict) -> str:
    """Heading and remark under which a family belongs."""
    heading = next(head for head, accepted in PARTS.items() if accepted == (verdict.pair is not None))
    return f"{heading}: {remark(family, verdict)}"


def pages() -> dict[Path, str]:
    """Both pages as they should be."""
    verdicts = {family.name: (family, judge(family)) for family in sorted(FAMILIES, key=lambda family: family.name)}
    accepted = [family for family, verdict in verdicts.values() if verdict.pair is not None]
    numbers = {
        "version": transformers.__version__,
        "accepted": len(accepted),
        "total": len(verdicts),
        "unreleased": sum(family.release == IN_NO_RELEASE for family in accepted),
    }
    rows = "\n".join(f"| {name} | {layers} | {outcome(verdicts[family][1])} |" for name, family, layers in PEOPLE)
    places = {name: place(*verdict) for name, verdict in verdicts.items()}
    return {PAGE: HEAD.format(rows=rows, **numbers), FULL_PAGE: FULL_HEAD.format(**numbers) + lists(places)}


def outcome(verdict: Verdict) -> str:
    """What becomes of a model, in a few words."""
    if verdict.pair is None:
        return f"refused: {verdict.text}"
    return "packed" if verdict.pair.target.forward_packed else "rectangles"


def lists(places: dict[str, str]) -> str:
    """Families by heading and remark, the longest list first."""
    groups: dict[str, list[str]] = {}
    for name, where in places.items():
        groups.setdefault(where, []).append(name)
    text = ""
    for heading in PARTS:
        text += f"\n{heading}\n\n"
        found = {where: names for where, names in groups.items() if where.startswith(heading)}
        for where, names in sorted(found.items(), key=lambda item: -len(item[1])):
            text += f"- **{where.removeprefix(f'{heading}: ')}**: {' · '.join(names)}\n"
    return text


def main() -> int:
    """Write the pages, or compare with them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit code 1 where a page differs")
    check = parser.parse_args().check
    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    made, stale = pages(), list[str]()
    for path, text in made.items():
        if not check:
            path.write_text(text, encoding="utf-8")
        right, found = text.splitlines(), path.read_text(encoding="utf-8").splitlines()
        stale += [line for line in right if line not in found] + [line for line in found if line not in right]
    print("\n".join(["the pages of models are stale:", *stale]) if stale else "the pages of models are fresh")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
