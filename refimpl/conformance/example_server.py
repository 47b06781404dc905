"""A complete server: ``--command "python -m refimpl.conformance.example_server"``.

Replace `decode` by a call of your engine; nothing else is needed.
"""

import json
import sys

from refimpl.models.table_model import VOCAB_SIZE, greedy_continuation


def decode(prompt: list[int], max_new_tokens: int, stop_token_ids: list[int]) -> list[int]:
    """Generate for one prompt."""
    tokens = greedy_continuation(prompt, max_new_tokens)
    end = next((i + 1 for i, token in enumerate(tokens) if token in stop_token_ids), len(tokens))
    return tokens[:end]


def answer(request: dict) -> dict:
    """Answer one request."""
    if request["op"] == "describe":
        return {"vocab_size": VOCAB_SIZE, "supports": []}
    if request["temperature"] > 0:
        return {"not_supported": "sampling"}
    budget, stops = request["max_new_tokens"], request["stop_token_ids"]
    return {"outputs": [decode(prompt, budget, stops) for prompt in request["prompts"]]}


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"id": request["id"], **answer(request)}), flush=True)
