"""What the engine does with the bundled pair on one thread, a study a file of docs/results.

    python tools/studies.py STUDY docs/results/FILE.json

Everything that is compared runs in turn, several times: a machine that is slow for a while is slow for all of it.
Speeds are tokens per second of CPU time, and ratios are those within a turn.
"""

import json
import random
import statistics
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import numpy as np
import torch
from transformers import LlamaConfig, NoRepeatNGramLogitsProcessor, Qwen3NextConfig

import refimpl
from refimpl.bench.engines import hf_generate, round_s
from refimpl.bench.forced import rate_lengths
from refimpl.bench.memory import peak_bytes
from refimpl.bench.run import make_bench
from refimpl.bench.settings import BenchSettings, spread
from refimpl.core.errors import InputError
from refimpl.core.files import check_writable, write_whole
from refimpl.decoding.devices import provenance
from refimpl.decoding.memory import GIB
from refimpl.layouts.states import PassStates
from refimpl.pairs.names import TINY
from refimpl.pairs.random_pairs import random_models
from refimpl.planning import plan_memory
from refimpl.prompts import read_prompts
from refimpl.requests import encode
from simulator.intervals import mean_interval
from simulator.studies.adaptive import Rounds, Speeds, by_load, cost_table, goodput, load_table

Rows = list[dict[str, Any]]
Key, Found = TypeVar("Key"), TypeVar("Found")


class Run(NamedTuple):
    """A run of the engine, and its tokens per second of CPU time, prefill included."""

    result: refimpl.Result
    tokens_per_s: float


def run(pair: refimpl.Pair, prompts: list, **settings: Any) -> Run:
    """Decode the prompts without run-time checks, unless the settings say so."""
    begun = time.process_time()
    result = refimpl.generate(pair, prompts, **{"checks": "off"} | settings)
    return Run(result, result.stats.num_generated / (time.process_time() - begun))


def in_turn(count: int, engines: Mapping[Key, Callable[[], Found]]) -> dict[Key, list[Found]]:
    """What every engine found, once a turn, in an order that is drawn for each turn."""
    found: dict[Key, list[Found]] = defaultdict(list)
    for turn in range(count):
        for key in random.Random(turn).sample(list(engines), len(engines)):
            print(f"turn {turn + 1} of {count}: {key}", file=sys.stderr, flush=True)
            found[key].append(engines[key]())
    return {key: found[key] for key in engines}


def bundled(limit: int | None = None) -> list:
    """The bundled prompts."""
    return read_prompts(TINY / "prompts.jsonl", limit=limit)


# --- a long prompt joins rows that decode ----------------------------------------------------------------------------

METHODS = ("inplace", "inplace+continuous", "paged", "paged+continuous")
JOINED_ROWS, JOINING_TOKENS, ROUNDS_BEFORE = 8, 2000, 16


