"""An engine in another process, in any language: `refimpl.conformance.wire` over stdin and stdout.

Everything else goes to stderr. The process ends when its stdin closes, or is killed soon after; so is one that does not
answer in time. `refimpl/conformance/example_server.py` is a complete server.
"""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import tempfile
from asyncio.subprocess import PIPE
from typing import Any

from refimpl.conformance import wire
from refimpl.conformance.protocol import (
    BLOCK_SIZE,
    MOST_TOLD,
    Call,
    Description,
    EngineFailure,
    EngineGone,
    EngineLost,
    EngineSettings,
    NotSupported,
    check_description,
    last_words,
)
from refimpl.conformance.remote import Remote
from refimpl.core.errors import InputError
from refimpl.core.reading import MAX_LINE

LOADING = 10  # times as long as others may the answer to `describe` take
LEAVE_S = 2.0  # that a server has to end after its stdin has closed, or its stdout


class CommandEngine(Remote):
    """Talks to a server; starts it again after a crash, kills it when it does not answer.

    Args:
        command: command line of the server.
        timeout_s: seconds that an answer may take; `describe`, sent after every start, may take ten times as long.

    Raises:
        InputError: it does not start, or does not describe itself.
    """

    def __init__(self, command: str, timeout_s: float = 60.0):
        super().__init__(timeout_s)
        self.command, self._number = command, 0
        self._process: Any = None
        self._described = self.open(self._start(), f"{command!r} does not describe itself")
        self.vocab_size, self.supports, self.block_size = self._described

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> Any:
        """Send one request and wait for its answer.

        Raises:
            EngineLost: the server has crashed or printed garbage; the next call starts it again.
            EngineGone: it did not answer in time, or does not start again as what it was.
        """
        self._number += 1
        request = wire.request_of(Call(tuple(map(tuple, prompts)), settings), self._number)
        return self.wait(self._asked(request))

    async def _asked(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            await self._start_again()
        return await self._ask(request, self.timeout_s)

    async def _leave(self) -> None:
        """End the server and everything that it started; one that waits for requests may end by itself first."""
        if self._process is not None:
            self._process.stdin.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), LEAVE_S)
        await self._end()

    async def _end(self) -> None:
        """Kill the server, and what it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process._transport.close()  # its pipes, which another process may hold, too
        await process.wait()
        self._errors.close()

    async def _start_again(self) -> None:
        try:
            if (described := await self._start()) == self._described:
                return
            told = f"the engine describes itself as {described} after a crash, not as {self._described}"
        except (InputError, EngineFailure, NotSupported) as error:
            told = f"the engine does not start again: {error}"
        await self._end()
        raise EngineGone(told)

    async def _start(self) -> Description:
        """Start the server; return what it says of itself."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the server)
        streams: dict[str, Any] = {"stdin": PIPE, "stdout": PIPE, "stderr": self._errors, "limit": MAX_LINE}
        try:
            words = shlex.split(self.command) or [""]
            self._process = await asyncio.create_subprocess_exec(*words, start_new_session=True, **streams)
        except (OSError, ValueError) as error:
            self._errors.close()
            raise InputError(f"cannot start {self.command!r}: {error}") from error
        told = await self._ask(wire.DESCRIBE, LOADING * self.timeout_s)
        stated = told.get("vocab_size"), told.get("supports", ()), told.get("block_size", BLOCK_SIZE)
        return check_description(self.command, *stated)

    async def _ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Write a line and read one; the server ends where there is none, or a wrong one."""
        try:
            line = await asyncio.wait_for(_exchange(self._process, json.dumps(request) + "\n"), timeout_s)
            if not line:
                raise await self._crash()
            return wire.parse(line, request["id"])
        except TimeoutError:
            await self._end()
            raise EngineGone(f"no answer within {timeout_s:g} s (timeout_s); the engine was killed") from None
        except (EngineLost, asyncio.CancelledError):
            await self._end()
            raise

    async def _crash(self) -> EngineLost:
        """What to say of a server that has closed its stdout."""
        process = self._process
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), LEAVE_S)
        self._errors.seek(0)
        told = last_words(self._errors.read().decode(errors="replace"))
        return EngineLost(f"the engine closed its output with status {process.returncode}: {told}")


async def _exchange(process: Any, request: str) -> str:
    """Write a line and read one: the whole of it, empty where the server has closed its stdout."""
    with contextlib.suppress(OSError):  # of a server that has ended
        process.stdin.write(request.encode())
        await process.stdin.drain()
    try:
        line = await process.stdout.readuntil(b"\n")
    except asyncio.IncompleteReadError as end:
        line = end.partial
    except asyncio.LimitOverrunError:
        line = await process.stdout.read(MOST_TOLD)
    return line.decode(errors="replace")
