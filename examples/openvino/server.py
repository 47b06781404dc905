"""``python server.py FOLDER draft|lookup``: OpenVINO GenAI, continuous batching with drafts, for the kit."""

import json
import os
import sys
from functools import cache
from pathlib import Path

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # logs go to stderr

import numpy as np  # noqa: E402
import openvino as ov  # noqa: E402
import openvino_genai as genai  # noqa: E402

FOLDER, DRAFTS = Path(sys.argv[1]), sys.argv[2]
VOCAB_SIZE = json.loads((FOLDER / "target" / "config.json").read_text())["vocab_size"]
EXACT = {  # by default keys and values are rounded to 8 bit
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "INFERENCE_NUM_THREADS": 1,
}


@cache
def pipeline(drafts: bool):
    """The engine, with drafts or without."""
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks, scheduler.max_num_batched_tokens, scheduler.max_num_seqs = 1024, 256, 64
    more = {}
    if drafts and DRAFTS == "draft":
        more["draft_model"] = genai.draft_model(str(FOLDER / "draft"), "CPU", **EXACT)
    if drafts and DRAFTS == "lookup":
        more["prompt_lookup"] = True
    return genai.ContinuousBatchingPipeline(str(FOLDER / "target"), scheduler, "CPU", EXACT | more)


def config(request: dict, row: dict, place: int):
    """Settings of one row; its seed depends on its place, since with equal ones rows would share their numbers."""
    own = genai.GenerationConfig()
    own.max_new_tokens, own.stop_token_ids = row["max_new_tokens"], set(row["stop_token_ids"])
    own.ignore_eos = not row["stop_token_ids"]
    if not own.ignore_eos:
        own.eos_token_id = row["stop_token_ids"][0]  # in place of the model's, which is not asked for
    own.repetition_penalty = row.get("repetition_penalty", 1.0)
    own.num_assistant_tokens = request["num_speculative_tokens"]
    if DRAFTS == "lookup" and own.num_assistant_tokens:
        own.max_ngram_size = 2
    if row["temperature"] > 0:
        own.do_sample, own.temperature, own.top_k, own.top_p = True, row["temperature"], VOCAB_SIZE, 1.0
        own.rng_seed = (row["seed"] * 65_537 + place) % 2**31
    return own


def generate(request: dict) -> list[list[int]]:
    """Decode batch by batch."""
    engine, size, rows = pipeline(request["num_speculative_tokens"] > 0), request["batch_size"], []
    settings = request.get("rows") or [request] * len(request["prompts"])
    for start in range(0, len(request["prompts"]), size):
        batch = request["prompts"][start : start + size]
        prompts = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in batch]
        rows += engine.generate(prompts, [config(request, settings[start + i], start + i) for i in range(len(batch))])
    return [[int(token) for token in row.m_generation_ids[0]] for row in rows]


def answer(request: dict) -> dict:
    """Answer one request."""
    if request["op"] == "describe":
        return {"vocab_size": VOCAB_SIZE, "supports": ["sampling", "row_settings", "penalties"]}
    try:
        return {"outputs": generate(request)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"id": request["id"], **answer(request)}), file=answers, flush=True)
