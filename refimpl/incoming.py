"""Prompts of an asynchronous iterator, asked for one at a time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from refimpl.core.errors import require

END = object()  # after an iterator's last prompt


class Incoming:
    """The next prompt goes on coming while nobody waits for it, so that a reader may leave and return.

    Args:
        source: the iterator; None where nothing comes that way.
    """

    def __init__(self, source: AsyncIterator[Any] | None):
        self._source, self.ended = source, source is None
        self._coming: asyncio.Future[Any] | None = None
        self._woken = asyncio.Event()

    async def has_come(self) -> bool:
        """Whether the next prompt is there; it is asked for once."""
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._next())
            await asyncio.sleep(0)
        same = self._coming.get_loop() is asyncio.get_running_loop()
        require(same, "read prompts of an asynchronous iterator in one event loop")
        return self._coming.done()

    def take(self) -> Any:
        """The prompt that has come, or `END`; raises what the iterator raised."""
        assert self._coming is not None
        coming, self._coming = self._coming, None
        prompt = coming.result()
        self.ended = prompt is END
        return prompt

    async def wait(self) -> None:
        """Until the next prompt has come, or `wake` is called."""
        if self._coming is None:
            return
        self._woken.clear()
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait([self._coming, woken], return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()

    def wake(self) -> None:
        """End a wait."""
        self._woken.set()

    async def _next(self) -> Any:
        assert self._source is not None
        return await anext(self._source, END)
