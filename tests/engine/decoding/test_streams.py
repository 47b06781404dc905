"""Two streams of a GPU, on a stand-in that notes which work each launch waits for."""

from contextlib import contextmanager, suppress

import pytest
import torch

from refimpl import generate
from refimpl.decoding import assembly, engine, streams
from refimpl.decoding.overlapped import OverlappedPasses
from refimpl.decoding.passes import EagerPasses
from refimpl.decoding.streams import CudaStreams, make_streams

PROMPTS = [[5, 3, 8], [4], [6, 2, 1, 1], [1, 7], [9, 9, 3], [2]]
PLAIN = {"max_new_tokens": 6, "stop_token_ids": []}
SETTINGS = {"execution": "overlapped", "num_speculative_tokens": 3, "batch_size": 4, "checks": "host", **PLAIN}


class Stream:
    """What has been launched here, and what that waits for."""

    def __init__(self):
        self.behind = frozenset()

    def wait_event(self, event):
        self.behind |= event.behind

    def wait_stream(self, stream):
        self.behind |= stream.behind


class Cuda:
    """Stands in for `torch.cuda`: launches take no time, and have an order as far as waits give them one."""

    def __init__(self):
        self.main = self.current = Stream()
        self.work = []  # (kind, whether aside, what it runs behind)
        cuda = self

        class Event:
            behind = frozenset()

            def record(self):
                self.behind = cuda.current.behind

        self.Event = Event

    def current_stream(self):
        return self.current

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def launch(self, kind):
        self.work.append((kind, self.current is not self.main, self.current.behind))
        self.current.behind |= {len(self.work) - 1}

    def ordered(self, first, second):
        """Whether one piece of work waits for an earlier one."""
        return first in self.work[second][2]


def noting(cuda, kind, original):
    def launched(*args, **settings):
        cuda.launch(kind)
        return original(*args, **settings)

    return launched


@pytest.fixture
def cuda(monkeypatch):
    """The stand-in, which notes prefills, drafts and verify passes."""
    found = Cuda()
    monkeypatch.setattr(streams, "cuda", found)
    monkeypatch.setattr(streams, "stream_of", lambda owner, device: Stream())
    monkeypatch.setattr(assembly, "make_streams", CudaStreams)
    monkeypatch.setattr(engine, "prefill", noting(found, "prefill", engine.prefill))
    for kind in ("draft", "verify"):
        monkeypatch.setattr(EagerPasses, kind, noting(found, kind, getattr(EagerPasses, kind)))
    return found


def run(pair):
    """More rows than a batch, so that prompts are cached while drafts are there."""
    return [s.token_ids for s in generate(pair, PROMPTS, **SETTINGS).sequences]


def races(cuda):
    """Pairs of work without the order that they need, or with one that keeps them from overlapping."""
    for second, (kind, aside, _) in enumerate(cuda.work):
        for first, (earlier, earlier_aside, _) in enumerate(cuda.work[:second]):
            beside = aside and earlier == "verify" and "verify" not in {k for k, *_ in cuda.work[first + 1 : second]}
            if beside:
                if cuda.ordered(first, second):
                    yield f"{second}: drafts wait for the verify pass that they may run beside"
            elif not cuda.ordered(first, second):
                yield f"{second}: {kind} does not wait for {first}: {earlier}{' aside' * earlier_aside}"


def test_drafts_run_beside_one_verify_pass_and_in_order_with_all_else(cuda, llama):
    plain = generate(llama, PROMPTS, method="autoregressive", **PLAIN)
    assert run(llama) == [s.token_ids for s in plain.sequences]
    kinds = [(kind, aside) for kind, aside, _ in cuda.work]
    assert {("draft", True), ("draft", False), ("verify", False), ("prefill", False)} == set(kinds)
    late = [at for at, kind in enumerate(kinds) if kind == ("prefill", False) and ("draft", True) in kinds[:at]]
    assert late, "prompts are cached behind drafts"
    assert list(races(cuda)) == []


def nothing(*_):
    """A wait, or a mark, that was forgotten."""


@pytest.mark.parametrize(
    ("owner", "name", "planted", "message"),
    [
        (CudaStreams, "mark", nothing, "draft does not wait for 0: prefill"),
        (Stream, "wait_event", nothing, "draft does not wait for 0: prefill"),
        (Stream, "wait_stream", nothing, "verify does not wait for"),
    ],
)
def test_a_missing_wait_is_seen(cuda, llama, monkeypatch, owner, name, planted, message):
    monkeypatch.setattr(owner, name, planted)
    run(llama)
    assert any(message in race for race in races(cuda))


def test_work_aside_that_raises_is_waited_for(cuda):
    """Else memory that it still writes could be given to what follows."""
    both = CudaStreams(torch.device("cuda"))
    both.mark()
    with suppress(KeyboardInterrupt), both.aside():
        cuda.launch("draft")
        raise KeyboardInterrupt
    cuda.launch("prefill")
    assert [aside for _, aside, _ in cuda.work] == [True, False]
    assert list(races(cuda)) == []


def test_a_mark_behind_the_verify_pass_is_seen(cuda, llama, monkeypatch):
    verify = EagerPasses.verify

    def late(self, *args):
        found = verify(self, *args)
        marks[-1].mark()
        return found

    marks, made = [], CudaStreams.__init__
    monkeypatch.setattr(CudaStreams, "__init__", lambda self, device: (marks.append(self), made(self, device))[1])
    monkeypatch.setattr(EagerPasses, "verify", late)
    run(llama)
    assert any("drafts wait for the verify pass" in race for race in races(cuda))


def test_what_is_being_verified_is_kept_until_work_aside_is_launched(cuda, llama, monkeypatch):
    """Else its memory could be given to that work, which the verify pass runs beside."""
    verified, kept, draft = [], [], OverlappedPasses._draft
    verify = EagerPasses.verify

    def noted(self, members, drafts, *rest):
        verified.append(drafts)
        return verify(self, members, drafts, *rest)

    def drafted(self, rows):
        before = self._ahead
        found = draft(self, rows)
        kept.append(self._ahead is before)
        made_aside = before is not None and before.rows == tuple(self._members)
        assert not made_aside or before.drafts is verified[-1]
        return found

    monkeypatch.setattr(EagerPasses, "verify", noted)
    monkeypatch.setattr(OverlappedPasses, "_draft", drafted)
    run(llama)
    assert len(kept) > 2
    assert all(kept)


def test_a_cpu_has_one_queue():
    one = make_streams(torch.device("cpu"))
    assert not isinstance(one, CudaStreams)
    one.mark()
    with one.aside():
        pass
