"""An engine behind an OpenAI-compatible server: each row is a request to ``/v1/completions`` with token ids as prompt.

A server that refuses ids gets texts; prompts are then those whose ids are the tokens of their text.

What a server offers is probed once. A probe finds only what is refused or has no effect; whether the rest is right, the
properties judge. A request is sent again only where the server says that it is busy (429, 503), never after an answer.
"""

import asyncio
import contextlib
import itertools
import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
from tokenizers import Tokenizer

from refimpl.conformance.protocol import (
    EngineFailure,
    EngineGone,
    EngineLost,
    EngineSettings,
    NotSupported,
    RowSettings,
    last_words,
    one_line,
)
from refimpl.conformance.remote import Remote
from refimpl.core.errors import require, shown

KEY = "OPENAI_API_KEY"
EXTRAS = {  # beyond OpenAI's own fields: ids come back, nothing but the budget ends a row, nothing cuts the law
    "return_token_ids": True, "ignore_eos": True, "skip_special_tokens": False, "top_k": -1, "repetition_penalty": 1.0,
}  # fmt: skip
BUSY, NO_KEY = (429, 503), (401, 403)  # statuses
FIRST_PAUSE_S, SETTLED_S = 0.1, 0.05
KEPT_S = 2.0  # a connection without requests; uvicorn closes it after five seconds
SEED_STEP = 1_000_003  # between the seeds of two calls, a prime above the prompts of any
PROBE_TOKENS, PROBE_SEEDS, PROBE_PENALTY = 8, 4, 2.0
COUNTERS = {"draft_tokens": "drafted", "accepted_tokens": "accepted", "drafts": "rounds"}
COUNTER = re.compile(rf"^[\w:]*spec_decode_num_({'|'.join(COUNTERS)})_total(?:{{[^}}]*}})? (\S+)", re.MULTILINE)


