"""Servers that misbehave: ``python bad_servers.py KIND [FILE]``; a server of a kind that is none is right."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "refimpl" / "conformance"))
from example_server import answer

KIND, MARK = sys.argv[1], Path(*sys.argv[2:3])
AFTER_A_CRASH = MARK.is_file()
DESCRIPTIONS = {
    "no-abilities": {"vocab_size": 61, "supports": None},
    "refuses-to-tell": {"not_supported": "describe"},
    "another-again": {"vocab_size": 61, "supports": ["serving"] * AFTER_A_CRASH},
}
PRINTED = {"garbage": "Loading checkpoint shards: 100%\n", "half": '{"id": 1, "outp', "another-id": '{"id": 7}\n'}


def load() -> None:
    """Before the first request."""
    if KIND == "log-first":
        print("INFO loading", flush=True)
    if KIND == "helper":
        MARK.write_text(str(subprocess.Popen(["sleep", "100"]).pid))
    if KIND in ("crash-for-good", "another-again"):
        if KIND == "crash-for-good" and AFTER_A_CRASH:
            raise SystemExit("no memory left")
        MARK.touch()


def misbehave(request: dict, reply: dict) -> None:
    """While generating."""
    batch = len(request["prompts"]) > 1
    if KIND == "hang":
        if MARK.name:
            MARK.with_suffix(".new").write_text(str(os.getpid()))
            MARK.with_suffix(".new").rename(MARK)
        time.sleep(1000)
    if KIND in ("crash", "another-again") or (KIND in ("late-crash", "crash-for-good") and batch):
        raise SystemExit("out of memory")
    if KIND == "crash-once" and request["id"] == 5:
        raise SystemExit("out of memory")
    sys.stdout.write(PRINTED.get(KIND, ""))
    while KIND == "endless":
        sys.stdout.write("[" * 2**20)
    if KIND == "half":
        sys.stdout.flush()
        raise SystemExit("out of memory")
    if KIND == "long-error":
        reply["error"] = "Traceback:\n" + "  a frame\n" * 2000 + "ValueError: no memory"
    if KIND == "wrong-form":
        reply["outputs"][-1] = ["a"]
    if KIND == "wrong" and batch:
        reply["outputs"][-1] = [0] * len(reply["outputs"][-1])


def serve() -> None:
    load()
    for line in sys.stdin:
        request = json.loads(line)
        reply = answer(request)
        if request["op"] == "describe":
            reply = DESCRIPTIONS.get(KIND, reply)
        else:
            misbehave(request, reply)
        print(json.dumps({"id": request["id"], **reply}), flush=True)
        if KIND == "deaf":
            time.sleep(1000)
    if KIND == "farewell":
        MARK.touch()
    if KIND == "stays":
        time.sleep(1000)


if __name__ == "__main__":
    serve()
