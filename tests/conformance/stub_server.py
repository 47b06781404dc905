"""An OpenAI-compatible server for tests: speculative sampling on tables of integers, honest or with one of `LIES`."""

import asyncio
import json
import math
import queue
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tokenizers import Tokenizer

from refimpl.core.tokens import until_stop
from refimpl.models.table_model import UNRELATED, VOCAB_SIZE, TableModel

K = 3  # drafts a round
BIASED = 7
STANDARD = {
    "model",
    "prompt",
    "max_tokens",
    "temperature",
    "top_p",
    "seed",
    "logprobs",
    "stop_token_ids",
}  # and no others
Row = dict[str, Any]


@cache
def logits_of(tokens: tuple[int, ...], salt: int) -> list[float]:
    """What a table model says after some tokens."""
    return _feed(tokens, salt)[1]


@cache
def _feed(tokens: tuple[int, ...], salt: int) -> Any:
    feed = TableModel(salt=salt).fresh_row()
    return feed, feed(list(tokens)).tolist()


@cache
def law(tokens: tuple[int, ...], temperature: float, salt: int = 0) -> tuple[float, ...]:
    """Probabilities of the next token: all on the best one at temperature 0."""
    logits = logits_of(tokens, salt)
    if not temperature:
        return tuple(float(i == logits.index(max(logits))) for i in range(len(logits)))
    weights = [math.exp((logit - max(logits)) / temperature) for logit in logits]
    return tuple(weight / sum(weights) for weight in weights)


class Reference:
    """Plain decoding by the same table, with the law of its samples."""

    vocab_size, supports = VOCAB_SIZE, frozenset({"logprobs", "sampling"})

    def __call__(self, prompts: list[list[int]], settings: Any) -> dict[str, Any]:
        budget, temperature, rows = settings.max_new_tokens, settings.temperature, list[Row]()
        for i, prompt in enumerate(prompts):
            rows.append(Stub(draft=0).decode(tuple(prompt), budget, temperature, random.Random(f"{settings.seed} {i}")))
        return {"outputs": [row["tokens"] for row in rows], "logprobs": [row["logprobs"] for row in rows]}

    def law(self, tokens: list[int]) -> list[float]:
        return [math.log(p) for p in law(tuple(tokens), 1.0)]


@dataclass
class Stub:
    """The engine of the server.

    Attributes:
        lie: the name of one, or empty.
        counts: drafted, accepted, rounds since the start.
        memory: of engines that remember what they should not.
    """

    lie: str = ""
    draft: int = UNRELATED
    counts: list[int] = field(default_factory=lambda: [0, 0, 0])
    active: int = 0
    num_requests: int = 0
    memory: dict[Any, Any] = field(default_factory=dict)

    def decode(
        self, prompt: tuple[int, ...], budget: int, temperature: float, noise: random.Random, stops: Sequence[int] = ()
    ) -> Row:
        """Speculative sampling (Leviathan et al. 2023), row by row; the first token comes from the prompt's pass."""
        tokens = [*prompt, draw(law(prompt, temperature), noise.random())]
        counts = [0, 0, 0]
        while len(tokens) - len(prompt) < budget and tokens[-1] not in stops:
            accepted = self._round(tokens, temperature, noise)
            kept = until_stop(accepted[: budget - (len(tokens) - len(prompt))], stops)
            cut = self.lie == "counters count the cut"
            counts[0] += K
            counts[1] += len(accepted) - 1 if cut else min(len(accepted) - 1, len(kept))
            counts[2] += 1
            tokens += kept
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]
        out = tokens[len(prompt) :][:budget]
        logprobs = [math.log(law((*prompt, *out[:i]), 1.0)[token]) for i, token in enumerate(out)]
        return {"tokens": out, "logprobs": logprobs, "usage": len(out)}

    def _round(self, tokens: list[int], temperature: float, noise: random.Random) -> list[int]:
        """What a round commits: drafts that are accepted, and a token of the target."""
        drafts, uniforms = [], []
        draft = self.draft if temperature or len(tokens) % 3 == 0 else 0  # greedy ones are right now and then
        for _ in range(K if self.draft else 0):
            uniforms.append(noise.random())
            drafts.append(draw(law((*tokens, *drafts), temperature, draft), uniforms[-1]))
        for i, token in enumerate(drafts):
            prefix = (*tokens, *drafts[:i])
            p, q = self._target(prefix, temperature), law(prefix, temperature, draft)
            if noise.random() * q[token] >= p[token]:
                left = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
                uniform = uniforms[i] if self.lie == "draft noise used again" else noise.random()
                return [*drafts[:i], draw(left, uniform)]
        bonus = random.Random() if self.lie == "seed ignored for the bonus token" else noise
        return [*drafts, draw(self._target((*tokens, *drafts), temperature), bonus.random())]

    def _target(self, prefix: tuple[int, ...], temperature: float) -> tuple[float, ...]:
        if self.lie == "wrong temperature":
            temperature *= 1.2
        if self.lie == "greedy in the verify pass":
            temperature = 0.0
        p = law(prefix, temperature)
        if self.lie == "a bias of 5 %" and temperature:
            p = tuple(0.05 * (token == BIASED) + 0.95 * each for token, each in enumerate(p))
        return p

    def answer(self, asked: dict[str, Any], most_active: int = 1) -> Row:
        """One row, as it is or as a lie has it."""
        self.num_requests += 1
        temperature = 1.0 if self.lie == "ignored temperature" and asked["temperature"] else asked["temperature"]
        seed = asked.get("seed", 0)
        seed = seed % 65536 if self.lie == "seeds modulo 65,536" else seed
        stops = asked.get("stop_token_ids", [])[: {"first of two stops": 1, "no stops": 0}.get(self.lie)]
        row = self.decode(tuple(asked["prompt"]), asked["max_tokens"], temperature, random.Random(seed), stops)
        return LIES.get(self.lie, _honest)(self, asked | {"active": most_active}, row)


