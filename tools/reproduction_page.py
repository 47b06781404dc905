"""The text of docs/reproduction.md, with its numbers from the data."""

import json
from pathlib import Path
from typing import Any

from pages import line_of, markdown_table
from reproduction_arrivals import arrivals
from reproduction_costs import accuracy, crossings
from reproduction_figures import in_words

from simulator.intervals import share_held
from simulator.studies.reproduction import HELD, WHOLE_FILE_REPLICATIONS

MATRIX = Path(__file__).parent.parent / "docs" / "detection_matrix.json"
CHOSEN = "grouping_rate_all_mean."  # figures that the length of the captions' outputs was chosen for
LOGGED = "overhead_anatomy."  # figures of the two runs whose logs are printed
RECORDED = ("on an H100", "on an H100, passes recorded as graphs")


def page(data: dict[str, Any]) -> str:
    """The whole page."""
    parts = (opening, figures, verdicts, aligning, behaviours, scaling)
    parts += (arrivals, groups, failures, crossings, accuracy, ending)
    return "\n".join(part(data) for part in parts)


def row_of(data: dict[str, Any], target: str) -> dict[str, Any]:
    """The row of a published figure."""
    return line_of(data["rows"], target=target)


def step_of(data: dict[str, Any], start: str) -> dict[str, Any]:
    """The step whose name begins so."""
    return next(step for step in data["steps"] if step["name"].startswith(start))


def speed_of(data: dict[str, Any], method: str, size: int) -> dict[str, Any]:
    """A line of the throughput on all prompts."""
    return line_of(data["throughput"], method=method, batch_size=size)


def num_untouched(data: dict[str, Any]) -> dict[bool, tuple[int, int]]:
    """Figures that no constant and no length was chosen for, and those of them inside: of the logs (True), and others."""
    rows = [row for row in data["rows"] if not (row["fitted"] or row["target"].startswith(CHOSEN))]
    kinds = {logged: [row for row in rows if row["target"].startswith(LOGGED) == logged] for logged in (True, False)}
    return {logged: (len(kind), sum(row["inside"] for row in kind)) for logged, kind in kinds.items()}


def opening(data: dict[str, Any]) -> str:
    """What was done."""
    inside, fitted = (sum(row[name] for row in data["rows"]) for name in ("inside", "fitted"))
    chosen = sum(row["target"].startswith(CHOSEN) for row in data["rows"])
    (logged, logged_inside), (others, others_inside) = num_untouched(data).values()
    return f"""<!-- Made by tools/reproduction.py from docs/reproduction.json: edit the tool, not this page. -->
# The paper's figures, reproduced and explained

[Batch Speculative Decoding Done Right](https://arxiv.org/abs/2510.22876) (Zhang, Dey, Mishra, Wu, Li, Zhang) measured two methods,
EQSPEC and EXSPEC, on an A100. Its code prints logs. This page simulates those runs, with the
[facts of that GPU](scenarios.md#a-gpu-that-you-do-not-own) and with what the code really does, switch by switch.

{inside} of the {len(data["rows"])} published figures lie within the range that 95 % of single simulated runs cover. Constants were
fitted to {fitted} of the {len(data["rows"])}, all of one row of the logs (EQSPEC at batch 4): how often a draft is right, how long outputs are, what
the host needs per pass and per layer, and what one of its small operations costs. The length of the captions' outputs was chosen
to fit {chosen} more, the grouping rates. Of the other {logged + others}, {logged_inside + others_inside} lie within the range: {logged_inside} of the {logged} that
the two logs at batch 4 print, and {others_inside} of the {others} of larger batches. They are not independent: EQSPEC's total time, for
example, is close to the sum of fitted parts, and the fit reads how many tokens and rounds that row has.

`raggedspec sim reproduce` prints the table below, with `--explain` what each behaviour costs. `raggedspec sim study crossing` prints
where drafts stop paying, and `raggedspec sim validate --roofline` how far the costs are off.
"""


def figures(data: dict[str, Any]) -> str:
    """Every published figure."""
    rows = [
        [
            in_words(row["target"]),
            f"{row['published']:g}",
            f"{row['simulated']:.4g}",
            f"{row['low']:.4g} … {row['high']:.4g}",
            f"{100 * row['relative_error']:+.1f} %",
            "fitted" if row["fitted"] else "yes" if row["inside"] else "**no**",
        ]
        for row in data["rows"]
    ]
    heads = ["figure", "published", "simulated", "95 % of single runs", "error", "inside"]
    return f"""## Every figure

![Simulated over published figures, with the range of single runs](reproduction-figures.png)

{markdown_table(heads, rows, texts=("inside",))}
The logs are of Vicuna 7B with a draft of 68M: 100 prompts of Spec-Bench, 128 new tokens, 5 drafts, batch 4, window 48. The grouping
rates are of 100 captions of 16 tokens, with 50 new tokens. The last figure is of all 480 prompts; its range goes from the least to the
greatest of {WHOLE_FILE_REPLICATIONS} runs, which holds {100 * share_held(WHOLE_FILE_REPLICATIONS, HELD):.0f} % of single ones. Prompt lengths are counted as four characters a token.
*Fitted* figures are so per round; the number of rounds is not.
"""


