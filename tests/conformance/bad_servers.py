"""Servers that misbehave: ``python bad_servers.py hang|crash|garbage|late-crash|wrong-form|wrong``."""

import json
import sys
import time

from refimpl.conformance.example_server import answer


def misbehave(kind: str, request: dict) -> None:
    if kind == "hang":
        time.sleep(1000)
    if kind == "crash" or (kind == "late-crash" and len(request["prompts"]) > 1):
        raise SystemExit("out of memory")
    if kind == "garbage":
        print("Loading checkpoint shards: 100%", flush=True)


def serve(kind: str) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        reply = {"id": request["id"], **answer(request)}
        if request["op"] == "generate":
            misbehave(kind, request)
            if kind == "wrong-form":
                reply["outputs"] = [*reply["outputs"][:-1], ["a"]]
            if kind == "wrong" and len(request["prompts"]) > 1:
                reply["outputs"][-1] = [0] * len(reply["outputs"][-1])
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
