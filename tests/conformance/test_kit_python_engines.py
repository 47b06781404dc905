"""Engines in this process: how they are named, what they state and raise, and their time."""

import gc
import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_engines import Prompts, Toy, next_id, verdict_of

from refimpl.conformance.kit import check_engine
from refimpl.conformance.limits import Limits
from refimpl.conformance.protocol import EngineGone, EngineSettings
from refimpl.conformance.python_engine import PythonEngine, load_engine
from refimpl.conformance.report import tell_place
from refimpl.core.errors import InputError

ENGINE = """
import toy_engines
from own.cache import evict

def fail(prompts, settings, outputs):
    return evict("[")

def make():
    return toy_engines.Toy(fail)

def broken():
    evict("{")
"""


def test_the_place_of_an_error_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the engine's own code, where a library raises what it is given."""
    (tmp_path / "own").mkdir()
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "a_library.py").write_text(
        "import json\ndef read(text):\n    return json.loads(text)\n"
    )
    (tmp_path / "own" / "cache.py").write_text("import a_library\ndef evict(rows):\n    a_library.read(rows)\n")
    (tmp_path / "own_engine.py").write_text(ENGINE)
    for folder in (tmp_path, tmp_path / "site-packages"):
        monkeypatch.syspath_prepend(folder)
    engine = load_engine("own_engine:make")
    for one in (engine, engine.engine):
        verdict = verdict_of(one, "equals_reference")
        assert verdict.reason.startswith("JSONDecodeError")
        assert verdict.place == verdict.as_dict()["place"] == "cache.py:3, in evict"
        assert tell_place(verdict) == ["at cache.py:3, in evict"]
    with pytest.raises(InputError, match=r"JSONDecodeError: .* \(at cache.py:3, in evict\)$"):
        load_engine("own_engine:broken")
    with pytest.raises(InputError, match=r"No module named 'refimpl.nowhere'$"):
        load_engine("refimpl.nowhere:make")


@pytest.mark.parametrize("wrong", [lambda *_: 5, lambda prompts, settings, outputs: list(map(next_id, outputs))])
def test_what_no_error_has_raised_has_no_place(wrong: Any) -> None:
    verdict = verdict_of(Toy(wrong, reference=Toy()), "equals_reference")
    assert (verdict.status, verdict.place, tell_place(verdict)) == ("fail", "", [])


@pytest.mark.parametrize("end", [KeyboardInterrupt, pytest.fail.Exception])
def test_an_interrupt_and_the_end_of_a_tests_time_are_no_failures(end: Any) -> None:
    def interrupted(*_: Any) -> Any:
        raise end("Timeout")

    with pytest.raises(end):
        check_engine(Toy(interrupted), properties=["prompts_matter"])


# --- what is no engine -----------------------------------------------------------------------------------------------


class NotLoaded(Toy):
    @property
    def vocab_size(self) -> int:
        raise RuntimeError("no GPU")


BAD_ENGINES = [
    (Toy(vocab_size=None), "vocab_size must be an integer in [2, 2147483648], not None"),
    (Toy(vocab_size=61.0), "vocab_size must be an integer in [2, 2147483648], not 61.0"),
    (Toy(supports=None), "supports must be a list of abilities, not None"),
    (Toy(supports="sampling"), "supports must be a list of abilities, not 'sampling'"),
    (Toy(supports=[["sampling"], "x"]), "unknown ability [['sampling']] in supports: choose sampling, keyed_sampling"),
    (Toy(block_size=0), "block_size must be an integer in [1, 4096], not 0"),
]


