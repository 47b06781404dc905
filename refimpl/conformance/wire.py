"""Requests and answers of engines in other processes as JSON objects, each a line; `docs/conformance.md` lists them."""

import json
from dataclasses import asdict, fields
from typing import Any

from refimpl.conformance.protocol import (
    Call,
    EngineFailure,
    EngineLost,
    EngineSettings,
    NotSupported,
    last_words,
)
from refimpl.core.errors import shown

DESCRIBE = {"op": "describe", "id": 0}
OPTIONAL = {item.name: item.default for item in fields(EngineSettings)[6:]}  # those of abilities


def request_of(call: Call, number: int) -> dict[str, Any]:
    """The request for a call; what needs an ability is in it only where it is used."""
    settings = asdict(call.settings)
    asked = {name: value for name, value in settings.items() if name not in OPTIONAL or value != OPTIONAL[name]}
    return {"op": "generate", "id": number, "prompts": call.prompts, **asked}


def parse(line: str, number: int) -> dict[str, Any]:
    """The answer to a request.

    Raises:
        EngineLost: the line is no answer to it.
        NotSupported, EngineFailure: the answer is a refusal, or an error.
    """
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, or JSON nested too deep
        answer = None
    if not isinstance(answer, dict):
        raise EngineLost(f"the engine printed {shown(line.strip())} on stdout; print logs to stderr")
    if answer.get("id") != number:
        raise EngineLost(f"expected a JSON object with id {number}, got the line {shown(line.strip())}")
    if answer.get("not_supported") is not None:
        raise NotSupported(last_words(answer["not_supported"]))
    if answer.get("error") is not None:
        raise EngineFailure(f"the engine reports an error: {last_words(answer['error'])}")
    return answer
