"""A long prompt joins rows that decode: how long they wait for their next tokens, with chunks and without.

``python tools/joining.py docs/results/joining-tiny.json`` decodes eight rows with the bundled pair on one thread.
Between two rounds a prompt of 2,000 tokens is submitted. A *gap* is the time between two rounds, one after the other,
that gave a row tokens. Methods run in turn, several times, and are compared with `inplace`, which caches the whole
prompt at once, in the same turn.
"""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice, pairwise
from typing import Any

import torch
from output_argument import output_argument

import refimpl
from refimpl.core.files import write_whole
from refimpl.decoding.devices import provenance
from refimpl.pairs.names import TINY
from refimpl.prompts import read_prompts
from refimpl.requests import encode
from refimpl.streaming import TokenEvent

METHODS = ("inplace", "inplace+continuous", "paged", "paged+continuous")
REFERENCE = "inplace"
NUM_ROWS, PROMPT_TOKENS, ROUNDS_BEFORE, REPEATS = 8, 2000, 16, 9
SETTINGS: dict[str, Any] = {
    "batch_size": NUM_ROWS + 1, "num_speculative_tokens": 3, "max_new_tokens": 400, "max_model_len": 2500,
    "stop_token_ids": [], "checks": "off",
}  # fmt: skip


def run(pair: refimpl.Pair, rows: list[list[int]], prompt: list[int], method: str) -> dict[str, float]:
    """Seconds: a row's gap before the prompt comes (median), the longest one after it, the wait for its first token."""
    print(method, file=sys.stderr, flush=True)
    running = refimpl.stream(pair, rows, method=method, **SETTINGS)
    before = list(islice(running, NUM_ROWS * ROUNDS_BEFORE))  # every round gives every row tokens
    (joined,) = running.submit([prompt])
    after = []
    for event in running:
        after.append(event)
        if sum(seen.index == joined for seen in after) == 2:
            break
    first = next(event for event in after if event.index == joined)
    old = [event for event in before[-NUM_ROWS:] + after if event.index != joined]
    return {
        "usual_gap_s": statistics.median(gaps(before)),
        "longest_gap_s": max(gaps(old)),
        "first_token_s": first.time_s - before[-1].time_s,
    }


def gaps(events: Iterable[TokenEvent]) -> list[float]:
    """Of all rows."""
    ends: defaultdict[int, list[float]] = defaultdict(list)
    for event in events:
        ends[event.index].append(event.time_s)
    return [later - earlier for times in ends.values() for earlier, later in pairwise(times)]


def measure(pair: refimpl.Pair, rows: list[list[int]], prompt: list[int]) -> list[dict[str, Any]]:
    """A line a method."""
    turns = [{method: run(pair, rows, prompt, method) for method in METHODS} for _ in range(REPEATS)]
    return [
        {
            "method": method,
            **{name: statistics.median(turn[method][name] for turn in turns) for name in turns[0][method]},
            "ratios": [turn[method]["longest_gap_s"] / turn[REFERENCE]["longest_gap_s"] for turn in turns],
        }
        for method in METHODS
    ]


def main() -> None:
    """Write the lines and where they come from."""
    output = output_argument(__doc__)
    torch.set_num_threads(1)
    pair = refimpl.load_pair("tiny")
    texts = [encode(pair, text, i) for i, text in enumerate(read_prompts(TINY / "prompts.jsonl"))]
    prompt = [token for text in texts[NUM_ROWS:] for token in text][:PROMPT_TOKENS]
    lines = measure(pair, texts[:NUM_ROWS], prompt)
    data = {"rows": lines, "prompt_tokens": len(prompt), "settings": SETTINGS, "meta": provenance(torch.device("cpu"))}
    write_whole(output, [json.dumps(data, indent=1)])


if __name__ == "__main__":
    main()
