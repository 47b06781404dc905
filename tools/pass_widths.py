"""Packed verify passes of wider and wider models: what leaving pads out gains, and what of a pass no pad makes longer.

``python tools/pass_widths.py docs/results/widths-cpu.json`` times, on one thread, the target of the bundled pair and
random Qwen3 models, the wider with the fewer layers. Rows draw k from 1 to 8 in each turn. In a turn come the packed
pass, the rectangle that it replaces, and a pass of one token a row, which is the least that these rows can feed; in
every other turn backwards.
"""

import json
import random
import statistics
import sys
from functools import partial
from itertools import product
from typing import Any

import torch
from output_argument import output_argument
from transformers import Qwen3Config

from refimpl.bench.passes import PassBench
from refimpl.bench.settings import random_prompts
from refimpl.core.files import write_whole
from refimpl.decoding.devices import provenance
from refimpl.models.adapter import Pair
from refimpl.pairs import load_pair
from refimpl.pairs.loading import make_pair
from refimpl.pairs.random_pairs import random_models

WIDTHS = {512: 8, 1024: 4, 2048: 2}  # layers of a random model of each width
LAYOUTS, BATCH_SIZES = ("inplace", "paged"), (8, 16, 32)
NUM_SPECULATIVE_TOKENS, CONTEXT_TOKENS, WARM_UPS, REPEATS = 8, 100, 2, 20
PASSES = ("packed", "rectangle", "one_token")


def random_target(width: int, layers: int) -> Pair:
    """A target with heads of 64 numbers, two of which share keys, and a draft of its kind with one layer."""
    heads = {"num_attention_heads": width // 64, "num_key_value_heads": width // 128, "head_dim": 64}
    sizes = {"vocab_size": 2048, "hidden_size": width, "intermediate_size": 3 * width, "pad_token_id": 0}
    target, draft = (
        random_models(Qwen3Config(**sizes, **heads, num_hidden_layers=n), seed=0, dtype=torch.float32, draft_noise=0)[0]
        for n in (layers, 1)
    )
    return make_pair(target, draft, stop_token_ids=(), name=f"random, {width} wide")


def turn(passes: PassBench, drawn: list[int], backwards: bool) -> dict[str, float]:
    """Seconds of each pass, and how many tokens of the rectangle there are for one that is fed."""
    runs = {
        "packed": partial(passes.packed, drawn),
        "rectangle": partial(passes.rectangle, drawn),
        "one_token": partial(passes.rectangle, [1] * len(drawn)),
    }
    seconds = {name: passes.seconds(runs[name]) for name in (reversed(PASSES) if backwards else PASSES)}
    return seconds | {"tokens": len(drawn) * max(drawn) / sum(drawn)}


def line(pair: Pair, layout: str, size: int) -> dict[str, Any]:
    """Medians over the turns of a layout and number of rows."""
    texts, k, rng = random_prompts(pair, size, CONTEXT_TOKENS, 0), NUM_SPECULATIVE_TOKENS, random.Random(0)
    passes = PassBench(pair, f"{layout}+continuous", texts, texts[0], 0, num_speculative_tokens=k, checks="off")
    drawn = [[rng.randint(1, k) + 1 for _ in range(size)] for _ in range(WARM_UPS + REPEATS)]
    turns = [turn(passes, counts, bool(i % 2)) for i, counts in enumerate(drawn)][WARM_UPS:]
    gains = [each["rectangle"] / each["packed"] for each in turns]
    return {
        "layout": layout,
        "batch_size": size,
        **{f"{name}_ms": 1000 * statistics.median(each[name] for each in turns) for name in PASSES},
        "share_of_one_token": statistics.median(each["one_token"] / each["rectangle"] for each in turns),
        "tokens_ratio": statistics.median(each["tokens"] for each in turns),
        "gain": statistics.median(gains),
        "gain_min": min(gains),
        "gain_max": max(gains),
    }


def measure(pair: Pair, width: int, layers: int) -> list[dict[str, Any]]:
    """A line for every layout and number of rows."""
    lines = []
    for layout, size in product(LAYOUTS, BATCH_SIZES):
        print(f"{pair.name}: {layout}, {size} rows", file=sys.stderr, flush=True)
        lines.append({"width": width, "layers": layers} | line(pair, layout, size))
    return lines


def main() -> None:
    """Write the lines and where they come from."""
    output = output_argument(__doc__)
    torch.set_num_threads(1)
    bundled = load_pair("tiny")
    config = bundled.target.model.config
    lines = measure(bundled, config.hidden_size, config.num_hidden_layers)
    for width, layers in WIDTHS.items():
        lines += measure(random_target(width, layers), width, layers)
    data = {"rows": lines, "meta": provenance(torch.device("cpu"))}
    write_whole(output, [json.dumps(data, indent=1)])


if __name__ == "__main__":
    main()