@dataclass
class _Row:
    """What has come of one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    generated: int | None = None

    def add(self, piece: Any) -> None:
        """Take a piece of a stream, or the whole."""
        try:
            for choice in piece["choices"]:
                self.tokens += choice.get("token_ids") or []
                self.text += choice.get("text") or ""
                self.logprobs += (choice.get("logprobs") or {}).get("token_logprobs") or []
            self.generated = (piece.get("usage") or {}).get("completion_tokens", self.generated)
        except (TypeError, KeyError, AttributeError):
            raise EngineFailure(f"the server's answer is no completion: {shown(piece)}") from None


class ServerEngine(Remote):
    """Sends prompts to a server, at most `batch_size` at a time; it drafts as it was started to.

    Args:
        url: of the API, as ``http://localhost:8000/v1``.
        model: its name there; None for the only one.
        tokenizer: folder of the model's ``config.json`` and ``tokenizer.json``; None for the one that the server names.
        timeout_s: seconds that the answer to one request may take.

    Attributes:
        decode: ids to text; None without a ``tokenizer.json``.
        takes_texts: whether prompts are sent as texts.

    Raises:
        InputError: there is no such server or model, it wants a key, or its vocabulary cannot be told.
    """

    def __init__(self, url: str, model: str | None = None, tokenizer: Path | None = None, timeout_s: float = 60.0):
        super().__init__(timeout_s)
        self.url, self._extras, self._stops, self.takes_texts = url.rstrip("/"), dict(EXTRAS), True, False
        key = os.environ.get(KEY)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx2.Limits(max_connections=None, keepalive_expiry=KEPT_S)
        self._client = httpx2.AsyncClient(headers=headers, timeout=None, limits=limits)
        self.open(self._describe(model, tokenizer), self.url)

    def __call__(self, prompts: list[list[int]], settings: EngineSettings) -> dict[str, Any]:
        """Ask for all rows.

        Raises:
            EngineLost: the server broke off an answer.
            EngineGone: it does not answer in time, or cannot be reached.
            NotSupported: it refuses, or was found to ignore what is asked for.
        """
        return self.wait(self._answer(prompts, settings))

    def settled(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """A prompt that can be sent: where that is a text, the tokens of the text of these ids."""
        return tuple(self._tokenizer.encode(self.decode(prompt)).ids) if self.takes_texts else prompt

    async def _leave(self) -> None:
        await self._client.aclose()

    # --- one call ----------------------------------------------------------------------------------------------------

    async def _answer(self, prompts: list[list[int]], settings: EngineSettings) -> dict[str, Any]:
        slots = asyncio.Semaphore(settings.batch_size)

        async def one(row: int) -> _Row:
            async with slots:
                own = settings.of_row(row)
                own = own if settings.rows else replace(own, seed=own.seed * SEED_STEP + row)
                return await self._row(prompts[row], own, settings, row)

        before = await self._counts() if "counters" in settings.report else {}
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(row)) for row in range(len(prompts))]
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        rows = [task.result() for task in tasks]
        told = {"outputs": [row.tokens for row in rows], "logprobs": [row.logprobs for row in rows]}
        counters = await self._counted(before, rows) if "counters" in settings.report else {}
        return told | {"texts": [row.text for row in rows], "counters": counters}

    async def _row(self, prompt: list[int], own: RowSettings, settings: EngineSettings, row: int = 0) -> _Row:
        if own.stop_token_ids and not self._stops:
            raise NotSupported("the server ignores stop_token_ids")
        if self.settled(tuple(prompt)) != tuple(prompt):
            raise NotSupported("the server takes texts, and the ids of a prompt are not the tokens of any")
        leaves = settings.cancel_after[row] if settings.cancel_after else None
        body = self._extras | {
            "model": self.model, "prompt": prompt, "max_tokens": own.max_new_tokens, "temperature": own.temperature,
            "top_p": 1.0,
        }  # fmt: skip
        body |= {"prompt": self.decode(prompt)} if self.takes_texts else {}
        body |= {"seed": own.seed} if own.temperature else {}
        body |= {"stop_token_ids": list(own.stop_token_ids)} if own.stop_token_ids else {}
        body |= {"repetition_penalty": own.repetition_penalty} if own.repetition_penalty != 1 else {}
        body |= {"logprobs": 1} if "logprobs" in settings.report else {}
        if settings.stream or leaves is not None:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return self._with_ids(await self._ask(body, leaves), leaves)

    def _with_ids(self, row: _Row, leaves: int | None) -> _Row:
        """Ids of a text where the server gives none."""
        if row.tokens or not row.text:
            return row
        if self._tokenizer is None or leaves is not None:
            raise NotSupported("the server gives no token ids (return_token_ids)")
        row.tokens = self._tokenizer.encode(row.text, add_special_tokens=False).ids
        if row.generated not in (None, len(row.tokens)):
            has = f"a text of {len(row.tokens)} tokens stands for the {row.generated} that were generated"
            raise NotSupported(f"the server gives no token ids, and {has}")
        return row

    # --- HTTP --------------------------------------------------------------------------------------------------------

    async def _ask(self, body: dict[str, Any], leaves: int | None = None) -> _Row:
        """Ask for a completion; leave after so many tokens."""
        row = _Row()
        async with self._bounded(), contextlib.aclosing(self._pieces("POST", "/completions", body)) as pieces:
            async for piece in pieces:
                row.add(piece)
                if leaves is not None and len(row.tokens) >= leaves:
                    break
        return row

    @contextlib.asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """End what takes too long; what goes wrong on the way becomes a failure of the engine."""
        try:
            async with asyncio.timeout(self.timeout_s):
                yield
        except TimeoutError:
            raise EngineGone(f"no answer within {self.timeout_s:g} s (timeout_s)") from None
        except (httpx2.ConnectError, httpx2.UnsupportedProtocol) as error:
            raise EngineGone(f"cannot be reached: {one_line(error)}") from error
        except httpx2.HTTPError as error:
            raise EngineLost(f"the server broke off its answer: {one_line(error)}") from error

    async def _pieces(self, method: str, path: str, body: dict[str, Any] | None = None) -> AsyncGenerator[Any, None]:
        """JSON of an answer: the whole, or the events of a stream."""
        for attempt in itertools.count():
            async with self._client.stream(method, self.url + path, json=body) as response:
                if response.status_code not in BUSY:
                    if response.is_error:
                        raise _refusal(response.status_code, (await response.aread()).decode(errors="replace"))
                    if not (body or {}).get("stream"):
                        yield _parsed(await response.aread())
                        return
                    async for line in response.aiter_lines():
                        if line.startswith("data:") and line[5:].strip() != "[DONE]":
                            yield _parsed(line[5:].encode())
                    return
            await asyncio.sleep(FIRST_PAUSE_S * 2**attempt)

    # --- what the server is ------------------------------------------------------------------------------------------

    async def _describe(self, model: str | None, tokenizer: Path | None) -> None:
        async with self._bounded():
            (offered,) = [piece async for piece in self._pieces("GET", "/models")]
        try:
            models = {each["id"]: each for each in offered["data"]}
        except (TypeError, KeyError):
            raise EngineFailure(f"/models lists no models: {shown(offered)}") from None
        only = next(iter(models)) if len(models) == 1 else None
        self.model = model or only or ""
        require(self.model in models, f"{self.url}: no model {model!r}: choose --model {', '.join(models)}")
        folder = tokenizer or Path(models[self.model].get("root") or self.model)
        file = folder / "tokenizer.json"
        self._tokenizer: Any = Tokenizer.from_file(str(file)) if file.is_file() else None
        self.vocab_size = _vocab_size(folder)
        self.decode: Any = self._tokenizer and (lambda ids: self._tokenizer.decode(ids, skip_special_tokens=False))
        self.supports = frozenset(await self._offered())

    async def _offered(self) -> set[str]:
        """Abilities: those of any server, and what probes find."""
        plain = await self._first()
        found = {"row_settings", "own_draft_length", "counters"} | ({"text"} if self.decode else set())
        stopped = await self._probe(stop_token_ids=tuple(plain.tokens[2:3]))
        self._stops = stopped is not None and stopped.tokens != plain.tokens
        told = await self._probe(rows=(RowSettings(PROBE_TOKENS, repetition_penalty=PROBE_PENALTY),))
        found |= {"penalties"} if told and told.tokens != plain.tokens else set()
        told = await self._probe(report=("logprobs",))
        found |= {"logprobs"} if told and len(told.logprobs) == len(told.tokens) else set()
        if await self._probe(stream=True) and plain.tokens:
            found |= {"streaming", "cancelling"}
        return found | await self._samples()

    async def _first(self) -> _Row:
        """An answer, asked for with those of the extra fields that the server knows."""
        if (row := await self._probe()) is None:
            everything, self._extras = self._extras, {}
            self.takes_texts = self.decode is not None and await self._refuses_ids()
            for name, value in everything.items():  # ids first: without them others could not be told
                known, self._extras = self._extras, self._extras | {name: value}
                self._extras = known if await self._probe() is None else self._extras
            row = await self._short()
        return row

    async def _refuses_ids(self) -> bool:
        """Whether a request without any extra field is refused."""
        try:
            await self._ask({"model": self.model, "prompt": [0], "max_tokens": 1, "temperature": 0.0})
        except NotSupported:
            return True
        return False

    async def _short(self, **settings: Any) -> _Row:
        """The answer to a short request."""
        asked = EngineSettings(PROBE_TOKENS, 1, **settings)
        return await self._row([*self.settled((4 % self.vocab_size, 1))], asked.of_row(0), asked)

    async def _probe(self, **settings: Any) -> _Row | None:
        """The same, None if it is refused."""
        try:
            return await self._short(**settings)
        except NotSupported:
            return None

    async def _samples(self) -> set[str]:
        """Whether it samples, and whether a seed decides the first token."""
        rows = [await self._probe(temperature=2.0, seed=seed) for seed in (1,) * PROBE_SEEDS]
        if any(row is None for row in rows):
            return set()
        firsts = {tuple(row.tokens[:1]) for row in rows if row}
        return {"sampling", "keyed_sampling"} if len(firsts) == 1 else {"sampling"}

    # --- counters ----------------------------------------------------------------------------------------------------

    async def _counts(self) -> dict[str, int]:
        """Counters of speculation since the server started, in the format of Prometheus; nothing where it has none."""
        async with self._bounded():
            answer = await self._client.get(self.url.removesuffix("/v1") + "/metrics")
        counts: dict[str, int] = {}
        for name, value in COUNTER.findall(answer.text) if answer.is_success else ():
            counts[COUNTERS[name]] = counts.get(COUNTERS[name], 0) + int(float(value))
        return counts

    async def _counted(self, before: dict[str, int], rows: list[_Row]) -> dict[str, int]:
        """What a call added to the counters, once they stand still; and the usage that its answers state."""
        last, counts = dict[str, int](), await self._counts()  # what has not moved yet has not settled
        while counts != last:
            await asyncio.sleep(SETTLED_S)
            last, counts = counts, await self._counts()
        usage = [row.generated for row in rows if row.generated is not None]
        generated = {"generated": sum(usage)} if len(usage) == len(rows) else {}
        return generated | {name: value - before.get(name, 0) for name, value in counts.items()}


def _refusal(status: int, text: str) -> Exception:
    """What a status of an error means."""
    told = f"status {status}: {last_words(_message(text))}"
    if status in NO_KEY:
        return EngineGone(f"the server wants another key ({told}): set {KEY}")
    return NotSupported(told) if status < 500 else EngineFailure(told)


def _message(text: str) -> str:
    """The message in the JSON of an error, or else all of it."""
    try:
        told = json.loads(text)
        return (told.get("error") or told).get("message") or text
    except (ValueError, AttributeError):
        return text


def _parsed(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        raise EngineFailure(f"the server answers {shown(answer.decode(errors='replace'))}, not JSON") from None


def _vocab_size(folder: Path) -> int:
    """Ids that the model knows, by the files of its folder."""
    try:
        told = json.loads((folder / "config.json").read_text())
        return told.get("vocab_size") or told["text_config"]["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError):
        told = f"cannot tell the vocabulary of {str(folder)!r}: name a folder with its config.json by --tokenizer"
        raise EngineFailure(told) from None
