"""Prompt files: one prompt a line (.txt), JSON lines with `prompt`, or Spec-Bench's `turns`."""

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

from refimpl.core.errors import InputError, nearest, require, shown
from refimpl.core.reading import STANDARD_INPUT, parse_json, read_lines
from refimpl.core.request import Request
from refimpl.core.values import as_path, require_int
from refimpl.requests import Prompt

Turns = Literal["first", "all"]
TURNS: tuple[str, ...] = get_args(Turns)
OWN_SETTINGS = {f.name for f in fields(Request)} - {"prompt", "logits_processors"}  # JSON has no functions
OTHER_NAMES = {  # that other programs have for them
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), "max_new_tokens"),
    **dict.fromkeys(("stop", "stop_sequences", "stop_words"), "stop_strings"),
    **dict.fromkeys(("stop_tokens", "eos_token_id"), "stop_token_ids"),
    "top_logprobs": "logprobs",
    "min_tokens": "min_new_tokens",
    "bad_words": "bad_words_ids",
    "sequence_bias": "logit_bias",
}
OF_THE_RUN = {"best_of"}
NEAR = 0.9  # similarity from which on a key is taken for a misspelt setting


def read_prompts(path: str | Path, turns: Turns = "first", limit: int | None = None) -> list[Prompt]:
    """Read a prompt file.

    Args:
        path: ``.txt`` holds one prompt a line; anything else is read as JSON lines. A JSON object has `prompt` (text
            or token ids), or `turns`, as in Spec-Bench, and may have the other fields of `Request`. Keys that stand for
            nothing here are left alone. ``-`` is standard input, JSON lines if it begins with a brace.
        turns: take the first turn of each object, or every turn as a prompt of its own.
        limit: keep the first so many prompts.

    Raises:
        InputError: the file is missing or malformed, where the message names the line; turns or limit are impossible.
    """
    require(turns in TURNS, f"turns must be one of {', '.join(TURNS)}, not {shown(turns)}")
    if limit is not None:
        require_int("limit", limit, 1)
    file = as_path(path)
    name = "standard input" if file == STANDARD_INPUT else str(file)
    lines = list(read_lines(file))
    is_text = not _begins_with_brace(lines) if file == STANDARD_INPUT else file.suffix == ".txt"
    prompts: list[Prompt] = []
    for number, line in enumerate(lines, start=1):
        if is_text:
            if not line.strip():
                raise InputError(f"{name}, line {number}: the prompt is empty")
            prompts.append(line)
        elif line.strip():
            prompts += _parse(line, turns, f"{name}, line {number}")
    if not prompts:
        raise InputError(f"{name} holds no prompts")
    return prompts[:limit]


def _begins_with_brace(lines: list[str]) -> bool:
    return next((line for line in lines if line.strip()), "").lstrip().startswith("{")


def _parse(line: str, turns: str, where: str) -> list[Prompt]:
    entry = parse_json(line, where)
    if not isinstance(entry, dict) or not ("prompt" in entry or "turns" in entry):
        raise InputError(f"{where}: an object with `prompt` or `turns` is needed")
    settings = _own_settings(entry, where)
    if "turns" in entry:
        texts = _turns(entry["turns"], where)[: None if turns == "all" else 1]
        return [_request(text, settings, where) for text in texts]
    return [_request(entry["prompt"], settings, where)]


def _own_settings(entry: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields of a Request among an object's keys.

    Raises:
        InputError: a key looks like such a field, but is none.
    """
    for key in sorted(entry.keys() - OWN_SETTINGS):
        plain = key.lower().replace("-", "_")
        if plain in OF_THE_RUN:
            raise InputError(f"{where}: `{key}` cannot be chosen for one prompt")
        near = OTHER_NAMES.get(plain) or nearest(plain, OWN_SETTINGS, NEAR)
        if near:
            raise InputError(f"{where}: unknown key `{key}`: write {near}")
    return {name: entry[name] for name in OWN_SETTINGS & entry.keys()}


def _turns(turns: Any, where: str) -> list[Any]:
    if not isinstance(turns, list) or not turns:
        raise InputError(f"{where}: `turns` must be a list of at least one text")
    return turns


def _request(prompt: Any, settings: dict[str, Any], where: str) -> Prompt:
    checked = _checked(prompt, where)
    try:
        return Request(checked, **settings) if settings else checked
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _checked(prompt: Any, where: str) -> str | list[int]:
    is_ids = isinstance(prompt, list) and all(isinstance(t, int) and not isinstance(t, bool) for t in prompt)
    if not (isinstance(prompt, str) or is_ids):
        raise InputError(f"{where}: a prompt must be a text or a list of token ids")
    if not prompt or (isinstance(prompt, str) and not prompt.strip()):
        raise InputError(f"{where}: the prompt is empty")
    return prompt
