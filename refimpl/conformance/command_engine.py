"""An engine in another process, in any language: `refimpl.conformance.wire` over stdin and stdout.

Everything else goes to stderr. The process ends when its stdin closes, or is killed soon after; so is one that does not
answer in time. `refimpl/conformance/example_server.py` is a complete server.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from typing import Any

from refimpl.conformance import wire
from refimpl.conformance.protocol import (
    Call,
    Description,
    EngineFailure,
    EngineGone,
    EngineLost,
    EngineSettings,
    NotSupported,
    check_timeout,
    last_words,
)
from refimpl.core.errors import InputError, require, shown
from refimpl.core.reading import MAX_LINE

LOADING = 10  # times as long as others may the answer to `describe` take
LEAVE_S = 2.0  # that a server has to end after its stdin has closed, or its stdout


class CommandEngine:
    """Talks to a server; starts it again after a crash, kills it when it does not answer.

    Args:
        command: command line of the server.
        timeout_s: seconds that an answer may take; `describe`, sent after every start, may take ten times as long.

    Raises:
        InputError: it does not start, does not describe itself, or the time cannot be counted.
    """

    def __init__(self, command: str, timeout_s: float = 60.0):
        require(isinstance(command, str), f"command must be one text, as a shell reads it, not {shown(command)}")
        self.command, self.timeout_s = command, check_timeout(timeout_s)
        self._process: subprocess.Popen[str] | None = None
        self._number = 0
        self._described = self._open()
        self.vocab_size, self.supports, self.block_size = self._described

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
        """Send one request and wait for its answer.

        Raises:
            EngineLost: the server has crashed or printed garbage; the next call starts it again.
            EngineGone: it did not answer in time, or does not start again as what it was.
        """
        if self._process is None:
            self._open_again()
        self._number += 1
        request = wire.request_of(Call(tuple(map(tuple, prompts)), settings), self._number)
        return wire.outputs_of(self._ask(request, self.timeout_s), len(prompts), self.vocab_size)

    def close(self) -> None:
        """End the server and everything that it started; one that waits for requests may end by itself first."""
        if self._process is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._process.stdin.close()  # type: ignore[union-attr]
                self._process.wait(LEAVE_S)
        self._end()

    def _end(self, talks: threading.Thread | None = None) -> None:
        """Kill the server and close its pipes, which ends the thread that talks to it."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._errors.close()
        if talks:
            talks.join(LEAVE_S)
        if talks and talks.is_alive():  # another process has the pipes, too
            return
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # of what was not read
                stream.close()  # type: ignore[union-attr]

    def _open(self) -> Description:
        """Start the server; return what it says of itself."""
        self._start()
        try:
            return wire.description_of(self._ask(wire.DESCRIBE, LOADING * self.timeout_s), self.command)
        except (EngineFailure, NotSupported) as failure:
            self._end()
            raise InputError(f"{self.command!r} does not describe itself: {failure}") from failure
        except BaseException:
            self._end()
            raise

    def _open_again(self) -> None:
        try:
            described = self._open()
        except InputError as error:
            raise EngineGone(f"the engine does not start again: {error}") from error
        if described != self._described:
            self._end()
            raise EngineGone(f"the engine describes itself as {described} after a crash, not as {self._described}")

    def _start(self) -> None:
        pipe = subprocess.PIPE
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (lives as long as the server)
        streams: dict[str, Any] = {"stdin": pipe, "stdout": pipe, "stderr": self._errors}
        try:
            words = shlex.split(self.command) or [""]
            self._process = subprocess.Popen(words, text=True, errors="replace", start_new_session=True, **streams)
        except (OSError, ValueError) as error:
            self._errors.close()
            raise InputError(f"cannot start {self.command!r}: {error}") from error

    def _ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        line = self._exchange(json.dumps(request) + "\n", timeout_s)
        if not line:
            raise self._crash()
        try:
            return wire.parse(line, request["id"])
        except EngineLost:
            self._end()
            raise

    def _exchange(self, request: str, timeout_s: float) -> str:
        """Write a line and read one, which is empty where the server has closed its stdout."""
        answers: list[str] = []
        thread = threading.Thread(target=_talk, args=(self._process, request, answers), daemon=True)
        thread.start()
        try:
            thread.join(timeout_s)
        finally:
            in_time = not thread.is_alive()  # nor is it where an interrupt ends the wait
            if not in_time:
                self._end(thread)
        if not in_time:
            raise EngineGone(f"no answer within {timeout_s:g} s (timeout_s); the engine was killed")
        return "".join(answers)

    def _crash(self) -> EngineLost:
        assert self._process is not None
        process = self._process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_S)
        self._errors.seek(0)
        told = last_words(self._errors.read())
        self._end()
        return EngineLost(f"the engine closed its output with status {process.returncode}: {told}")


def _talk(process: Any, request: str, answers: list[str]) -> None:
    """A server that does not read, or does not answer, holds up this thread alone. Long lines come in pieces."""
    with contextlib.suppress(OSError, ValueError):  # of a server that has ended
        process.stdin.write(request)
        process.stdin.flush()
    with contextlib.suppress(OSError, ValueError):
        answers.append(process.stdout.readline(MAX_LINE))
