"""Prompt files of every kind, and what is refused in them."""

import io
import json
from types import SimpleNamespace

import pytest

from refimpl import InputError, Request
from refimpl.prompts import read_prompts


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", "one\n\nthree\n", "line 2: the prompt is empty"),
        ("p.jsonl", '{"prompt": "a"}\nnot json\n', "line 2: not JSON"),
        ("p.jsonl", '{"text": "a"}\n', "line 1: an object with `prompt` or `turns`"),
        ("p.jsonl", '{"prompt": " "}\n', "line 1: the prompt is empty"),
        ("p.jsonl", '{"prompt": 3}\n', "line 1: a prompt must be a text"),
        ("p.jsonl", '{"turns": []}\n', "line 1: `turns` must be a list"),
        ("p.jsonl", '{"prompt": "a", "max_new_tokens": 0}\n', "line 1: max_new_tokens must be"),
        ("p.txt", "", "holds no prompts"),
    ],
)
def test_prompt_files(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_prompts(tmp_path / name)


def test_prompt_files_of_every_kind(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"turns": ["a", "b"]}\n\n{"prompt": [1, 2]}\n{"prompt": "c", "seed": 4, "top_k": 3, "logprobs": 1}\n'
    )
    assert read_prompts(path) == ["a", [1, 2], Request("c", seed=4, top_k=3, logprobs=1)]
    assert read_prompts(path, turns="all", limit=2) == ["a", "b"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"max_tokens": 3}, "line 1: unknown key `max_tokens`: write max_new_tokens"),
        ({"stop": ["x"]}, "line 1: unknown key `stop`: write stop_strings"),
        ({"max_new_token": 3}, "line 1: unknown key `max_new_token`: write max_new_tokens"),
        ({"Max-New-Tokens": 3}, "line 1: unknown key `Max-New-Tokens`: write max_new_tokens"),
        ({"best_of": 2}, "line 1: `best_of` cannot be chosen for one prompt"),
        ({"top_logprobs": 1}, "line 1: unknown key `top_logprobs`: write logprobs"),
        ({"temperature": -1}, "line 1: temperature must be a number ≥ 0, not -1"),
        ({"top_p": 0}, r"line 1: top_p must be a number in \(0, 1\], not 0"),
    ],
)
@pytest.mark.parametrize("prompt", [{"prompt": "a"}, {"turns": ["a", "b"]}])
def test_settings_that_would_be_ignored_are_refused(tmp_path, prompt, entry, message):
    (tmp_path / "p.jsonl").write_text(json.dumps(prompt | entry))
    with pytest.raises(InputError, match=message):
        read_prompts(tmp_path / "p.jsonl")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit": -1}, "limit must be an integer ≥ 1, not -1"),
        ({"turns": "bogus"}, "turns must be one of first, all, not 'bogus'"),
    ],
)
def test_impossible_choices_of_prompts(tmp_path, settings, message):
    (tmp_path / "p.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match=message):
        read_prompts(tmp_path / "p.txt", **settings)


def test_what_datasets_say_of_their_prompts_is_left_alone(tmp_path):
    names = "question_id category reference id task_id prompt_id source entry_point answer speed model top score"
    entry = {"prompt": "a", **dict.fromkeys(names.split(), 1)}
    (tmp_path / "p.jsonl").write_text(json.dumps(entry))
    assert read_prompts(tmp_path / "p.jsonl") == ["a"]


def test_settings_hold_for_every_turn(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"turns": ["a", "b"], "question_id": 1, "max_new_tokens": 3}')
    assert read_prompts(tmp_path / "p.jsonl", "all") == [Request("a", max_new_tokens=3), Request("b", max_new_tokens=3)]


@pytest.mark.parametrize(("name", "content"), [("p.txt", "a\nb\n"), ("p.jsonl", '{"prompt": "a"}\n{"prompt": "b"}\n')])
def test_byte_order_marks_are_no_text(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8-sig")
    assert read_prompts(tmp_path / name) == ["a", "b"]


@pytest.mark.parametrize("content", ["a {\r\nb", '\n {"prompt": "a {"}\n{"prompt": "b"}'])
def test_prompts_from_standard_input(monkeypatch, content):
    stdin = SimpleNamespace(buffer=io.BytesIO(content.encode("utf-8-sig")))
    monkeypatch.setattr("sys.stdin", stdin)
    assert read_prompts("-") == ["a {", "b"]


def test_standard_input_that_is_closed(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        read_prompts("-")


def test_nothing_on_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"\n")))
    with pytest.raises(InputError, match="standard input, line 1: the prompt is empty"):
        read_prompts("-")
