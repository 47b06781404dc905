"""Work on fixed tensors that is recorded once and replayed: CUDA graphs, and plain calls where there is no CUDA."""

import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")
WARM_UPS = 2  # runs before a recording, in which libraries allocate what they need

_free_streams: dict[torch.device, list[torch.cuda.Stream]] = defaultdict(list)


def stream_of(owner: object, device: torch.device) -> torch.cuda.Stream:
    """A stream on which nobody records but `owner`, as long as it lives.

    cuBLAS has a workspace for each stream. Some versions of PyTorch drop it with any graph that was recorded there, so
    graphs that live on may not share the stream; others never drop it, so streams are used again.
    """
    free = _free_streams[device]
    stream = free.pop() if free else torch.cuda.Stream(device)
    weakref.finalize(owner, free.append, stream)
    return stream


class Recording(Generic[T]):
    """Work on fixed tensors: recorded on CUDA when it is made, replayed into the same outputs by every call.

    Args:
        work: a method that launches kernels, never waits for the device, allocates what it likes. Its owner keeps
            the recording, so the recording does not keep its owner: K/V pools go as soon as their engine does.
        stream: where it is recorded; None without CUDA.
        memory: graph memory that several recordings share, since only one of them runs at a time.
    """

    def __init__(self, work: Callable[[], T], stream: torch.cuda.Stream | None, memory: Any):
        self._work = weakref.WeakMethod(work)
        self._graph: torch.cuda.CUDAGraph | None = None
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=memory, stream=stream):
                self._output = work()

    def __call__(self) -> T:
        """Do the work; the output is overwritten by the next call."""
        if self._graph is None:
            work = self._work()
            assert work is not None, "the owner keeps the recording"
            return work()
        self._graph.replay()
        return self._output
