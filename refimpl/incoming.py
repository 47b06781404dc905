"""Prompts of an asynchronous iterator, asked for one at a time."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

from refimpl.core.errors import require
from refimpl.requests import FAILED

END = object()  # after the last prompt
NOT_YET = object()  # where the next prompt has not come


class Incoming:
    """The next prompt goes on coming while nobody waits for it, in the event loop in which it was asked for.

    Args:
        source: the iterator; None where nothing comes that way.
    """

    def __init__(self, source: AsyncIterator[Any] | None):
        self._source = source
        self._loop: asyncio.AbstractEventLoop | None = None  # in which the iterator was asked last
        self._coming: asyncio.Future[Any] | None = None
        self._woken = asyncio.Event()
        self._failed = False  # the iterator has raised an error since it gave its last prompt

    @property
    def ended(self) -> bool:
        """Whether no prompt comes any more."""
        return self._source is None

    async def take(self) -> Any:
        """The next prompt, `END` after the last one, or `NOT_YET`.

        Raises:
            InputError: the iterator was closed with the event loop in which it was read, or is read in another one, or
                has ended by an error; in the last case the next time gives `END`.
        """
        cancelled = self._coming is not None and self._coming.cancelled()  # as all tasks are when their loop is closed
        if self._coming is None or cancelled:
            self._require_open(cancelled)
            self._loop, self._coming = asyncio.get_running_loop(), asyncio.ensure_future(self._next())
            await asyncio.sleep(0)
        if not self._coming.done():
            self._require_same_loop()
            return NOT_YET
        coming, self._coming = self._coming, None
        failed, self._failed = self._failed, True
        prompt = coming.result()
        self._failed = False
        require(prompt is not END or not failed, FAILED)
        self._source = None if prompt is END else self._source
        return prompt

    async def wait(self) -> None:
        """Until the next prompt has come, or `wake` is called; the prompt goes on coming even if this is cancelled."""
        if self._coming is None:
            return
        self._woken = asyncio.Event()
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

    def _require_open(self, cancelled: bool) -> None:
        """A generator that was closed would end at once, whatever was still to come."""
        closed = inspect.isasyncgen(self._source) and self._source.ag_frame is None
        elsewhere = self._loop is not None and self._loop is not asyncio.get_running_loop()
        lost = closed and (cancelled or elsewhere)
        require(not lost, "the prompts' iterator was closed with its event loop, or task: what it had left is lost")

    def _require_same_loop(self) -> None:
        same = self._loop is asyncio.get_running_loop()
        require(same, "the next prompt comes in another event loop: read the stream in one")