class Drafting(Reference):
    """The same engine as a Python object, which samples."""

    supports = frozenset({"sampling"})

    def __init__(self, lie: str = ""):
        self.stub = Stub(lie)

    def __call__(self, prompts: list[list[int]], settings: Any) -> Any:
        own = [random.Random(f"{settings.seed} {i}") for i in range(len(prompts))]
        budget, temperature = settings.max_new_tokens, settings.temperature
        rows = [self.stub.decode(tuple(p), budget, temperature, noise) for p, noise in zip(prompts, own, strict=True)]
        return [row["tokens"] for row in rows]


def draw(weights: Any, uniform: float) -> int:
    """The outcome of some weights at which their running share passes a uniform number."""
    left = uniform * sum(weights)
    for i, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return i
    return max(range(len(weights)), key=weights.__getitem__)


# --- lies ------------------------------------------------------------------------------------------------------------


def _honest(_: Stub, __: dict[str, Any], row: Row) -> Row:
    return row


def _wrong(row: Row) -> Row:
    """The same row but for its last token."""
    return row | {"tokens": [*row["tokens"][:-1], (row["tokens"][-1] + 1) % VOCAB_SIZE]}


def _where(when: Callable[[Stub, dict[str, Any], Row], Any]) -> Callable[..., Row]:
    return lambda stub, asked, row: _wrong(row) if when(stub, asked, row) else row


def _again(stub: Stub, asked: dict[str, Any], row: Row) -> bool:
    key = json.dumps([asked["prompt"], asked["max_tokens"], asked["temperature"], asked.get("seed")])
    stub.memory[key] = stub.memory.get(key, 0) + 1
    return stub.memory[key] > 2


def _of_another(stub: Stub, asked: dict[str, Any], row: Row) -> Row:
    """Every other request gets what the one before it should have got, if both want as many tokens."""
    before, stub.memory["row"] = stub.memory.get("row"), row
    return before if before and asked["active"] > 1 and len(before["tokens"]) == len(row["tokens"]) else row


def _of_the_cancelled(stub: Stub, asked: dict[str, Any], row: Row) -> Row:
    """What a client that left did not fetch goes to the next."""
    left = stub.memory.pop("left", None)
    return row | {"tokens": [*left, *row["tokens"]][: len(row["tokens"])]} if left else row


def _of_an_earlier_turn(stub: Stub, asked: dict[str, Any], row: Row) -> Row:
    """Wrong after a text that another request has ended with a stop token, which was not fed."""
    texts, prompt = stub.memory.setdefault("texts", set()), tuple(asked["prompt"])
    wrong = any(prompt[:end] in texts for end in range(len(prompt)))
    if len(row["tokens"]) < asked["max_tokens"]:
        texts.add((*prompt, *row["tokens"]))
    return _wrong(row) if wrong else row


def _logprobs_late(_: Stub, __: dict[str, Any], row: Row) -> Row:
    return row | {"logprobs": [row["logprobs"][0], *row["logprobs"][:-1]]}


LIES: dict[str, Callable[..., Row]] = {
    "by concurrency": _where(lambda stub, asked, row: asked["active"] > 1),
    "above concurrency 4": _where(lambda stub, asked, row: asked["active"] > 4),
    "above concurrency 16": _where(lambda stub, asked, row: asked["active"] > 16),
    "prompts over 100": _where(lambda stub, asked, row: len(asked["prompt"]) > 100),
    "beyond 64 tokens": _where(lambda stub, asked, row: asked["max_tokens"] > 64),
    "rare ids": _where(lambda stub, asked, row: VOCAB_SIZE - 1 in asked["prompt"]),
    "state kept by prompt": _where(_again),
    "one in 200": _where(lambda stub, asked, row: stub.num_requests % 200 == 0),
    "off by one at a budget of 1": lambda stub, asked, row: (
        row | {"tokens": row["tokens"] * 2} if asked["max_tokens"] == 1 else row
    ),
    "budget overshot when sampling": lambda stub, asked, row: (
        row | {"tokens": [*row["tokens"], 0]} if asked["temperature"] else row
    ),
    "permuted results": _of_another,
    "wrong log-probabilities": _logprobs_late,
    "cache published past the text": _of_an_earlier_turn,
    "usage counts the cut": lambda stub, asked, row: row | {"usage": row["usage"] + (asked["max_tokens"] > 2)},
    "a cancelled request answered to the next": _of_the_cancelled,
}  # fmt: skip


