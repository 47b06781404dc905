"""``python server.py TARGET MODE [DRAFT]``: transformers in float64 as a server for the kit.

MODE is `generate` (batches, no drafts), `assisted` (a draft model, one prompt at a time) or `continuous`
(`generate_batch`, no drafts).
"""

import json
import os
import sys

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # logs go to stderr

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, GenerationConfig  # noqa: E402
from transformers.generation import ContinuousBatchingConfig  # noqa: E402

TARGET, MODE, *DRAFT = sys.argv[1:]
torch.set_num_threads(1)


def load(folder: str):
    """A model that ends at no token but those that are asked for."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    model.generation_config.eos_token_id = None
    return model


target, draft = load(TARGET), load(DRAFT[0]) if DRAFT else None


def config(request: dict) -> GenerationConfig:
    """Settings of a call."""
    chosen = {"do_sample": False}
    if request["temperature"]:
        chosen = {"do_sample": True, "temperature": request["temperature"], "top_k": 0, "top_p": 1.0}
    stops = request["stop_token_ids"] or None
    return GenerationConfig(max_new_tokens=request["max_new_tokens"], eos_token_id=stops, pad_token_id=0, **chosen)


def batch(prompts: list[list[int]], request: dict) -> list[list[int]]:
    """`generate` on prompts that are padded on the left."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    extra = {}
    if draft is not None and request["num_speculative_tokens"]:
        draft.generation_config.num_assistant_tokens = request["num_speculative_tokens"]
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0
        extra["assistant_model"] = draft
    output = target.generate(ids, attention_mask=mask, generation_config=config(request), **extra)
    return [until_stop(row, request["stop_token_ids"]) for row in output[:, width:].tolist()]


def until_stop(tokens: list[int], stops: list[int]) -> list[int]:
    """A row without the pads behind its stop token."""
    ends = [i + 1 for i, token in enumerate(tokens) if token in stops]
    return tokens[: ends[0]] if ends else tokens


def continuous(request: dict) -> list[list[int]]:
    """All prompts at once; as many run together as the call allows."""
    pool = ContinuousBatchingConfig(
        num_blocks=64, max_batch_tokens=256, max_requests_per_batch=request["batch_size"], seed=request["seed"]
    )
    found = target.generate_batch(request["prompts"], config(request), pool)
    return [list(row.generated_tokens) for row in found.values()]


def generate(request: dict) -> list[list[int]]:
    """Decode in the mode that was chosen."""
    torch.manual_seed(request["seed"])
    if MODE == "continuous":
        return continuous(request)
    prompts, size = request["prompts"], request["batch_size"]
    return [row for i in range(0, len(prompts), size) for row in batch(prompts[i : i + size], request)]


def answer(request: dict) -> dict:
    """Answer one request."""
    if request["op"] == "describe":
        return {"vocab_size": target.config.vocab_size, "supports": ["sampling"]}
    try:
        return {"outputs": generate(request)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"id": request["id"], **answer(request)}), file=answers, flush=True)
