"""Make docs/models.md: which causal families of transformers are supported, and why the others are not.

    python tools/models_table.py [--check]

Every configuration of `model_families` is built with random weights and handed to `make_pair`; nothing is downloaded.
With --check nothing is written: exit code 1 where the page differs.
"""

import argparse
import logging
import sys
import warnings
from pathlib import Path

import transformers
from model_families import FAMILIES, IN_NO_RELEASE, Family, Verdict, judge

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
HEAD = """\
# Models

Made by `python tools/models_table.py` with transformers {version}: of {total} tiny configurations with random
weights, {accepted} are supported. The others are rejected when a pair is made, with the reason. What a model
declares and does decides, not its name:

- It is a causal language model without an encoder, a recurrent state or convolutions.
- Attention is a masked softmax that PyTorch's SDPA can compute: no softcap, no sinks, no position bias, no choice of
  keys by their values.
- It uses explicit positions and a 4-D mask, and does not ask the cache for its length.
- Layers attend to all tokens or to a sliding window; no row may become longer than the smallest window.
- Every layer caches its own keys and values, all of the same shape; values may be narrower or wider than keys.

Tests decode with each supported configuration and compare, in float64, with the oracle, with transformers'
`generate`, and with logits computed without a cache. `load_pair` takes a causal class, or the class in a
checkpoint's `architectures` where transformers has none for its configuration. Where a family is listed more than
once, a remark says which settings published checkpoints have; {unreleased} supported configurations are in no
release. In float64, experts run one by one.
"""
PARTS = {"## Supported": True, "## Rejected": False}
SAME = "no remark"


def remark(family: Family, verdict: Verdict) -> str:
    """What the page says of a family."""
    return "; ".join(filter(None, (verdict.text, family.release))) or SAME


def committed() -> dict[str, str]:
    """Heading and remark under which each family stands on the page as it is."""
    found, heading = {}, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        heading = line if line in PARTS else heading
        if line.startswith("- **") and heading:
            text, names = line.removeprefix("- **").split("**: ", 1)
            found |= dict.fromkeys(names.split(" · "), f"{heading}: {text}")
    return found


def place(family: Family, verdict: Verdict) -> str:
    """Heading and remark under which a family belongs."""
    heading = next(head for head, accepted in PARTS.items() if accepted == (verdict.pair is not None))
    return f"{heading}: {remark(family, verdict)}"


def page() -> str:
    """The page as it should be."""
    verdicts = [(family, judge(family)) for family in sorted(FAMILIES, key=lambda family: family.name)]
    accepted = [family for family, verdict in verdicts if verdict.pair is not None]
    head = HEAD.format(
        version=transformers.__version__,
        accepted=len(accepted),
        total=len(verdicts),
        unreleased=sum(family.release == IN_NO_RELEASE for family in accepted),
    )
    return head + lists({family.name: place(family, verdict) for family, verdict in verdicts})


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
    """Write the page, or compare with it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit code 1 where the page differs")
    check = parser.parse_args().check
    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    made = page()
    if not check:
        PAGE.write_text(made, encoding="utf-8")
        return 0
    right, found = made.splitlines(), PAGE.read_text(encoding="utf-8").splitlines()
    stale = [line for line in right if line not in found] + [line for line in found if line not in right]
    print("\n".join(["docs/models.md is stale:", *stale]) if stale else "docs/models.md is fresh")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
