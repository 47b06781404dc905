"""The ability `serving`: prompts that come and are cancelled while others run, and begin with the same tokens."""

import pytest
from hypothesis import given
from hypothesis import settings as search
from toy_engines import Toy

from refimpl.conformance.adapters import MethodEngine, mixed_script
from refimpl.conformance.cases import serving_cases
from refimpl.conformance.kit import Trial
from refimpl.conformance.protocol import Description, EngineSettings
from refimpl.conformance.python_engine import PythonEngine
from refimpl.conformance.report import describe
from refimpl.conformance.subject import Subject
from refimpl.decoding.engine import Engine
from refimpl.faults import FAULTS
from refimpl.models.table_model import table_pair

PROPERTY = "serving_equals_reference"
TIMETABLE = EngineSettings(8, 2, 2, submit_at=(0, 0, 3, 1), cancel_at=(None, 2, None, 0))


def ours(method="paged", checks="host"):
    return MethodEngine(method, table_pair(mixed_script()), checks=checks, block_size=4)


def judged(engine, max_examples=20):
    return Trial(Subject(PythonEngine(engine)), PROPERTY).verdict(max_examples, shrink=False)


@pytest.mark.parametrize("method", ["paged", "paged+grouped", "inplace+static"])
def test_our_engine_serves(method):
    verdict = judged(ours(method), 8)
    assert (verdict.status, verdict.asked) == ("pass", 8 + 3)  # with a row that is alone, and a busy hour


@pytest.mark.parametrize("fault", ["block-matched-by-hash-alone", "shared-block-freed-with-its-first-owner"])
def test_what_sharing_gets_wrong_is_seen_from_outside(fault):
    with FAULTS[fault].injected():
        assert judged(ours(checks="off"), 60).status == "fail"


def test_what_goes_wrong_only_when_rows_are_cancelled_is_seen(monkeypatch):
    """The place of a cancelled row is given to two others; without cancellations nothing happens."""
    right = Engine._release

    def release(self, sequence):
        slot = sequence.slot
        right(self, sequence)
        self._free_slots += [slot] if sequence.stop_reason == "cancelled" else []

    monkeypatch.setattr(Engine, "_release", release)
    engine = ours("inplace", checks="off")
    assert judged(engine, 60).status == "fail"
    assert Trial(Subject(PythonEngine(engine)), "equals_reference").verdict(10).status == "pass"


def test_cases_preempt_find_and_cancel(monkeypatch):
    engines = []
    right = Engine.__init__
    monkeypatch.setattr(Engine, "__init__", lambda self, *a, **k: (right(self, *a, **k), engines.append(self))[0])
    assert judged(ours(), 20).status == "pass"
    assert sum(engine.num_preemptions > 0 for engine in engines) >= 2
    assert sum(engine.num_prefix_hits > 0 for engine in engines) >= 5
    reasons = [s.stop_reason for engine in engines for s in engine.sequences]
    assert {"cancelled", "length", "stop"} == set(reasons)
    greedy, sampled = engines[-2:]
    for engine, temperature in ((greedy, 0), (sampled, 1)):
        assert (engine.config.sampling.temperature, engine.num_preemptions > 0) == (temperature, True)
        assert {"cancelled", "length", "stop"} == {s.stop_reason for s in engine.sequences}


def test_first_tokens_are_shared_around_multiples_of_a_block():
    seen = set()

    @search(max_examples=400, database=None, derandomize=True)
    @given(serving_cases(Description(40, frozenset(), 4)))
    def look(case):
        assert len(case.prompts) == len(case.settings.submit_at) == len(case.settings.cancel_at)
        seen.add(shared(case.prompts))

    look()
    assert {3, 4, 5, 7, 8, 9} <= seen


def shared(prompts):
    """First tokens that two different prompts have in common, at most."""
    pairs = [(a, b) for a in prompts for b in prompts if a != b]
    return max(
        (next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), -1) for a, b in pairs), default=-1
    )


@pytest.mark.parametrize("method", ["inplace", "paged"])
def test_a_timetable_is_kept(method):
    prompts = [[1, 2, 3], [4, 5], [1, 2, 3], [6]]
    outputs = ours(method)(prompts, TIMETABLE)
    assert [len(tokens) for tokens in outputs] == [8, 2, 8, 0]
    assert outputs[0] == outputs[2]


@pytest.mark.parametrize("method", ["inplace", "paged"])
@pytest.mark.parametrize(("cancel_at", "lengths"), [((0, None), [0, 8]), ((None, 0), [8, 0]), ((1, 1000), [1, 8])])
def test_a_row_that_comes_early_is_cancelled_as_many_rounds_after_it_came(method, cancel_at, lengths):
    """With nobody inside, the first row comes at once, and so does the next when it has left."""
    timetable = EngineSettings(8, 2, 2, submit_at=(8, 20), cancel_at=cancel_at)
    assert list(map(len, ours(method)([[4, 5], [6]], timetable))) == lengths


def served(settings, outputs):
    """What a right engine answers, whose cancelled rows have ended early."""
    ends = [None if at is None else at for at in settings.cancel_at]
    return [tokens[:end] for tokens, end in zip(outputs, ends, strict=True)] if ends else outputs


def test_a_toy_that_serves_passes_and_one_that_mixes_rows_up_fails():
    right = Toy(lambda prompts, settings, outputs: served(settings, outputs), supports={"serving"}, block_size=3)
    assert judged(right).status == "pass"

    def tied(prompts, settings, outputs):
        """A prompt that comes again gets what the cancelled one before it left."""
        answers = served(settings, outputs)
        first = {tuple(p): i for i, p in reversed(list(enumerate(prompts)))}
        return [answers[first[tuple(p)]] for p in prompts] if settings.submit_at else answers

    verdict = judged(Toy(tied, supports={"serving"}, block_size=3), 60)
    assert verdict.status == "fail"
    assert "submit_at" in describe(verdict.calls[-1])