def verdicts(data: dict[str, Any]) -> str:
    """What holds and what does not."""
    share, ratio = (
        row_of(data, name) for name in ("alignment_share_text.batch 16", "headline.throughput_ratio_batch8_over_batch1")
    )
    calls = [row_of(data, f"overhead_anatomy.{method}.verify_calls") for method in ("eqspec", "exspec")]
    grouped, aligned, total = (
        row_of(data, f"overhead_anatomy.{name}")
        for name in ("exspec.grouped_rounds", "eqspec.align_s", "eqspec.total_s")
    )
    eight = row_of(data, "alignment_share_text.batch 8")
    shares = aligned["published"] / total["published"], eight["published"] / 100, share["published"] / 100
    parts = [value / (1 - value) for value in shares]
    return f"""## What holds, and what does not

- **Holds: EXSPEC needs far fewer verify calls than EQSPEC.** Simulated {calls[0]["simulated"]:.0f} and
  {calls[1]["simulated"]:.0f}, published {calls[0]["published"]:.0f} and {calls[1]["published"]:.0f}. The reason is that finished
  rows leave at once, see below; it is not grouping.
- **Holds: throughput grows up to batch 8.** The simulated ratio of batch 8 to batch 1 is {ratio["simulated"]:.1f}, the paper says
  up to {ratio["published"]:.0f}.
- **Does not hold: alignment grows faster than the batch.** The code's host operations are linear in the rows. That would give
  a share of {share["simulated"]:.0f} % at batch 16, more than the {share["published"]:g} % that the paper states. Its own shares say the same: alignment takes
  {parts[0]:.2f}, {parts[1]:.2f} and {parts[2]:.2f} of the time of all other stages at batch 4, 8 and 16, less than twice as much for twice the rows.
  [Nothing was found](#the-share-of-aligning-at-batch-16) that brings the simulated share down.
- **Does not hold: grouping is what makes EXSPEC fast.** At batch 4 the log itself has {grouped["published"]:.0f} grouped rounds out
  of {calls[1]["published"]:.0f}.
- **Not simulated:** that 95 % of the outputs equal ordinary decoding. The [engine](engine.md) is for that.
"""


def aligning(data: dict[str, Any]) -> str:
    """What was tried for the share of aligning at batch 16."""
    logs = [row_of(data, f"overhead_anatomy.eqspec.{name}")["published"] for name in ("align_s", "total_s")]
    published = [100 * logs[0] / logs[1]]
    published += [row_of(data, f"alignment_share_text.batch {size}")["published"] for size in (8, 16)]
    rows = [["published", *(f"{value:.1f}" for value in published), "", ""]]
    for line in data["alignment"]:
        others = f"{line['others_ms'][0]:.0f}, {line['others_ms'][-1]:.0f}"
        rows.append(
            [
                line["change"],
                *(f"{value:.1f}" for value in line["percent"]),
                others,
                f"{refitted(line, published[0]):.0f}",
            ]
        )
    usual = data["alignment"][0]
    needed_ms = usual["others_ms"][-1] * odds(usual["percent"][-1]) / odds(published[-1])
    cheaper = 1 - odds(published[-1]) / odds(usual["percent"][-1])
    heads = [
        "EQSPEC; share of aligning in %, batch",
        "4",
        "8",
        "16",
        "other stages, ms a round at 4 and 16",
        "batch 16 if batch 4 is right",
    ]
    return f"""### The share of aligning at batch 16

The code reads four numbers per row and layer, whatever the state of the row, so that the cost is linear in the rows. All other
stages of a round take as long at batch 16 as at batch 4, because they wait for the host. What might differ from the simulated runs:

{markdown_table(heads, rows)}
The last column scales each line so that batch 4 is as published. None comes near {published[-1]:g} %. That share would follow if the other stages took
{needed_ms:.0f} ms a round instead of {usual["others_ms"][-1]:.0f}, or if a read cost {100 * cheaper:.0f} % less than in the log at batch 4. Neither follows from the code, so
nothing is fitted to it and the figure stays outside.
"""


def odds(percent: float) -> float:
    """Time of aligning over that of all other stages."""
    return percent / (100 - percent)


def refitted(line: dict[str, Any], published: float) -> float:
    """Percent of the last batch size if reads cost so much that the first is as published."""
    scaled = odds(line["percent"][-1]) * odds(published) / odds(line["percent"][0])
    return 100 * scaled / (1 + scaled)


