"""Golden runs of the engine: every layout × scheduler × acceptance rule, and the modes beside them."""

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from golden_digest import digest

from refimpl import Pair, Request, Result, generate, load_pair, stream
from refimpl.core.config import LAYOUTS, SCHEDULERS
from refimpl.pairs import random_pair

RULES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "coupled": {"temperature": 0.8, "top_p": 0.9, "seed": 4},
    "rejection": {"temperature": 1.1, "top_k": 20, "acceptance": "rejection", "seed": 4},
}
SETTINGS: dict[str, Any] = {
    "batch_size": 3, "window_size": 8, "num_speculative_tokens": 4, "max_new_tokens": 60, "checks": "host",
}  # fmt: skip
VOCAB_SIZE = 61  # of random pairs
ROW_FIELDS = ("sequence", "seq_len", "draft_lag", "k", "drafted", "accepted", "kept", "next_token", "finished")
BUDGETS = (60, 7, 1, 100, 33, 33, 80, 3, 60, 12)
TEXTS = [
    "def area(width, height):\n",
    "import os\nfrom pathlib import Path\n\n\n",
    "class Queue:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "for i in range(10):\n    print(",
    '"""Read',
]


def requests() -> list[Request]:
    """Ragged prompts of 1 to 40 tokens; budgets from 1 to 100, drafts and stop tokens that some have of their own."""
    rng = random.Random(5)
    lengths = (1, 9, 9, 9, 20, 20, 40, 2, 17, 9)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]
    own: list[dict[str, Any]] = [{} for _ in prompts]
    own[1], own[4], own[5] = {"num_speculative_tokens": 0}, {"stop_token_ids": [7, 19]}, {"num_speculative_tokens": 2}
    own[6], own[8] = {"num_speculative_tokens": 7}, {"stop_token_ids": [3, 30, 44], "seed": 11, "sequence_id": 70}
    return [Request(prompt, budget, **wishes) for prompt, budget, wishes in zip(prompts, BUDGETS, own, strict=True)]


def _even_prompts() -> list[list[int]]:
    """Prompts of one length, which often meet in groups."""
    rng = random.Random(6)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(12)] for _ in range(10)]


def summary(result: Result) -> dict[str, Any]:
    """Readable numbers, the digest of all tokens and stop reasons, and that of the rounds."""
    stats = result.stats
    rounds = [
        [record.mode, record.num_moves, [[getattr(row, name) for name in ROW_FIELDS] for row in record.rows]]
        for record in result.rounds
    ]
    return {
        "generated": stats.num_generated,
        "drafted": stats.acceptance.drafted,
        "accepted": stats.acceptance.accepted,
        "rounds": stats.num_rounds,
        "grouped": stats.num_grouped_rounds,
        "moves": stats.num_moves,
        "kv_bytes": stats.kv_bytes,
        "tokens": digest([[s.token_ids, s.stop_reason] for s in result.sequences]),
        "trace": digest(rounds),
    }


def _ordinary(pair: Pair) -> Iterator[tuple[str, Result]]:
    for rule, settings in RULES.items():
        given = SETTINGS | settings
        yield f"autoregressive {rule}", generate(pair, requests(), method="autoregressive", **given)
        for method in map("+".join, product(LAYOUTS, SCHEDULERS)):
            yield f"{method} {rule}", generate(pair, requests(), method=method, **given)


def _modes(pair: Pair) -> Iterator[tuple[str, Result]]:
    """Recorded rounds, fixed shapes, forced lengths, lazy compaction, aging, checks, one row, groups, cancelling."""
    for scheduler, (rule, settings) in product(("static", "fifo"), RULES.items()):
        given = SETTINGS | settings | {"method": f"inplace+{scheduler}", "cuda_graphs": True}
        yield f"recorded {scheduler} {rule}", generate(pair, requests(), **given)
    stable = SETTINGS | RULES["coupled"] | {"shape_stable": True}
    for method in ("autoregressive", "inplace+grouped"):
        yield f"shape-stable {method}", generate(pair, requests(), method=method, **stable)
    yield "shape-stable recorded", generate(pair, requests(), method="inplace", cuda_graphs=True, **stable)
    forced = {"acceptance": "forced:0.3/0.3/0.1/0.1/0.2"}
    for method, own in {
        "forced eqspec": {"method": "eqspec", **forced},
        "lazy compaction": {"method": "masked+fifo", "compaction_threshold": 0.7},
        "aging": {"method": "exspec", "aging_bound": 2, "batch_size": 2},
        "checked": {"method": "exspec", "checks": "device"},
        "one row": {"method": "eqspec", "batch_size": 1},
        "few drafts": {"method": "rollback", "num_speculative_tokens": 0},
    }.items():
        yield method, generate(pair, requests(), **SETTINGS | own)
    for layout in LAYOUTS:
        even = {"method": f"{layout}+grouped", "batch_size": 2, "window_size": 10, "num_speculative_tokens": 2}
        yield f"groups {layout}", generate(pair, _even_prompts(), **SETTINGS | even | RULES["coupled"])
    yield "cancelled", _cancelled(pair)


def _cancelled(pair: Pair) -> Result:
    """Every third sequence is cancelled at its second event."""
    run, seen = stream(pair, requests(), method="exspec", **SETTINGS), dict.fromkeys(range(len(BUDGETS)), 0)
    for event in run:
        seen[event.index] += 1
        if event.index % 3 == 0 and seen[event.index] == 2 and event.stop_reason is None:
            run.cancel(event.index)
    return run.result()


def _bundled(pair: Pair) -> Iterator[tuple[str, Result]]:
    """Text in and out, stop strings, in float32."""
    given = SETTINGS | {"max_new_tokens": 40, "stop_strings": ["return", "\n\n\n"]}
    for method, rule in (("exspec", "greedy"), ("masked", "coupled"), ("inplace", "rejection")):
        yield f"bundled {method} {rule}", generate(pair, TEXTS, method=method, **given | RULES[rule])


def engine_cases() -> dict[str, dict[str, Any]]:
    """All cases by name, on one thread."""
    torch.set_num_threads(1)
    llama = random_pair("llama", draft_noise=0.01)
    cases = {name: summary(result) for name, result in (*_ordinary(llama), *_modes(llama))}
    for kind in ("qwen3", "opt", "gpt2"):
        other = random_pair(kind, draft_noise=0.01)
        cases[f"{kind} masked"] = summary(generate(other, requests(), method="masked", **SETTINGS))
    return cases | {name: summary(result) for name, result in _bundled(load_pair("tiny"))}
