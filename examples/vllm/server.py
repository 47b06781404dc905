"""``python server.py TARGET [--drafts …]``: vLLM in this process as an engine for the kit.

Drafts come from a model, from n-grams, or from the kit. Calls with k = 0 go to a second engine without drafts.
"""

import json
import os
import sys
from argparse import ArgumentParser
from collections import Counter
from functools import cache

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # logs go to stderr
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
# On a CPU: one thread that does not spin, and a small cache.
os.environ |= {"OMP_NUM_THREADS": "1", "KMP_BLOCKTIME": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1"}

import given  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402

parser = ArgumentParser()
parser.add_argument("target")
parser.add_argument("--drafts", choices=("none", "model", "ngram", "given"), default="none")
parser.add_argument("--draft", help="folder of the draft model")
parser.add_argument("--k", type=int, default=4)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--no-prefix-caching", action="store_true")
OPTIONS = parser.parse_args()
METHODS = {
    "none": None,
    "model": {"method": "draft_model", "model": OPTIONS.draft},
    "ngram": {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1},
    "given": {"method": "custom_class", "model": "given.GivenDrafts"},
}
SUPPORTS = ["sampling", "row_settings", "logprobs", "counters"] + ["drafts"] * (OPTIONS.drafts == "given")
COUNTERS = {"num_draft_tokens": "drafted", "num_accepted_tokens": "accepted", "num_drafts": "rounds"}


@cache
def engine(drafts: bool):
    """vLLM, with drafts or without."""
    method = METHODS[OPTIONS.drafts] if drafts else None
    return LLM(
        OPTIONS.target,
        dtype=OPTIONS.dtype,
        enforce_eager=True,
        enable_prefix_caching=not OPTIONS.no_prefix_caching,
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_seqs=64,
        disable_log_stats=False,  # else nothing counts drafts
        speculative_config=method and method | {"num_speculative_tokens": OPTIONS.k},
    )


def params(own: dict, place: int):
    """Settings of one row; with one seed for all, rows would share their random numbers."""
    return SamplingParams(
        temperature=own["temperature"],
        max_tokens=own["max_new_tokens"],
        stop_token_ids=own["stop_token_ids"],
        seed=own["seed"] * 65_537 + place if own["temperature"] else None,
        logprobs=0,
        ignore_eos=True,
        detokenize=False,
    )


def counts(llm) -> Counter:
    """Counters of speculation since the engine started."""
    values = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return Counter({name: values.get(f"vllm:spec_decode_{key}", 0) for key, name in COUNTERS.items()})


def generate(request: dict) -> dict:
    """Decode batch by batch."""
    llm, size, prompts = engine(request["num_speculative_tokens"] > 0), request["batch_size"], request["prompts"]
    settings = [params(own, i) for i, own in enumerate(request.get("rows") or [request] * len(prompts))]
    given.plans = sorted(zip(prompts, request.get("drafts", []), strict=False), key=lambda plan: -len(plan[0]))
    before, rows = counts(llm), []
    for start in range(0, len(prompts), size):
        batch = [{"prompt_token_ids": prompt} for prompt in prompts[start : start + size]]
        found = llm.generate(batch, settings[start : start + size], use_tqdm=False)
        rows += [row.outputs[0] for row in found]
    counted = counts(llm)
    counted.subtract(before)
    tokens = [list(row.token_ids) for row in rows]
    logprobs = [[at[token].logprob for at, token in zip(row.logprobs, row.token_ids, strict=True)] for row in rows]
    return {"outputs": tokens, "logprobs": logprobs, "counters": counted}


def answer(request: dict) -> dict:
    """Answer one request."""
    if request["op"] == "describe":
        return {"vocab_size": engine(False).llm_engine.model_config.get_vocab_size(), "supports": SUPPORTS}
    try:
        return generate(request)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"id": request["id"], **answer(request)}), file=answers, flush=True)
