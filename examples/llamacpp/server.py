"""``python server.py FOLDER none|draft|ngram``: llama.cpp's server, inside of this process, as an engine for the kit.

FOLDER is what `export.py` has written. Needs xllamacpp, in an environment of its own. The number of drafts is a
setting of llama.cpp's server, not of a request: each number that the kit asks for gets a server.
"""

import json
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # logs go to stderr

import xllamacpp as xlc  # noqa: E402

FOLDER, DRAFTS = Path(sys.argv[1]), sys.argv[2]
SUPPORTS = ["keyed_sampling", "row_settings", "penalties", "logprobs", "counters", "streaming", "cancelling"]
SLOTS, SLOT_TOKENS, NGRAM = 33, 512, 2
FLOAT32 = xlc.ggml_type.GGML_TYPE_F32
COUNTERS = {"predicted_n": "generated", "draft_n": "drafted", "draft_n_accepted": "accepted"}


@cache
def server(num_drafts: int):
    """llama.cpp with so many drafts a round, on one thread; its flash attention on a CPU rounds to 16 bit."""
    params = xlc.CommonParams()
    params.model.path = str(FOLDER / "target.gguf")
    params.n_parallel, params.n_ctx = SLOTS, SLOTS * SLOT_TOKENS
    params.cache_type_k = params.cache_type_v = FLOAT32
    params.flash_attn_type = xlc.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.fit_params = params.ui = False
    if num_drafts and DRAFTS == "draft":
        params.speculative.types = [xlc.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft = params.speculative.draft
        draft.mparams.path, draft.n_max = str(FOLDER / "draft.gguf"), num_drafts
        draft.cache_type_k = draft.cache_type_v = FLOAT32
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = 1
    if num_drafts and DRAFTS == "ngram":
        params.speculative.types = [xlc.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_n, params.speculative.ngram_simple.size_m = NGRAM, num_drafts
    return xlc.Server(params)


def body(prompt: list[int], own: dict, place: int, streams: bool) -> dict:
    """A request for one row: nothing but its penalty and temperature changes the law."""
    return {
        "prompt": prompt,
        "n_predict": own["max_new_tokens"],
        "temperature": own["temperature"],
        "seed": (own["seed"] * 65_537 + place) % 2**31,
        "repeat_penalty": own.get("repetition_penalty", 1.0),
        "repeat_last_n": SLOT_TOKENS,
        "samplers": ["penalties", "temperature"],
        "ignore_eos": True,
        "n_probs": 1,
        "return_tokens": True,
        "stream": streams,
    }


def row(url: str, asked: dict, leaves: int | None) -> dict:
    """The answer for one row, whole or in pieces; its client leaves after so many tokens."""
    found = {"tokens": [], "completion_probabilities": [], "timings": {}}
    request = Request(url + "/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"})
    with closing(urlopen(request)) as lines:
        for line in lines:
            piece = json.loads(line.removeprefix(b"data: ")) if line.strip() else {}
            found["tokens"] += piece.get("tokens", [])
            found["completion_probabilities"] += piece.get("completion_probabilities", [])
            found["timings"] |= piece.get("timings", {})
            if leaves is not None and len(found["tokens"]) >= leaves:
                break
    return found


def generate(request: dict) -> dict:
    """Ask for all rows, as many at a time as the call allows."""
    prompts, num_drafts = request["prompts"], request["num_speculative_tokens"] * (DRAFTS != "none")
    url = server(num_drafts).listening_address
    rows = request.get("rows") or [request] * len(prompts)
    leaves = request.get("cancel_after") or [None] * len(prompts)
    streams = [request.get("stream", False) or at is not None for at in leaves]
    asked = list(map(body, prompts, rows, range(len(prompts)), streams))
    with ThreadPoolExecutor(request["batch_size"]) as pool:
        found = list(pool.map(row, [url] * len(prompts), asked, leaves))
    counters = Counter()
    for each in found:
        counters.update({name: each["timings"].get(key, 0) for key, name in COUNTERS.items()})
    logprobs = [[token["logprob"] for token in each["completion_probabilities"]] for each in found]
    return {"outputs": [each["tokens"] for each in found], "logprobs": logprobs, "counters": counters}


def answer(request: dict) -> dict:
    """Answer one request."""
    if request["op"] == "describe":
        with urlopen(f"{server(0).listening_address}/v1/models") as models:
            size = json.load(models)["data"][0]["meta"]["n_vocab"]
        return {"vocab_size": size, "supports": SUPPORTS}
    if any(own["stop_token_ids"] for own in [request, *request.get("rows", [])]):
        return {"not_supported": "stop tokens other than those of the model"}
    try:
        return generate(request)
    except HTTPError as error:
        return {"error": error.read().decode()}


for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"id": request["id"], **answer(request)}), file=answers, flush=True)