def joining(pair: refimpl.Pair) -> Rows:
    """How long rows wait for their next tokens when a prompt of 2,000 tokens comes, with chunks and without."""
    texts = [encode(pair, text, i) for i, text in enumerate(bundled())]
    prompt = [token for text in texts[JOINED_ROWS:] for token in text][:JOINING_TOKENS]
    found = in_turn(9, {name: lambda name=name: joined(pair, texts[:JOINED_ROWS], prompt, name) for name in METHODS})
    longest = {name: [turn["longest_gap_s"] for turn in turns] for name, turns in found.items()}
    return [
        {"method": name, "ratios": ratios(longest[name], longest["inplace"])}
        | {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        for name, turns in found.items()
    ]


def joined(pair: refimpl.Pair, rows: list[list[int]], prompt: list[int], method: str) -> dict[str, float]:
    """Seconds: a row's gap before the prompt comes (median), the longest one after it, the wait for its first token."""
    running = refimpl.stream(
        pair, rows, method=method, batch_size=JOINED_ROWS + 1, num_speculative_tokens=3, max_new_tokens=400,
        max_model_len=2500, stop_token_ids=[], checks="off",
    )  # fmt: skip
    before = list(islice(running, JOINED_ROWS * ROUNDS_BEFORE))  # every round gives every row tokens
    (joined,) = running.submit([prompt])
    after = []
    for event in running:
        after.append(event)
        if sum(seen.index == joined for seen in after) == 2:
            break
    first = next(event for event in after if event.index == joined)
    old = [event for event in before[-JOINED_ROWS:] + after if event.index != joined]
    return {
        "usual_gap_s": statistics.median(gaps(before)),
        "longest_gap_s": max(gaps(old)),
        "first_token_s": first.time_s - before[-1].time_s,
    }


def gaps(events: Iterable[refimpl.TokenEvent]) -> list[float]:
    """Seconds between two rounds, one after the other, that gave a row tokens."""
    ends: defaultdict[int, list[float]] = defaultdict(list)
    for event in events:
        ends[event.index].append(event.time_s)
    return [later - earlier for times in ends.values() for earlier, later in pairwise(times)]


def ratios(values: Iterable[float], others: Iterable[float]) -> list[float]:
    """Of each turn."""
    return [a / b for a, b in zip(values, others, strict=True)]


# --- rows in a fixed memory ------------------------------------------------------------------------------------------

STATISTICS = ("mean_residents", "num_preemptions", "num_rounds")


def residents(pair: refimpl.Pair) -> Rows:
    """Methods in 0.055 GiB of K/V, each with the most rows up to 32 that the engine accepts, in powers of two."""
    prompts = read_prompts(Path("docs/ragged.jsonl"))
    oracle = refimpl.generate(pair, prompts, method="autoregressive").sequences
    settings: dict[str, Any] = {"kv_memory_gib": 0.055, "num_speculative_tokens": 3}
    fitting = {}
    for method in (*METHODS, "masked", "exspec", "eqspec"):
        for size in (32, 16, 8, 4, 2, 1):
            try:
                fitting[method] = size, run(pair, prompts, method=method, batch_size=size, **settings).result
                break
            except InputError as error:
                print(f"{method}, {size} rows: {error}", file=sys.stderr, flush=True)
    engines = {
        method: lambda given={"method": method, "batch_size": size}: run(pair, prompts, **given, **settings)
        for method, (size, _) in fitting.items()
    }
    speeds = {name: [each.tokens_per_s for each in turns] for name, turns in in_turn(3, engines).items()}
    return [
        {"method": method, "batch_size": size, "prompts": len(prompts)}
        | {"exact": sum(a.token_ids == b.token_ids for a, b in zip(oracle, result.sequences, strict=True))}
        | {name: getattr(result.stats, name) for name in STATISTICS}
        | {"ratios": ratios(speeds[method], speeds["inplace"])}
        for method, (size, result) in fitting.items()
    ]


def memory(pair: refimpl.Pair) -> Rows:
    """Plans of 16 prompts for the weights and less and less besides: what was planned and measured, and speeds."""
    prompts = bundled(16)
    asked: dict[str, Any] = {"batch_size": 16, "num_speculative_tokens": 4, "max_new_tokens": 48}
    weights = plan_memory(pair, prompts, budget_gib=1, **asked).footprint.weights_bytes
    rooms = [weights + 1e6 * megabytes for megabytes in (100, 43, 32, 23)]
    plans = {budget: plan_memory(pair, prompts, budget_gib=budget / GIB, **asked) for budget in rooms}
    engines = {budget: lambda plan=plan: run(pair, prompts, **plan.settings) for budget, plan in plans.items()}
    speeds = [[each.tokens_per_s for each in turns] for turns in in_turn(3, engines).values()]
    return [
        {"budget_bytes": plan.budget_bytes, "planned_bytes": plan.footprint.total_bytes}
        | {name: plan.settings[name] for name in ("method", "batch_size", "num_speculative_tokens")}
        | {"measured_bytes": plan.footprint.weights_bytes + peak_bytes(engines[budget])}
        | {"ratios": ratios(speed, speeds[0])}
        for (budget, plan), speed in zip(plans.items(), speeds, strict=True)
    ]


# --- draft budgets ---------------------------------------------------------------------------------------------------

BATCH_SIZES, FIXED, MOST = (1, 4, 8, 16, 32), (0, 1, 3, 5), 5


def capacity(pair: refimpl.Pair) -> Rows:
    """Tokens per verified token: a number of drafts for the whole round beside as many for each row."""
    prompts = bundled(64)

    def per_verified(**drafting: Any) -> float:
        given = {"method": "inplace", "batch_size": 8, "max_new_tokens": 64} | drafting
        return run(pair, prompts, **given).result.stats.acceptance.tokens_per_verified_token

    return [
        {"drafts_per_row": k, "fixed": per_verified(num_speculative_tokens=k)}
        | {"capacity": per_verified(num_speculative_tokens=8, draft_budget=f"capacity:{8 * k}")}
        for k in range(1, 6)
    ]


def budgets(pair: refimpl.Pair) -> Rows:
    """Fixed numbers of drafts, and budgets that adapt, by batch size.

    Budgets know what fixed numbers of drafts did on other prompts: `by_load` how fast they were at each batch size,
    `goodput` what their rounds cost.
    """
    prompts = [encode(pair, text, i) for i, text in enumerate(bundled())]
    tried = measured(pair, prompts[::2], {f"fixed {k}": fixed_number(k) for k in range(MOST + 1)}, 5)
    numbers = [(size, [tried[size, f"fixed {k}"] for k in range(MOST + 1)]) for size in BATCH_SIZES]
    rounds = [(size, [statistics.median(full_round_s(each, size) for each in runs) for runs in row])
              for size, row in numbers]  # fmt: skip
    speeds = [(size, [statistics.mean(each.tokens_per_s for each in runs) for runs in row]) for size, row in numbers]
    found = measured(pair, prompts[1::2], find_budgets(rounds, speeds), 10)
    return compared({key: np.array([each.tokens_per_s for each in runs]) for key, runs in found.items()})


def fixed_number(k: int) -> dict[str, Any]:
    """Settings of so many drafts; with none, no draft model caches the prompts."""
    return {"num_speculative_tokens": k} | ({} if k else {"drafter": "ngram"})


def find_budgets(rounds: Rounds, speeds: Speeds) -> dict[str, dict[str, Any]]:
    """Settings by name: fixed numbers of drafts, and budgets with what rounds cost, or how fast they are."""
    adaptive = {"by_load": by_load(load_table(speeds)), "goodput": goodput(cost_table(rounds))}
    return {f"fixed {k}": fixed_number(k) for k in FIXED} | {
        name: {"num_speculative_tokens": MOST, "draft_budget": budget} for name, budget in adaptive.items()
    }


def measured(
    pair: refimpl.Pair, prompts: list, settings: Mapping[str, dict[str, Any]], turns: int
) -> dict[tuple[int, str], list[Run]]:
    """Runs of each batch size and setting, after one turn that warms up; three prompts a row, so that rows refill."""
    given: dict[str, Any] = {"method": "inplace", "max_new_tokens": 32, "stop_token_ids": ()}
    engines = {
        (size, name): lambda size=size, own=own: run(
            pair, spread(prompts, max(16, 3 * size)), **given | {"batch_size": size} | own
        )
        for size in BATCH_SIZES
        for name, own in settings.items()
    }
    return {key: runs[1:] for key, runs in in_turn(1 + turns, engines).items()}


def full_round_s(found: Run, size: int) -> float:
    """Seconds of a round by the clock while all rows run, prefill left out."""
    return statistics.median(round_s(record) for record in found.result.rounds if len(record.rows) == size)


def compared(speeds: Mapping[tuple[int, str], np.ndarray]) -> Rows:
    """Ratios to no drafts, and to the best fixed number at the same batch size; paired, with 95 % intervals."""
    rows = []
    for (size, name), values in speeds.items():
        fixed = [each for rows, each in speeds if rows == size and each.startswith("fixed")]
        best = max(fixed, key=lambda each: speeds[size, each].mean())
        over = {
            f"over_{which}": mean_interval(values / speeds[size, other], 0.95)[:3]
            for which, other in (("none", "fixed 0"), ("best", best))
        }
        rows.append({"batch_size": size, "budget": name, "best": best, "tokens_per_s": values.tolist()} | over)
    return rows


# --- settings and processors of requests -----------------------------------------------------------------------------

OF_REQUESTS: dict[str, list[dict[str, Any]]] = {  # by turns
    "greedy, none": [{}],
    "repetition penalty": [{"repetition_penalty": 1.1}],
    "repetition, frequency and presence": [
        {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.3}
    ],
    "bias, banned words, minimum": [
        {"logit_bias": {65: 1.0, 66: -1.0}, "bad_words_ids": [[67], [68, 69]], "min_new_tokens": 8}
    ],
    "transformers' no-repeat-ngram": [{"logits_processors": [NoRepeatNGramLogitsProcessor(4)]}],
    "a JSON schema": [
        {
            "grammar": {"json_schema": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
            "stop_token_ids": [0],
        }
    ],
    "temperature 0.8, top-p 0.9": [{"temperature": 0.8, "top_p": 0.9}],
    "temperatures and top-p that differ": [{"temperature": 0.8, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.8}],
}


def requests(pair: refimpl.Pair) -> Rows:
    """A round of eight rows, with settings and processors of requests beside the same round without them."""
    texts = [encode(pair, text, i) for i, text in enumerate(bundled(16))]

    def cpu_s(own: list[dict[str, Any]]) -> float:
        rows = [refimpl.Request(text, **own[i % len(own)]) for i, text in enumerate(texts)]
        given = {"batch_size": 8, "max_new_tokens": 40, "stop_token_ids": (), "checks": "off"}
        return round_cpu_s(refimpl.stream(pair, rows, **given), 8)

    turns = {name: lambda own=own: cpu_s(own) for name, own in OF_REQUESTS.items()}
    found = {name: each[1:] for name, each in in_turn(1 + 4, turns).items()}
    sampled = list(OF_REQUESTS)[-2]
    return [
        {"requests": name, "beside": beside, "ratios": ratios(each, found[beside])}
        for name, each in found.items()
        for beside in [sampled if OF_REQUESTS[name][0].get("temperature") else "greedy, none"]
    ]


def round_cpu_s(running: refimpl.Stream, size: int) -> float:
    """CPU seconds of a round with so many rows, the median of a run."""
    spent = []
    while not running.done:
        begun = time.process_time()
        record = running.run_one_round()
        if len(record.rows) == size:
            spent.append(time.process_time() - begun)
    return statistics.median(spent)


# --- a target with recurrent layers ----------------------------------------------------------------------------------

HYBRID: dict[str, Any] = {  # of eight layers two have attention
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 768,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "mlp_only_layers": list(range(8)),
}
DRAFT = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
OF_STATES = ("__init__", "read", "write", "commit")  # what moves them


def hybrid(_: refimpl.Pair) -> Rows:
    """A random Qwen3-Next with a small random Llama as its draft, three tokens a row and round, beside `generate`."""
    pair = hybrid_pair(512)
    prompts = [random.Random(i).choices(range(2, 512), k=16 + 5 * i) for i in range(8)]
    forced = {"num_speculative_tokens": 3, "acceptance": f"forced:{'/'.join(map(repr, rate_lengths(2 / 3, 3)))}"}
    given = {"max_new_tokens": 40, "stop_token_ids": (), "method": "inplace"}

    def per_s(size: int, **settings: Any) -> float:
        result = run(pair, prompts[:size], batch_size=size, **given | settings).result
        return result.stats.tokens_per_s  # by the clock, as for transformers

    def plain_per_s(size: int) -> float:
        bench = make_bench(pair, BenchSettings((size,), max_new_tokens=40))
        sample = hf_generate(bench, prompts[:size], size)
        return sample.tokens / sample.seconds

    names = {"transformers": plain_per_s, "no drafts": partial(per_s, num_speculative_tokens=0)}
    names["drafts"] = partial(per_s, **forced)
    turns = {(name, size): partial(each, size) for size in (1, 8) for name, each in names.items()}
    found = {key: each[1:] for key, each in in_turn(1 + 4, turns).items()}
    return [
        {
            "engine": name,
            "batch_size": size,
            "ratios": ratios(each, found["transformers", size]),
            "states_share": None if name == "transformers" else share_of_states(turns[name, size]),
        }
        for (name, size), each in found.items()
    ]


def hybrid_pair(vocab_size: int) -> refimpl.Pair:
    """Target and draft, random."""
    target = Qwen3NextConfig(**HYBRID, vocab_size=vocab_size)
    draft = LlamaConfig(**DRAFT, vocab_size=vocab_size)
    made = [random_models(each, seed=0, dtype=torch.float32, draft_noise=0.0)[0] for each in (target, draft)]
    return refimpl.make_pair(*made, stop_token_ids=())


def share_of_states(work: Callable[[], Any]) -> float:
    """Share of the CPU time in which states are copied before, in and after passes."""
    spent = 0.0

    def timed(method: Callable) -> Callable:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal spent
            begun = time.process_time()
            try:
                return method(*arguments, **named)
            finally:
                spent += time.process_time() - begun

        return call

    with ExitStack() as stack:
        for name in OF_STATES:
            stack.enter_context(patch.object(PassStates, name, timed(getattr(PassStates, name))))
        begun = time.process_time()
        work()
        return spent / (time.process_time() - begun)


STUDIES = (joining, residents, memory, capacity, budgets, requests, hybrid)


def main() -> None:
    """Write the rows of a study, and where they come from."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=[study.__name__ for study in STUDIES])
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    check_writable(given.output)
    torch.set_num_threads(1)
    pair = refimpl.load_pair("tiny")
    (study,) = (study for study in STUDIES if study.__name__ == given.study)
    write_whole(given.output, [json.dumps({"rows": study(pair), "meta": provenance(pair.device)}, indent=1)])


if __name__ == "__main__":
    main()
