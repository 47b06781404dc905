"""Servers that misbehave: ``python bad_servers.py KIND``; what the kinds are, the functions say."""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

VOCAB_SIZE = 61


def continuation(prompt: list, request: dict) -> list:
    """Each token is a hash of all before it."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + request["max_new_tokens"]:
        tokens.append(hashlib.sha256(repr(tokens).encode()).digest()[0] % VOCAB_SIZE)
        if tokens[-1] in request["stop_token_ids"]:
            break
    return tokens[len(prompt) :]


def answer(request: dict) -> dict:
    """What a right server says."""
    if request["op"] == "describe":
        return {"vocab_size": VOCAB_SIZE, "supports": []}
    return {"outputs": [continuation(prompt, request) for prompt in request["prompts"]]}


def misbehave(kind: str, request: dict, rest: list[str]) -> None:
    """While generating."""
    if kind == "hang":
        for mark in rest:
            Path(mark).with_suffix(".new").write_text(str(os.getpid()))
            Path(mark).with_suffix(".new").rename(mark)
        time.sleep(1000)
    batch = len(request["prompts"]) > 1
    late = kind in ("late-crash", "crash-for-good") and batch
    if kind in ("another-again", "refuses-again"):
        Path(rest[0]).touch()
    if (
        kind in ("crash", "another-again", "refuses-again", "helper-and-crash")
        or late
        or (kind == "crash-once" and request["id"] == 5)
    ):
        raise SystemExit("out of memory")
    if kind == "half":
        sys.stdout.write('{"id": 1, "outp')
        sys.stdout.flush()
        raise SystemExit("out of memory")
    if kind == "endless":
        while True:
            sys.stdout.write("[" * 2**20)
    if kind == "garbage":
        print("Loading checkpoint shards: 100%", flush=True)
    if kind == "late-log" and batch:
        print(f"WARNING: a batch of {len(request['prompts'])}", flush=True)


def describe(kind: str, reply: dict, rest: list[str]) -> dict:
    """Say something else than what the engine is."""
    if kind == "fraction":
        reply["vocab_size"] = 61.0
    if kind == "too-many-tokens":
        reply["vocab_size"] = 10**30
    if kind == "no-abilities":
        reply["supports"] = None
    if kind == "table-of-abilities":
        reply["supports"] = {"keyed_sampling": False}
    if kind == "another-again" and Path(rest[0]).exists():
        reply["supports"] = ["serving"]
    if kind == "refuses-again" and Path(rest[0]).exists():
        return {"id": reply["id"], "not_supported": "no GPU is left"}
    return {"id": reply["id"], "not_supported": "describe"} if kind == "refuses-to-tell" else reply


def load(kind: str, rest: list[str]) -> None:
    """Before the first request."""
    if kind == "log-first":
        print("INFO loading", flush=True)
    if kind in ("helper-and-crash", "far-helper"):  # a process that has this one's stdin, stdout and stderr
        helper = subprocess.Popen(["sleep", "100"], start_new_session=kind == "far-helper")
        Path(rest[0]).write_text(str(helper.pid))
    if kind == "crash-for-good":
        mark = Path(rest[0])
        if mark.exists():
            raise SystemExit("no memory left")
        mark.touch()


def serve(kind: str, rest: list[str]) -> None:
    load(kind, rest)
    for line in sys.stdin:
        request = json.loads(line)
        reply = {"id": request["id"], **answer(request)}
        if request["op"] == "describe":
            reply = describe(kind, reply, rest)
            if kind == "deaf":
                print(json.dumps(reply), flush=True)
                time.sleep(1000)
        else:
            misbehave(kind, request, rest)
            if kind == "long-error":
                reply["error"] = "Traceback:\n" + "  a frame\n" * 2000 + "ValueError: no memory"
            if kind == "empty-error":
                reply["error"] = ""
            if kind == "wrong-form":
                reply["outputs"] = [*reply["outputs"][:-1], ["a"]]
            if kind == "wrong" and len(request["prompts"]) > 1:
                reply["outputs"][-1] = [0] * len(reply["outputs"][-1])
        print(json.dumps(reply), flush=True)
    if kind == "farewell":
        Path(rest[0]).touch()
    if kind == "stays":
        time.sleep(1000)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
