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
from model_families import CONTEXT, FAMILIES, IN_NO_RELEASE, WINDOW, Family, Verdict, judge

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
HEAD = """\
# Models

Made by `python tools/models_table.py` with transformers {version}: of {total} tiny configurations with random
weights, {accepted} are supported. The others are rejected when a pair is made. Tests decode with each supported one and
compare, in float64, with the oracle, with transformers' own `generate`, and with logits computed without a cache.
Where some settings of a family are supported and others are not, a remark says which ones published checkpoints have:
{unreleased} of the supported configurations are in no release.

What a model declares and does decides, not its name. `load_pair` takes a causal class, or the class in a checkpoint's
`architectures` where transformers has none for its configuration.

- It is a causal language model without an encoder, a recurrent state or convolutions.
- Attention is a masked softmax that PyTorch's SDPA can compute: no softcap, no sinks, no position bias, no choice of
  keys by their values.
- It uses explicit positions and a 4-D mask, and does not ask the cache for its length.
- Layers attend to all tokens or to a sliding window. A window limits the context: no row may become longer than the
  smallest window. Up to that length both are the same. (In the table windows are {window} tokens, the context is
  {context}.)
- Every layer caches keys and values of its own, all of the same shape; values may be narrower or wider than keys.

In float64, experts run one by one (`experts_implementation="eager"`): the product of groups that transformers takes by
default has no float64. A pair in float64 is set so when it is made.

"""
COLUMNS = "| family | class | supported | remark or reason |\n|---|---|---|---|\n"


def row(family: Family, verdict: Verdict) -> str:
    """A family's line of the table."""
    remark = "; ".join(filter(None, (verdict.text, family.release)))
    cells = (family.name, f"`{verdict.model_class}`", "no" if verdict.pair is None else "yes", remark)
    return "| " + " | ".join(cells) + " |"


def committed() -> list[str]:
    """Lines of the page as it is."""
    return PAGE.read_text(encoding="utf-8").splitlines()


def page() -> str:
    """The page as it should be."""
    verdicts = [(family, judge(family)) for family in sorted(FAMILIES, key=lambda family: family.name)]
    accepted = sum(verdict.pair is not None for _, verdict in verdicts)
    head = HEAD.format(
        version=transformers.__version__,
        accepted=accepted,
        total=len(verdicts),
        unreleased=sum(verdict.pair is not None and family.release == IN_NO_RELEASE for family, verdict in verdicts),
        window=WINDOW,
        context=CONTEXT,
    )
    return head + COLUMNS + "\n".join(row(family, verdict) for family, verdict in verdicts) + "\n"


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
    right, found = made.splitlines(), committed()
    stale = [line for line in right if line not in found] + [line for line in found if line not in right]
    print("\n".join(["docs/models.md is stale:", *stale]) if stale else "docs/models.md is fresh")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
