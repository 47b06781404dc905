"""The protocol of servers: requests and answers as JSON objects, each a line. Another transport would reuse this.

`id` comes back unchanged. What an answer may be instead of outputs: a refusal, or an error.

| request                                                                     | answer                                  |
|-----------------------------------------------------------------------------|-----------------------------------------|
| ``{"op": "describe", "id": 0}``                                             | ``{"id": 0, "vocab_size": 61, "supports": []}`` |
| ``{"op": "generate", "id": 1, "prompts": [[5, 7]], "max_new_tokens": 16, "batch_size": 4, "num_speculative_tokens": 3, "stop_token_ids": [], "temperature": 0.0, "seed": 0}`` | ``{"id": 1, "outputs": [[9, 3, 4]]}`` |
| where `describe` says ``"supports": ["serving"], "block_size": 4``, also: ``{"op": "generate", …, "submit_at": [0], "cancel_at": [null]}`` | as before |
| what the engine cannot do                                                   | ``{"id": 1, "not_supported": "why"}``   |
| what went wrong                                                             | ``{"id": 1, "error": "what"}``          |
"""  # noqa: E501 (a request is one line)

import json
from dataclasses import asdict
from typing import Any

from refimpl.conformance.protocol import (
    BLOCK_SIZE,
    Call,
    Description,
    EngineFailure,
    EngineLost,
    NotSupported,
    check_answer,
    check_description,
    last_words,
)
from refimpl.core.errors import shown

DESCRIBE = {"op": "describe", "id": 0}


def request_of(call: Call, number: int) -> dict[str, Any]:
    """The request for a call; a timetable is in it only where there is one."""
    settings = asdict(call.settings)
    if not call.settings.submit_at:
        del settings["submit_at"], settings["cancel_at"]
    return {"op": "generate", "id": number, "prompts": call.prompts, **settings}


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


def description_of(answer: dict[str, Any], name: str) -> Description:
    """What an engine says of itself.

    Raises:
        InputError: it says something else; the message begins with the engine's name.
    """
    stated = answer.get("vocab_size"), answer.get("supports", ()), answer.get("block_size", BLOCK_SIZE)
    return check_description(name, *stated)


def outputs_of(answer: dict[str, Any], num_prompts: int, vocab_size: int) -> list[list[int]]:
    """The tokens of an answer.

    Raises:
        EngineFailure: there is no list of known token ids for each prompt.
    """
    return check_answer(answer.get("outputs"), num_prompts, vocab_size)
