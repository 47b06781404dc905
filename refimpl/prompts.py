"""Prompt files: one prompt a line (.txt), JSON lines with `prompt`, or Spec-Bench's `turns`."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from refimpl.config import Request
from refimpl.errors import InputError
from refimpl.files import read_lines
from refimpl.requests import Prompt

_REQUEST_FIELDS = {f.name for f in fields(Request)}


def read_prompts(path: str | Path, turns: Literal["first", "all"] = "first", limit: int | None = None) -> list[Prompt]:
    """Read a prompt file.

    Args:
        path: ``.txt`` holds one prompt a line; anything else is read as JSON lines. A JSON object has `prompt` (text
            or token ids) and may have the other fields of `Request`; or it has `turns`, as in Spec-Bench.
        turns: take the first turn of each object, or every turn as a prompt of its own.
        limit: keep the first so many prompts.

    Raises:
        InputError: the file is missing or malformed; the message names the line.
    """
    file = Path(path)
    prompts: list[Prompt] = []
    for number, line in enumerate(read_lines(file), start=1):
        if file.suffix == ".txt":
            if not line.strip():
                raise InputError(f"{file}, line {number}: the prompt is empty")
            prompts.append(line)
        elif line.strip():
            prompts += _parse(line, turns, f"{file}, line {number}")
    if not prompts:
        raise InputError(f"{file} holds no prompts")
    return prompts[:limit]


def _parse(line: str, turns: str, where: str) -> list[Prompt]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error.msg})") from error
    if not isinstance(entry, dict) or not ("prompt" in entry or "turns" in entry):
        raise InputError(f"{where}: an object with `prompt` or `turns` is needed")
    if "turns" in entry:
        return [_checked(text, where) for text in _turns(entry["turns"], where)[: None if turns == "all" else 1]]
    return [_request(entry, where)]


def _turns(turns: Any, where: str) -> list[Any]:
    if not isinstance(turns, list) or not turns:
        raise InputError(f"{where}: `turns` must be a list of at least one text")
    return turns


def _request(entry: dict[str, Any], where: str) -> Prompt:
    prompt = _checked(entry["prompt"], where)
    wishes = {name: entry[name] for name in _REQUEST_FIELDS & set(entry) - {"prompt"}}
    try:
        return Request(prompt, **wishes) if wishes else prompt
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _checked(prompt: Any, where: str) -> str | list[int]:
    is_ids = isinstance(prompt, list) and all(isinstance(t, int) and not isinstance(t, bool) for t in prompt)
    if not (isinstance(prompt, str) or is_ids):
        raise InputError(f"{where}: a prompt must be a text or a list of token ids")
    if not prompt or (isinstance(prompt, str) and not prompt.strip()):
        raise InputError(f"{where}: the prompt is empty")
    return prompt