def behaviours(data: dict[str, Any]) -> str:
    """The waterfall."""
    rows = [
        [
            step["name"],
            f"{step['tokens_per_s']:.1f}",
            "" if at == 0 else f"{step['gain']:+.1f}",
            "" if at == 0 else f"{step['low']:+.1f} … {step['high']:+.1f}",
            "" if step["alone"] is None else f"{step['alone']:+.1f}",
        ]
        for at, step in enumerate(data["steps"])
    ]
    refill, launched, grouping = data["steps"][1:4]
    gain = refill["gain"] + launched["gain"] + grouping["gain"]
    left = step_of(data, "the draft keeps")["tokens_per_s"] - data["steps"][3]["tokens_per_s"]
    best, graphs, chunks = (
        step_of(data, start) for start in ("nothing moves", "passes are recorded", "prompts in chunks")
    )
    return f"""## What each behaviour costs

Each line adds one change to those above it, at batch 4. *Alone* is the same change by itself, made to EXSPEC as published.

![Tokens per second after each change](reproduction-waterfall.png)

{markdown_table(["change", "tokens/s", "gain", "95 % interval", "alone"], rows)}
EXSPEC gains {gain:.0f} tokens/s over EQSPEC. {100 * refill["gain"] / gain:.0f} % of that is from replacing finished rows,
{100 * launched["gain"] / gain:.0f} % from cheaper copies, {100 * grouping["gain"] / gain:.0f} % from grouping.

The code leaves another {left:.0f} tokens/s on the table: copies row by row and layer by layer, caches dropped when a batch mixes
fresh and cached rows, a lost bonus token. That the draft is prefilled in every round costs nothing here, because a pass of the draft
takes as long as the host needs to launch it, with one token or with hundreds. For the same reason most of the machine is idle: passes recorded as graphs would
raise {best["tokens_per_s"]:.0f} tokens/s to {graphs["tokens_per_s"]:.0f}. Blocks of K/V and prompts in chunks, as servers have them, make {chunks["tokens_per_s"]:.0f}.
"""


def scaling(data: dict[str, Any]) -> str:
    """Throughput by batch size."""
    sizes = sorted({line["batch_size"] for line in data["throughput"]})
    names = {"tokens_per_s": "tokens/s", "prefill_percent": "prefill %", "align_percent": "moving K/V %"}
    rows = [
        [f"{method.upper()}, {label}", *(f"{speed_of(data, method, size)[name]:.0f}" for size in sizes)]
        for method in ("eqspec", "exspec")
        for name, label in names.items()
    ]
    eight, most = (speed_of(data, "exspec", size) for size in (8, sizes[-1]))
    return f"""## Why it scales to batch 8

![Tokens per second against the batch size](reproduction-throughput.png)

{markdown_table(["all 480 prompts, batch", *map(str, sizes)], rows)}
A round that mixes a fresh row with cached ones throws the caches of all rows away and prefills them again. At batch
{eight["batch_size"]} that takes {eight["prefill_percent"]:.0f} % of the time, at batch {most["batch_size"]} {most["prefill_percent"]:.0f} %. The
fallback to mixed batches, not the length of the batch, limits EXSPEC. EQSPEC never mixes, and goes on growing.

{ratios(data)}"""


def ratios(data: dict[str, Any]) -> str:
    """The headline by acceptance, context and device."""
    lines = data["ratio"]
    rows = [
        [line["change"], *("{:.2f} ({:.2f} … {:.2f})".format(*line[method]) for method in ("eqspec", "exspec"))]
        for line in lines
    ]
    best = max(lines, key=lambda line: line["exspec"][0])
    eager, graphs = (line_of(lines, change=name)["exspec"][0] for name in RECORDED)
    return f"""How much faster batch 8 is than batch 1, on the 100 prompts of the logs, with the 95 % interval of the mean:

{markdown_table(["change", "EQSPEC", "EXSPEC"], rows)}
EXSPEC gains most with *{best["change"]}*, {best["exspec"][0]:.1f} times. Larger batches gain so much because the host bounds a pass of the published
code, which then takes as long with eight rows as with one: on an H100 batch 8 is {eager:.1f} times as fast, and {graphs:.1f} times when passes are
recorded as graphs.
"""


