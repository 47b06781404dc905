"""Kernels of a recorded round by name, for each value of `layers`.

``python tools/round_kernels.py OUTPUT --pair qwen3 --random-weights --device cuda --dtype bfloat16`` decodes eight rows
with `inplace`. Of rounds that neither prefill nor record it takes the median times, and profiles one. Without CUDA it
counts calls of operators in place of kernels.
"""

import argparse
import json
import random
import statistics
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from refimpl.bench.engines import only_decodes, round_s
from refimpl.bench.forced import rate_lengths
from refimpl.bench.probe import busy_s, device_events
from refimpl.core.config import forced, make_config
from refimpl.core.errors import InputError
from refimpl.core.files import check_writable, write_whole
from refimpl.decoding.devices import provenance
from refimpl.decoding.engine import Engine
from refimpl.decoding.trace import RoundRecord
from refimpl.models.adapter import HuggingFaceLM, Pair
from refimpl.pairs import load_pair, make_pair
from refimpl.requests import prepare

ROWS, DRAFTS, PROMPT_TOKENS, NEW_TOKENS, RATE = 8, 5, 64, 96, 0.4
WARM_ROUNDS, ROUNDS, SHOWN = 3, 8, 30


def arguments() -> argparse.Namespace:
    """Read the command line; what cannot be done is one line, and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--pair", default="tiny")
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    parser.add_argument("--layers", default="transformers,lean,compiled", help="what runs the layers, one or several")
    given = parser.parse_args()
    try:
        check_writable(given.output)
        options = {"random_weights": given.random_weights, "device": given.device, "dtype": given.dtype}
        given.models = load_pair(given.pair, **options)
    except InputError as error:
        parser.error(str(error))
    return given


def measure(pair: Pair) -> dict[str, Any]:
    """Times and kernels of a round."""
    rng = random.Random(0)
    prompts = [[rng.randrange(pair.vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(ROWS)]
    config = make_config(
        method="inplace", batch_size=ROWS, num_speculative_tokens=DRAFTS, max_new_tokens=NEW_TOKENS, checks="off",
        stop_token_ids=(), acceptance=forced(rate_lengths(RATE, DRAFTS)), cuda_graphs=True,
    )  # fmt: skip
    engine = Engine(pair, prepare(pair, prompts, config), config)
    rounds = engine.rounds()
    list(islice(rounds, WARM_ROUNDS))
    timed = list(islice((record for record in rounds if only_decodes(record)), ROUNDS))
    found, record = profiled(pair.device, engine)
    while not only_decodes(record):
        found, record = profiled(pair.device, engine)
    return {
        "ms_per_round": 1e3 * statistics.median(map(round_s, timed)),
        "ms_draft": 1e3 * statistics.median(record.stage_s["draft_s"] for record in timed),
        "ms_verify": 1e3 * statistics.median(record.stage_s["verify_s"] for record in timed),
        **found,
    }


def profiled(device: torch.device, engine: Engine) -> tuple[dict[str, Any], RoundRecord]:
    """Kernels of one round, and the round."""
    records: list[RoundRecord] = []
    events = device_events(device, lambda: records.extend(islice(engine.rounds(), 1)))
    counts, us = Counter(e.name for e in events), Counter[str]()
    for event in events:
        us[event.name] += event.time_range.elapsed_us()
    by_name = [{"name": name, "count": counts[name], "ms": time / 1e3} for name, time in us.most_common(SHOWN)]
    return {"kernels": len(events), "ms_busy": 1e3 * busy_s(events), "by_name": by_name}, records[0]


def main() -> int:
    """Measure and write."""
    given = arguments()
    pair: Pair = given.models
    models, measured = [lm.model for lm in pair.models() if isinstance(lm, HuggingFaceLM)], []
    for layers in given.layers.split(","):
        other = make_pair(*models, stop_token_ids=(), vocab_size=pair.vocab_size, layers=layers)
        measured.append({"layers": layers, **measure(other)})
        print({name: value for name, value in measured[-1].items() if name != "by_name"}, file=sys.stderr)
    meta = {"pair": pair.name, "dtype": str(pair.dtype).removeprefix("torch."), "rows": ROWS, "drafts": DRAFTS}
    write_whole(given.output, [json.dumps({"variants": measured, "meta": provenance(pair.device) | meta}, indent=1)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
