"""Tokens per verified token: a number of drafts for the whole round beside as many for each row.

``python tools/capacity.py docs/results/capacity.json`` decodes the bundled prompts. Only counts are compared, so the
load of the machine does not matter.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import refimpl
from refimpl.core.files import write_whole
from refimpl.decoding.devices import provenance
from refimpl.pairs.names import TINY
from refimpl.prompts import read_prompts

BATCH_SIZE, NUM_PROMPTS, LONGEST = 8, 64, 8
SETTINGS: dict[str, Any] = {"method": "inplace", "batch_size": BATCH_SIZE, "max_new_tokens": 64, "checks": "off"}


def measure(pair: refimpl.Pair) -> list[dict[str, Any]]:
    """A line for each number of drafts per row: tokens per verified token of both budgets."""
    prompts = read_prompts(TINY / "prompts.jsonl", limit=NUM_PROMPTS)

    def run(**drafting: Any) -> float:
        stats = refimpl.generate(pair, prompts, **SETTINGS, **drafting).stats.acceptance
        return stats.tokens_per_verified_token

    return [
        {
            "drafts_per_row": k,
            "fixed": run(num_speculative_tokens=k),
            "capacity": run(num_speculative_tokens=LONGEST, draft_budget=f"capacity:{k * BATCH_SIZE}"),
        }
        for k in range(1, 6)
    ]


def main() -> None:
    """Write the lines and where they come from."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    output, pair = parser.parse_args().output, refimpl.load_pair("tiny")
    data = {"rows": measure(pair), "meta": provenance(pair.device)}
    write_whole(output, [json.dumps(data, indent=1)])


if __name__ == "__main__":
    main()