# --- HTTP ------------------------------------------------------------------------------------------------------------


class Server:
    """Speaks just enough HTTP: JSON in, JSON or events out, connections kept."""

    def __init__(self, stub: Stub, folder: str, key: str = "", mode: str = ""):
        self.stub, self.folder, self.key, self.mode = stub, folder, key, mode
        self.tokenizer: Any = Tokenizer.from_file(f"{folder}/tokenizer.json") if mode == "texts" else None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode()
                size = next((int(h[15:]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length:")), 0)
                body = json.loads(await reader.readexactly(size) or b"{}")
                await self._reply(path, body, head, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _reply(self, path: str, body: dict[str, Any], head: bytes, writer: asyncio.StreamWriter) -> None:
        if self.mode == "hang":
            await asyncio.sleep(1000)
        if self.mode == "html":
            return _send(writer, "<html>\n<body>Welcome</body></html>")
        if self.key and f"Bearer {self.key}".encode() not in head:
            return _send(writer, {"error": {"message": "no such key"}}, 401)
        if self.mode == "busy" and random.random() < 0.3:
            return _send(writer, {"error": {"message": "busy"}}, 429)
        if self.mode == "strict" and not body.keys() <= STANDARD:
            return _send(writer, {"error": {"message": "unknown fields"}}, 400)
        if self.mode == "texts" and isinstance(body.get("prompt"), list):
            return _send(writer, {"detail": "prompt must be a string"}, 400)
        if path.endswith("/models"):
            return _send(writer, {"data": [{"id": "table", "root": self.folder}]})
        if path.endswith("/metrics"):
            names = ("draft_tokens", "accepted_tokens", "drafts")
            lines = [
                f'# HELP x:spec_decode_num_{n}_total Number of them.\nx:spec_decode_num_{n}_total{{a="b"}} {c}.0'
                for n, c in zip(names, self.stub.counts, strict=True)
            ]
            return _send(writer, "\n".join(lines))
        if self.tokenizer:
            body["prompt"] = self.tokenizer.encode(body["prompt"]).ids
        self.stub.active += 1
        self.stub.memory["most"] = max(self.stub.active, self.stub.memory.get("most", 0))
        before = 0
        while before != self.stub.active:  # until no others come
            before = self.stub.active
            await asyncio.sleep(0.001)
        most = self.stub.memory["most"]
        row = self.stub.answer(body, most)
        if body.get("stream"):
            await self._stream(row, writer)
        else:
            answer = completion(row, body, ids="return_token_ids" in body and not self.tokenizer)
            if self.tokenizer:
                answer["choices"][0]["text"] = self.tokenizer.decode(row["tokens"])
            _send(writer, answer)
        self.stub.active -= 1
        if not self.stub.active:
            self.stub.memory["most"] = 0
        return None

    async def _stream(self, row: Row, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for i, token in enumerate(row["tokens"]):
            try:
                writer.write(f"data: {json.dumps({'choices': [{'token_ids': [token], 'text': ''}]})}\n\n".encode())
                await writer.drain()
                await asyncio.sleep(0.001)
            except ConnectionError:
                self.stub.memory["left"] = row["tokens"][i:]
                break
        writer.write(b"data: [DONE]\n\n")
        writer.close()


def completion(row: Row, body: dict[str, Any], *, ids: bool) -> dict[str, Any]:
    """The body of an answer."""
    logprobs = {"token_logprobs": row["logprobs"]} if body.get("logprobs") else None
    choice = {"text": "".join(chr(97 + t) for t in row["tokens"]), "logprobs": logprobs}
    return {
        "choices": [choice | ({"token_ids": row["tokens"]} if ids else {})],
        "usage": {"completion_tokens": row["usage"]},
    }


def _send(writer: asyncio.StreamWriter, body: Any, status: int = 200) -> None:
    content = (body if isinstance(body, str) else json.dumps(body)).encode()
    writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)


@contextmanager
def served(lie: str | Stub = "", folder: str = "", **settings: Any) -> Iterator[str]:
    """Run a server in a thread; yield its address."""
    stub = lie if isinstance(lie, Stub) else Stub(lie)
    handler, told = Server(stub, folder, **settings), queue.SimpleQueue[Any]()

    async def run() -> None:
        server, over = await asyncio.start_server(handler.serve, "127.0.0.1", 0), asyncio.Event()
        told.put((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), over))
        await over.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    port, loop, over = told.get()
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
