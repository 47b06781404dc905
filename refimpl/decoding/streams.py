"""Two queues of work on a device: what is launched aside may run beside what the host has launched before it.

On a GPU they are CUDA streams; elsewhere there is one queue, and the same lines launch everything into it.

| work                       | runs behind                                                     |
|----------------------------|-----------------------------------------------------------------|
| launched aside             | what had been launched at the latest mark, and work aside before |
| launched after work aside  | that work, and everything before it                             |

So memory that work aside reads is not given to other work before it has been read. Memory that it has allocated can
only be given to later work aside. That may run beside work behind the mark, so whoever hands results of work aside to
such work keeps them until the next work aside has been launched.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import cuda

from refimpl.decoding.graphs import stream_of


class Streams:
    """Launches work of two kinds; here into a single queue, where all runs in the order in which it was launched."""

    def mark(self) -> None:
        """Let the next work aside build on all that has been launched, and on nothing that follows."""

    def aside(self) -> AbstractContextManager[None]:
        """What is launched inside may run beside what was launched since the mark; what follows waits for it."""
        return nullcontext()


class CudaStreams(Streams):
    """The current stream of a GPU, and a second one.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device):
        self._second = stream_of(self, device)
        self._mark = cuda.Event()

    def mark(self) -> None:
        """Note where the current stream is."""
        self._mark.record()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Fork at the mark, and join: also where the host fails inside, as memory may be freed that is still in use."""
        self._second.wait_event(self._mark)
        try:
            with cuda.stream(self._second):
                yield
        finally:
            cuda.current_stream().wait_stream(self._second)


def make_streams(device: torch.device) -> Streams:
    """Those of a device."""
    return CudaStreams(device) if device.type == "cuda" else Streams()
