"""Fill docs/models.md and docs/results/models.md: which models are supported, how, and why the others are not.

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
from pages import filled, markdown_table

ROOT = Path(__file__).parent.parent
PAGE, FULL_PAGE = ROOT / "docs" / "models.md", ROOT / "docs" / "results" / "models.md"
COLUMNS = ("model", "its layers", "here")
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
COUNTS = ("transformers", "configurations", "supported", "supported, in no release")
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
    unreleased = sum(family.release == IN_NO_RELEASE for family in accepted)
    places = {name: place(*verdict) for name, verdict in verdicts.items()}
    people = [(name, layers, outcome(verdicts[family][1])) for name, family, layers in PEOPLE]
    total, supported = str(len(verdicts)), str(len(accepted))
    parts = {
        "people": markdown_table(COLUMNS, people, texts=COLUMNS),
        "total": total,
        "supported": supported,
        "counts": markdown_table(COUNTS, [(transformers.__version__, total, supported, str(unreleased))]),
        "list-supported": listed(places, "## Supported"),
        "list-rejected": listed(places, "## Rejected"),
    }
    return {path: filled(path.read_text(encoding="utf-8"), "models", parts) for path in (PAGE, FULL_PAGE)}


def outcome(verdict: Verdict) -> str:
    """What becomes of a model, in a few words."""
    if verdict.pair is None:
        return f"refused: {verdict.text}"
    return "packed" if verdict.pair.target.forward_packed else "rectangles"


def listed(places: dict[str, str], heading: str) -> str:
    """Families under a heading by remark, the longest list first."""
    groups: dict[str, list[str]] = {}
    for name, where in places.items():
        if where.startswith(heading):
            groups.setdefault(where.removeprefix(f"{heading}: "), []).append(name)
    longest_first = sorted(groups.items(), key=lambda item: -len(item[1]))
    return "\n".join(f"- **{text}**: {' · '.join(names)}" for text, names in longest_first)


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
