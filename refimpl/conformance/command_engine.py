"""An engine in another process, in any language: JSON lines over stdin and stdout.

One request is one line, one answer is one line; `id` comes back unchanged. Everything else goes to stderr.

| request                                                                     | answer                                  |
|-----------------------------------------------------------------------------|-----------------------------------------|
| ``{"op": "describe", "id": 0}``                                             | ``{"id": 0, "vocab_size": 61, "supports": []}`` |
| ``{"op": "generate", "id": 1, "prompts": [[5, 7]], "max_new_tokens": 16, "batch_size": 4, "num_speculative_tokens": 3, "stop_token_ids": [], "temperature": 0.0, "seed": 0}`` | ``{"id": 1, "outputs": [[9, 3, 4]]}`` |
| where `describe` says ``"supports": ["serving"], "block_size": 4``, also: ``{"op": "generate", …, "submit_at": [0], "cancel_at": [null]}`` | as before |
| what the engine cannot do                                                   | ``{"id": 1, "not_supported": "why"}``   |
| what went wrong                                                             | ``{"id": 1, "error": "what"}``          |

The process ends when its stdin closes, or is killed soon after. `refimpl/conformance/example_server.py` is a complete server.
"""  # noqa: E501 (a request is one line)

import contextlib
import json
import os
import queue
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from functools import partial
from typing import Any

from refimpl.conformance.protocol import (
    BLOCK_SIZE,
    Call,
    EngineFailure,
    EngineGone,
    EngineLost,
    EngineSettings,
    NotSupported,
    check_answer,
    check_description,
    check_timeout,
)
from refimpl.core.errors import InputError, require, shown
from refimpl.core.reading import MAX_LINE

LOADING = 10  # times as long as others may the answer to `describe` take
MOST_TOLD = 400  # characters of a message
LAST_LINES = 4  # of stderr: place, code, marks and error of Python's traceback
LEAVE_S = 2.0  # that a server has to end after its stdin has closed
LOOK_AGAIN_S = 0.5  # between looks at whether the server has ended


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
        self._is_asked = False  # and has not answered yet
        try:
            self.vocab_size, self.supports, self.block_size = self._described = self._open()
        except BaseException:
            self.close()
            raise

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> list[list[int]]:
        """Send one request and wait for its answer.

        Raises:
            EngineLost: the server has crashed or printed garbage; the next call starts it again.
            EngineGone: it did not answer in time, or does not start again as what it was.
        """
        if self._process is None:
            self._open_again()
        request = Call(tuple(map(tuple, prompts)), settings).as_request(self._number + 1)
        return check_answer(self._ask(request, self.timeout_s).get("outputs"), len(prompts), self.vocab_size)

    def close(self) -> None:
        """End the server and everything that it started; one that waits for requests may end by itself first."""
        try:
            if self._process is not None and not self._is_asked:
                self._requests.put("")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=LEAVE_S)
        finally:
            self._end()
            self._errors.close()

    def _end(self) -> None:
        """End the server; what it wrote to stderr stays."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._requests.put("")

    def _open(self) -> tuple[int, frozenset[str], int]:
        """Start the server; return what it says of itself."""
        self._start()
        try:
            about = self._ask({"op": "describe", "id": 0}, LOADING * self.timeout_s)
        except (EngineFailure, NotSupported) as failure:
            raise InputError(f"{self.command!r} does not describe itself: {failure}") from failure
        stated = about.get("vocab_size"), about.get("supports", ()), about.get("block_size", BLOCK_SIZE)
        return check_description(self.command, *stated)

    def _open_again(self) -> None:
        try:
            described = self._open()
        except InputError as error:
            self.close()
            raise EngineGone(f"the engine does not start again: {error}") from error
        if described != self._described:
            self.close()
            raise EngineGone(f"the engine describes itself as {described} after a crash, not as {self._described}")

    def _ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self._number, self._is_asked = request["id"], True
        self._requests.put(json.dumps(request) + "\n")
        answer = self._parse(self._receive(timeout_s))
        self._is_asked = False
        if answer.get("not_supported") is not None:
            raise NotSupported(_short(answer["not_supported"]))
        if answer.get("error") is not None:
            raise EngineFailure(f"the engine reports an error: {_short(answer['error'])}")
        return answer

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (lives as long as the server)
        self._requests, self._lines = queue.Queue[str](), queue.Queue[str]()
        try:
            words = shlex.split(self.command)
            if not words:
                raise ValueError("it is empty")
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise InputError(f"cannot start {self.command!r}: {error}") from error
        threading.Thread(target=_feed, args=(self._requests, self._process.stdin), daemon=True).start()
        threading.Thread(target=_pump, args=(self._process.stdout, self._lines), daemon=True).start()

    def _receive(self, timeout_s: float) -> str:
        end = time.monotonic() + timeout_s
        while (left_s := end - time.monotonic()) > 0:
            assert self._process is not None
            has_ended = self._process.poll() is not None  # what it has started may hold its stdout open
            with contextlib.suppress(queue.Empty):
                if line := self._lines.get(timeout=min(left_s, LOOK_AGAIN_S)):
                    return line
                raise self._crash()
            if has_ended:
                raise self._crash()
        self.close()
        raise EngineGone(f"no answer within {timeout_s:g} s (timeout_s); the engine was killed")

    def _parse(self, line: str) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):  # no JSON, or JSON nested too deep
            answer = None
        if not isinstance(answer, dict):
            if not line.endswith("\n") and len(line) < MAX_LINE:
                raise self._crash(f" within the line {shown(line)}")
            self.close()
            raise EngineLost(f"the engine printed {shown(line.strip())} on stdout; print logs to stderr")
        if answer.get("id") != self._number:
            self.close()
            raise EngineLost(f"expected a JSON object with id {self._number}, got the line {shown(line.strip())}")
        return answer

    def _crash(self, where: str = "") -> EngineLost:
        assert self._process is not None
        try:
            status = f"with status {self._process.wait(timeout=5)}"
        except subprocess.TimeoutExpired:
            status = "without an end of the process"
        self._end()
        self._errors.seek(0)
        last = _last_words(self._errors.read())
        self._errors.close()
        return EngineLost(f"the engine closed its output{where} {status}: {last or 'nothing on stderr'}")


def _last_words(told: str) -> str:
    """The last lines of stderr, as one."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return " | ".join(lines[-LAST_LINES:])[-MOST_TOLD:]


def _short(told: Any) -> str:
    """What a server tells, in one line; of a long text the end, where the report of an exception names it."""
    text = " ".join(str(told).split()) or "an empty text"
    return text if len(text) <= MOST_TOLD else "…" + text[-MOST_TOLD:]


def _feed(requests: "queue.Queue[str]", stream: Any) -> None:
    """Write requests until an empty one; a server that does not read holds up this thread alone."""
    with contextlib.suppress(OSError), stream:  # its end is seen where its answers are read
        for line in iter(requests.get, ""):
            stream.write(line)
            stream.flush()


def _pump(stream: Any, lines: "queue.Queue[str]") -> None:
    """Move lines into the queue; an empty one marks the end. What is longer than `MAX_LINE` comes in pieces.

    A process in a session of its own may hold the pipe open after the server; it holds up this thread alone.
    """
    with stream:
        for line in iter(partial(stream.readline, MAX_LINE), ""):
            lines.put(line)
    lines.put("")