@pytest.mark.parametrize(("engine", "told"), BAD_ENGINES)
@pytest.mark.parametrize("take", [PythonEngine, lambda engine: engine])
def test_what_is_no_engine_is_an_input_error(engine: Any, told: str, take: Any) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        check_engine(take(engine))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nonsense", "an engine is named module:factory, as in an import, not 'nonsense'"),
        (3, "an engine is named module:factory, as in an import, not 3"),
        (":make", "module:factory"),
        ("./toy_engines.py:make", "module:factory"),
        ("refimpl.nowhere:make", "fails to make an engine: ModuleNotFoundError"),
        ("refimpl.faults.engine:faulty:x", "unknown fault"),
        ("toy_engines:exiting:made", "SystemExit: 0"),
        ("builtins:len:abc", "fails to make an engine: AttributeError: 'int' object has no attribute 'vocab_size'"),
        ("toy_engines:NotLoaded", "'toy_engines:NotLoaded' fails to make an engine: RuntimeError: no GPU"),
        ("broken_syntax:make", "SyntaxError"),
        ("broken_panic:make", "panic"),
    ],
)
def test_a_wrong_name_or_module_is_an_input_error(tmp_path: Path, monkeypatch, name: Any, told: str) -> None:
    (tmp_path / "broken_syntax.py").write_text("x = (")
    (tmp_path / "broken_panic.py").write_text("raise BaseException('panic')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("toy_engines.NotLoaded", NotLoaded, raising=False)
    with pytest.raises(InputError) as refused:
        load_engine(name)
    assert told in str(refused.value)


def test_modules_are_looked_for_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine_in_this_folder.py").write_text("import toy_engines\nmake = toy_engines.make\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(InputError, match="No module named"):
        load_engine("engine_in_this_folder:make")
    monkeypatch.chdir(tmp_path)
    assert load_engine("engine_in_this_folder:make").vocab_size > 1


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"properties": "magic"}, r"unknown property \['magic'\]: choose equals_reference, "),
        ({"properties": []}, r"properties must be names, in a list or with commas between them, not \[\]"),
    ],
)
def test_check_engine_refuses_wrong_arguments(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        check_engine(Toy(), **{"max_examples": 1, "properties": "runs_repeat"} | wrong)


def test_other_wrong_arguments_are_named_too() -> None:
    with pytest.raises(InputError, match=r"prompt_tokens must be an integer in \[1, 131072\], not None"):
        Limits(prompt_tokens=None)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    limits, number = Limits(max_k=np.int64(2), new_tokens=np.int64(9)), np.int64(3)  # type: ignore[arg-type]
    report = check_engine(Toy(), max_examples=number, properties=["runs_repeat"], limits=limits, seed=number)  # type: ignore[arg-type]
    assert report.passed
    assert json.loads(json.dumps(report.as_dict()))["seed"] == 3


# --- time ------------------------------------------------------------------------------------------------------------


def test_an_engine_that_hangs_is_bounded_and_ends_the_run() -> None:
    def hang(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        while len(prompts) > 1:
            try:
                time.sleep(0.01)
            except Exception:
                continue
        return outputs

    engine = PythonEngine(Toy(hang), timeout_s=2)
    first, second = check_engine(engine, properties=["budget_is_exact", "runs_repeat"]).verdicts
    assert (first.status, second.status) == ("fail", "not run")
    assert "no answer within 2 s (timeout_s)" in first.reason
    assert re.fullmatch(r"test_kit_python_engines.py:\d+, in hang", first.place)
    assert len(first.calls[0].prompts) > 1


def test_an_engine_that_never_comes_back_to_python_is_bounded(tmp_path: Path) -> None:
    """It waits where no signal is heard, as in a library in C."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    engine = PythonEngine(Toy(lambda *_: os.open(pipe, os.O_RDONLY)), timeout_s=0.1)
    with pytest.raises(EngineGone, match=r"no answer within 0.1 s \(timeout_s\)"):
        engine([[1]], EngineSettings())
    os.open(pipe, os.O_RDWR)  # and comes back


def test_an_engine_is_made_and_asked_in_one_thread() -> None:
    """What it or its libraries keep for a thread is there in every call."""
    engine = load_engine("toy_engines:of_thread")
    assert engine([[1]], EngineSettings()) == engine([[1]], EngineSettings()) == [[engine.engine.made_in]]


def test_the_thread_of_an_engine_goes_with_it() -> None:
    engine, before = PythonEngine(Toy()), threading.active_count()
    assert engine([[1]], EngineSettings())
    del engine
    gc.collect()
    for _ in range(100):
        if threading.active_count() < before:
            return
        time.sleep(0.01)
    pytest.fail("the thread is still there")


def test_a_time_that_an_engine_runs_out_of_itself_is_its_own_error() -> None:
    def late(*_: Any) -> Any:
        raise TimeoutError("the device")

    with pytest.raises(TimeoutError, match="the device"):
        PythonEngine(Toy(late), timeout_s=5)([[1]], EngineSettings())
