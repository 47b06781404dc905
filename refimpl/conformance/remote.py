"""An engine outside of this process: its answers are awaited on an event loop in a thread, so that waiting can end."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from refimpl.conformance.protocol import EngineFailure, NotSupported
from refimpl.core.errors import InputError

T = TypeVar("T")


class Remote:
    """Waits for what happens elsewhere.

    Args:
        timeout_s: seconds that an answer may take.
    """

    def __init__(self, timeout_s: float):
        self.timeout_s = timeout_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what some work gives; an interrupt ends it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def open(self, work: Coroutine[Any, Any, T], otherwise: str) -> T:
        """Return what the work of opening gives; close everything where it fails.

        Raises:
            InputError: the engine refuses or fails; the message begins with `otherwise`.
        """
        try:
            return self.wait(work)
        except BaseException as error:
            self.close()
            if isinstance(error, EngineFailure | NotSupported):
                raise InputError(f"{otherwise}: {error}") from error
            raise

    def close(self) -> None:
        """End what was opened, and the thread."""
        if not self._loop.is_closed():
            self.wait(self._leave())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _leave(self) -> None:
        """End what was opened."""