def groups(data: dict[str, Any]) -> str:
    """Grouping rates of the captions."""
    sizes = [2, 4, 8, 16, 32]
    published = [row_of(data, f"grouping_rate_all_mean.batch {size}")["published"] for size in sizes]
    rows = [["published", *(f"{value:.1f}" for value in published)]]
    rows += [[line["outputs"], *(f"{value:.1f}" for value in line["percent"])] for line in data["captions"]]
    return f"""## Grouping rates need short outputs

{markdown_table(["outputs of the captions; grouped rounds in %, batch", *map(str, sizes)], rows)}
The length of the outputs is not published. With outputs that use the budget of 50 tokens, rows drift apart and hardly any round is
grouped from batch 16 on. The published rates follow from outputs of about two tokens. That is plausible, as the prompts are
complete sentences. It is also the one number on this page that was chosen to fit other rows than EQSPEC's, and it is an explanation of
one series alone. The authors measured two: these captions of 16 tokens each, and captions of random lengths. What was chosen for
the first does not carry over to the second, which is not simulated here. If a pad counted as the end, as in tokenizers without a pad of their own, rates would be right up to batch 4 and too low beyond.
"""


def failures(data: dict[str, Any]) -> str:
    """Methods that return wrong texts."""
    rows = [
        [
            line["method"],
            *(f"{line[f'exact_{size}']:.0f} / {line[f'partial_{size}']:.0f}" for size in (1, 4)),
            *PUBLISHED_MATCHES.get(line["method"], ("", "")),
            fired(line["method"]),
            REASONS.get(line["method"], ""),
        ]
        for line in data["forensics"]
    ]
    heads = [
        "method",
        "batch 1",
        "batch 4",
        "published, batch 1",
        "published, batch 4",
        "invariant that fires",
        "reason",
    ]
    return f"""## Why the other methods return wrong texts

Exact / partial matches with ordinary decoding, in %: here with {data["forensics"][0]["prompts"]} prompts of 16 new tokens and the bundled pair
in float32, beside the paper's (Vicuna, Qwen3, GLM-4; 480 prompts of 50 tokens in 16 bit). The methods are rebuilt in `refimpl/faults/published.py`.

{markdown_table(heads, rows, texts=("invariant that fires", "reason"))}
An invariant that is named is the first to fire when the same fault is put into the engine, without looking at its output
([detection matrix](detection_matrix.md)). Taking the draft's token breaks none: the text is wrong, the bookkeeping of it right.
In 16 bit, passes of different shapes round differently, which is why the published counts of right methods stay below 100 %;
comparing whole texts, pads and all, adds errors that no method has made.
"""


PUBLISHED_MATCHES = {  # exact / partial, in %: at batch 1, at batch 4
    "DSD as shipped": ("0 / 8.1, 0.2 / 2.2, 0 / 1.0", "0 / 2.2, 0 / 0.6, 0 / 0.8"),
    "BSP as shipped": ("1.9 / 39.7, 3.5 / 19.9, 1.0 / 15.3", "0.2 / 31.3, 2.1 / 12.6, 0.6 / 8.1"),
    "transformers, generated tokens": ("", "53.8 / 98.2, 92.9 / 96.5, 93.3 / 97.2"),
    "EQSPEC": ("97.3 / 98.6, 94.6 / 96.9, 96.7 / 98.1", "92.1 / 98.6, 92.3 / 95.7, 96.5 / 98.3"),
    "EXSPEC": ("97.3 / 98.6, 94.6 / 96.9, 96.7 / 98.1", "90.8 / 97.6, 95.0 / 97.1, 95.2 / 97.7"),
}
REASONS = {
    "DSD as shipped": "the draft's token at a mismatch; pads are seen and pile up",
    "BSP as shipped": "positions count the columns of rejected tokens",
    "BSP with positions": "none: the same mask, right positions",
    "transformers, texts with their pads": "the comparison",
}
FAULTS = {  # the same mistakes in the engine
    "DSD as shipped": ("dsd-next-token-from-draft", "pads-visible", "pads-pile-up"),
    "BSP as shipped": ("bsp-as-shipped",),
}


def fired(method: str) -> str:
    """What the checks of level ``device`` say of each of a method's faults."""
    matrix = json.loads(MATRIX.read_text(encoding="utf-8"))["rows"]
    cells = {name: line_of(matrix, fault=name)["cells"]["device"] for name in FAULTS.get(method, ())}
    return ", ".join(f"{'none' if cell is None else cell['by']} (`{name}`)" for name, cell in cells.items())


def ending(data: dict[str, Any]) -> str:
    """Where the numbers come from."""
    meta = data["meta"]
    libraries = ", ".join(f"{name} {version}" for name, version in meta["libraries"].items())
    counts = ", ".join(f"{what} {count}" for what, count in meta["replications"].items())
    again = "".join(
        f" · {name.replace('_', ' ')} again: commit {run['commit']}, {run['utc_time']}"
        for name, run in data.get("again", {}).items()
    )
    return f"""## Where the numbers come from

`{meta["command"]}` · replications: {counts} · {libraries} · commit {meta["commit"]} · {meta["utc_time"]}{again}
"""
