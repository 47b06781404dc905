"""What docs/reproduction.md says about costs: where drafts stop paying, and how far the costs are off."""

from typing import Any

from pages import line_of, markdown_table
from reproduction_figures import is_full

from simulator.analytic import tokens_per_round
from simulator.studies.crossing import BATCH_SIZES


def crossings(data: dict[str, Any]) -> str:
    """Where drafts stop paying."""
    heads = [
        "target, draft, weights, device",
        "tokens of context",
        "5 drafts pay up to",
        "90 % range",
        "with the best number, up to",
        "rows that fit",
    ]
    rows = [
        [
            ", ".join(line[name] for name in ("target", "draft", "dtype", "device")),
            *(str(line[name]) for name in ("context_tokens", "batch_size")),
            f"{line['low']} … {line['high']}",
            *(str(line[name]) for name in ("any_drafts", "fits")),
        ]
        for line in data["crossings"]
    ]
    large = [line for line in data["crossings"] if line["target"] == "llama-3-70b"]
    short, longer = (line_of(large, device="b200", context_tokens=tokens)["batch_size"] for tokens in (256, 1024))
    return f"""## Where drafts stop paying

Costs of kind `roofline` answer this for any GPU: the largest batch at which a round of drafting and verifying yields more tokens
per second than plain steps, of {", ".join(map(str, BATCH_SIZES[:-1]))} and {BATCH_SIZES[-1]} rows. A draft is right with
probability {data["acceptance_probability"]:g}; passes are recorded as graphs.

![Largest batch at which five drafts pay, by device and context](reproduction-crossing.png)

With a fixed number of drafts the limit is the arithmetic of the verify pass at short contexts, and the cache of the draft at long
ones: Qwen3 0.6B keeps 112 KiB per token where its 8B target keeps 144 KiB, and reads them for each of its drafts. Llama 3.2 1B keeps
32 KiB where its 70B target keeps 320 KiB, so that there, at {memory_ends(large)} tokens and more, the memory ends before drafts stop paying,
even with weights in float8. From 256 to 1024 tokens its limit rises, on a B200 from {short} to {longer} rows: to read the target's longer cache
takes as long in a plain step as in a verify pass, which thereby costs fewer plain steps. Fewer drafts in larger batches move the limit
outwards (fifth column).

<details><summary>The numbers</summary>

{markdown_table(heads, rows)}
</details>
"""


def memory_ends(lines: list[dict[str, Any]]) -> int:
    """Shortest context from which on the memory ends before drafts stop paying, on every device."""
    contexts = {line["context_tokens"] for line in lines}
    pays = max((line["context_tokens"] for line in lines if not is_full(line)), default=0)
    return min(context for context in contexts if context > pays)


def accuracy(data: dict[str, Any]) -> str:
    """Errors of the costs."""
    rows = [
        [line["group"], str(line["rows"]), f"{100 * line['median']:.1f} %", f"{100 * line['worst']:+.0f} %"]
        for line in data["checks"]
    ]
    curves = {(line["table"], line["left_out"]): line for line in data["curves"]}
    points = " and ".join(f"{100 * curves[name, 'points']['median']:.1f} %" for name in ("a100", "h100"))
    devices = " and ".join(f"{100 * curves[name, 'device']['median']:.1f} %" for name in ("a100", "h100"))
    reasons = "".join(f"- **{group}**: {why}.\n" for group, why in data["explained"].items())
    return f"""## How far the costs are off

The tables that the efficiency comes from, of A100 and H100: each point predicted from the others, median error {points}; each
device predicted from the other's table, {devices}. Published numbers that nothing was fitted to
([rows](../simulator/data/published/check_errors.csv), [sources](../simulator/data/published/sources.yaml)):

{markdown_table(["published by", "rows", "median error", "worst"], rows)}
Rows that are off by more than a quarter:

{reasons}
There is no trustworthy published number for L40S and RTX 4090 in 16 bit among them.

{speculative_speeds(data)}"""


def speculative_speeds(data: dict[str, Any]) -> str:
    """Published speeds with drafts."""
    lines = data["speculative"]
    rows = [
        [
            f"{line['target']}, {line['draft']}, {line['device']}",
            str(line["num_speculative_tokens"]),
            f"{line['tokens_per_s']:g}",
            f"{1e3 * line['round_s']:.1f}",
            f"{line['needed_tokens']:.2f}",
            f"{line['acceptance_probability']:.2f}",
        ]
        for line in lines
    ]
    heads = [
        "target, draft, device",
        "drafts",
        "published tokens/s",
        "predicted ms a round",
        "tokens a round needed",
        "α",
    ]
    two, seven = lines[0], lines[1]
    length = tokens_per_round(two["acceptance_probability"], seven["num_speculative_tokens"])
    predicted = length / seven["round_s"]
    error = predicted / seven["tokens_per_s"] - 1
    return f"""Speeds with drafts are published without the tokens that a round yields. The table says how many the published speed needs,
and the probability α of independent drafts that yields them; more than the drafts plus one would be impossible.

{markdown_table(heads, rows)}
The first line's α predicts the second: {predicted:.0f} tokens/s with 7 drafts, {abs(100 * error):.0f} % {"less" if error < 0 else "more"} than
the {seven["tokens_per_s"]:g} that are published. So the loss from 2 to 7 drafts is found.
"""
