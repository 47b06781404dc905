"""Engines in this process: what they raise, state and draw, their time, and the timers of others."""

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_engines import Prompts, Toy, described, next_id

from refimpl.conformance.cases import Limits
from refimpl.conformance.command_engine import CommandEngine
from refimpl.conformance.kit import check_engine
from refimpl.conformance.protocol import EngineSettings
from refimpl.conformance.python_engine import PythonEngine, load_engine, time_limit
from refimpl.conformance.report import tell_place
from refimpl.core.errors import InputError


class PanicException(BaseException):
    """As PyO3 raises it for a panic of Rust."""


@pytest.mark.parametrize("wrap", [PythonEngine, lambda engine: engine])
def test_a_panic_of_an_engine_in_another_language_is_a_failure(wrap: Any) -> None:
    def panic(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    (verdict,) = check_engine(wrap(Toy(panic)), properties=["equals_reference"]).verdicts
    assert verdict.reason == "PanicException: called `Option::unwrap()` on a `None` value"


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
        (verdict,) = check_engine(one, properties=["equals_reference"]).verdicts
        assert verdict.reason.startswith("JSONDecodeError")
        assert verdict.place == verdict.as_dict()["place"] == "own/cache.py:3, in evict"
        assert tell_place(verdict) == ["at own/cache.py:3, in evict"]
    with pytest.raises(InputError, match=r"JSONDecodeError: .* \(at own/cache.py:3, in evict\)$"):
        load_engine("own_engine:broken")
    with pytest.raises(InputError, match=r"No module named 'refimpl.nowhere'$"):
        load_engine("refimpl.nowhere:make")


@pytest.mark.parametrize("wrong", [lambda *_: 5, lambda prompts, settings, outputs: list(map(next_id, outputs))])
def test_what_no_error_has_raised_has_no_place(wrong: Any) -> None:
    (verdict,) = check_engine(Toy(wrong, reference=Toy()), properties=["equals_reference"]).verdicts
    assert (verdict.status, verdict.place, tell_place(verdict)) == ("fail", "", [])


@pytest.mark.parametrize("end", [KeyboardInterrupt, pytest.fail.Exception])
def test_an_interrupt_and_the_end_of_a_tests_time_are_no_failures(end: Any) -> None:
    def interrupted(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        raise end("Timeout")

    with pytest.raises(end):
        check_engine(Toy(interrupted), properties=["prompts_matter"])


class NotLoaded(Toy):
    @property
    def vocab_size(self) -> int:
        raise RuntimeError("no GPU")


def test_an_engine_that_cannot_say_what_it_is_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toy_engines.make", NotLoaded)
    with pytest.raises(InputError, match="'toy_engines:make' fails to make an engine: RuntimeError: no GPU"):
        load_engine("toy_engines:make")


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        (described(vocab_size=None)(), "vocab_size must be an integer of at least 2, not None"),
        (described(supports="sampling")(), "supports must be a list of abilities, not 'sampling'"),
        (described(block_size=0)(), "block_size must be an integer from 1 to 4096, not 0"),
        (len, "no callable with vocab_size and supports"),
    ],
)
def test_check_engine_refuses_what_is_no_engine(engine: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        check_engine(engine, max_examples=1, properties=["runs_repeat"])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"properties": 3}, "properties must be names, in a list or with commas between them, not 3"),
        ({"properties": [3]}, r"properties must be names, in a list or with commas between them, not \[3\]"),
        ({"properties": []}, r"properties must be names, in a list or with commas between them, not \[\]"),
        ({"seed": None}, "seed must be an integer, not None"),
        ({"seed": 1.5}, "seed must be an integer, not 1.5"),
        ({"limits": {}}, "limits must be Limits, not {}"),
        ({"reference": 3}, "reference must be an engine, or a function that is called as one, not 3"),
        ({"watch": 60}, "watch must be a Watch, not 60"),
        ({"name": None}, "name must be a text, not None"),
        ({"shrink": "no"}, "shrink must be true or false, not 'no'"),
        ({"fail_fast": 1}, "fail_fast must be true or false, not 1"),
    ],
)
def test_check_engine_refuses_wrong_arguments(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        check_engine(Toy(), **{"max_examples": 1, "properties": "runs_repeat"} | wrong)


def test_other_wrong_arguments_are_named_too() -> None:
    with pytest.raises(InputError, match=r"timeout_s must be from 0.01 to 1e\+08 seconds, not '5'"):
        PythonEngine(Toy(), timeout_s="5")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"command must be one text, as a shell reads it, not \['a', 'b'\]"):
        CommandEngine(["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="an engine is named module:factory, as in an import, not 3"):
        load_engine(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"prompt_tokens must be an integer in \[1, 131072\], not None"):
        Limits(prompt_tokens=None)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    limits, number = Limits(max_k=np.int64(2), new_tokens=np.int64(9)), np.int64(3)  # type: ignore[arg-type]
    report = check_engine(Toy(), max_examples=number, properties=["runs_repeat"], limits=limits, seed=number)  # type: ignore[arg-type]
    assert report.passed
    assert json.loads(json.dumps(report.as_dict()))["seed"] == 3


@pytest.mark.parametrize("draw", [random.random, np.random.random])
def test_an_engine_that_is_wrong_by_chance_is_not_lucky_in_every_case(draw: Any) -> None:
    def now_and_then(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        few = len(prompts) < 4 or max(map(len, prompts)) <= 10  # not the long case, which is not searched
        return list(map(next_id, outputs)) if few and draw() < 0.2 else outputs

    (verdict,) = check_engine(Toy(now_and_then), properties=["runs_repeat"]).verdicts
    assert verdict.status == "fail"


# --- timers ----------------------------------------------------------------------------------------------------------


def test_the_limit_of_time_gives_back_a_timer_that_was_set_before() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1000, 7)
        with time_limit(500):
            assert signal.getitimer(signal.ITIMER_REAL)[0] <= 500
        left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert 500 < left_s <= 1000
        assert interval_s == 7
        with time_limit(500):
            time.sleep(0.05)
            assert not rung
        while not rung:
            time.sleep(0.01)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
