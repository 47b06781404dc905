"""A complete server of the standard library alone: ``--command "python refimpl/conformance/example_server.py"``.

Copy it, and replace `decode` by a call of your engine; nothing else is needed.
"""

import hashlib
import json
import os
import sys

VOCAB_SIZE = 61


def decode(prompt: list[int], max_new_tokens: int, stop_token_ids: list[int]) -> list[int]:
    """Generate for one prompt; here each token is a hash of all before it."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_new_tokens:
        tokens.append(hashlib.sha256(repr(tokens).encode()).digest()[0] % VOCAB_SIZE)
        if tokens[-1] in stop_token_ids:
            break
    return tokens[len(prompt) :]


def answer(request: dict) -> dict:
    """Answer one request."""
    if request["op"] == "describe":
        return {"vocab_size": VOCAB_SIZE, "supports": []}
    if request["temperature"] > 0:
        return {"not_supported": "sampling"}
    budget, stops = request["max_new_tokens"], request["stop_token_ids"]
    return {"outputs": [decode(prompt, budget, stops) for prompt in request["prompts"]]}


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine and its libraries print goes to stderr: load the engine after this line
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"id": request["id"], **answer(request)}), file=answers, flush=True)
