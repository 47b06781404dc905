"""What callers ask for: seeds and ids of their own, stop strings, log-probabilities, and long prompts.

Sequences come from requests here. What each should be is decoded from the table one token at a time, from the
request's own words; log-probabilities are the table's.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from proofs.conformance import runs
from proofs.conformance.borders import BLOCK_SIZE
from proofs.conformance.perfect_memory import PackingMemory, PerfectMemory, random_table
from proofs.conformance.runs import SHAPES, STOP, VOCAB_SIZE, Run
from refimpl.core.config import DecodeConfig, SamplingConfig
from refimpl.core.execution import UNMOVED_LAYOUTS
from refimpl.core.records import RowOutcome
from refimpl.core.request import Request
from refimpl.core.sequence import Sequence, StopStrings
from refimpl.decoding.engine import Engine
from refimpl.models.adapter import Pair
from refimpl.oracle import autoregressive
from refimpl.requests import prepare

SAMPLING = SamplingConfig(temperature=0.25, seed=7)
BATCH, DRAFTS, CLOSE = 2, 2, 1e-9
TARGET = random_table("target", VOCAB_SIZE, zeros=True)
REASONS = {"stop": -1, "length": -2}


class Letters:
    """A tokenizer with a letter for each id."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(ord("a") + token) for token in token_ids)


def pair_with_text(kind: type[PerfectMemory] = PerfectMemory) -> Pair:
    """The pair of random tables, with letters."""
    return replace(runs.sampled_pair(kind), tokenizer=Letters())


def alone(request: Request, place: int) -> Sequence:
    """A request by itself, from its own words."""
    strings = StopStrings(tuple(request.stop_strings), Letters().decode) if request.stop_strings else None
    return Sequence(
        place,
        list(request.prompt),  # type: ignore[arg-type]
        request.max_new_tokens or 0,
        stop_token_ids=frozenset(request.stop_token_ids or ()),
        sequence_id=place if request.sequence_id is None else request.sequence_id,
        seed=SAMPLING.seed if request.seed is None else request.seed,
        stop_strings=strings,
    )


def decoded(row: Sequence) -> list[int]:
    """Its tokens, and a sign for the reason why there are no more."""
    feed = runs.sampled_pair().target.fresh_row()
    tokens = [token for token, _ in autoregressive.decode(feed, row, VOCAB_SIZE, SAMPLING)]
    return [*tokens, REASONS["stop" if autoregressive.stops(row, tokens) else "length"]]


def run(method: str, requests: list[Request], pair: Pair, **settings: Any) -> Run:
    """A finished run of requests."""
    budget = {"token_budget": BATCH * (DRAFTS + 1)} if method.endswith("continuous") else {}
    config = DecodeConfig(
        method=method,
        batch_size=BATCH,
        num_speculative_tokens=DRAFTS,
        sampling=SAMPLING,
        block_size=BLOCK_SIZE,
        **({"checks": "host"} | budget | settings),
    )
    engine = Engine(pair, prepare(pair, requests, config), config)
    rounds = list(engine.rounds())
    outputs = [[*row.generated, REASONS.get(str(row.stop_reason), 0)] for row in engine.sequences]
    expected = [decoded(alone(request, place)) for place, request in enumerate(requests)]
    remark = wrong_logprob(rounds, requests) if config.logprobs else over_budget(rounds, config.token_budget)
    return Run(method, SHAPES[0], rounds, outputs, expected, remark=remark)


def keyed_runs(method: str, seen: Counter[str]) -> Iterator[Run]:
    """Numbers belong to a seed and an id, 0 among them, wherever a request stands."""
    keys = ((0, 5), (None, 0), (3, None))
    some = [Request([1, i], 8, stop_token_ids=(), seed=seed, sequence_id=id) for i, (seed, id) in enumerate(keys)]
    yield run(method, some, pair_with_text())
    if method in ("inplace+fifo", "inplace+static"):
        yield run(method, some, pair_with_text(), cuda_graphs=True)


def stopped_runs(method: str, seen: Counter[str]) -> Iterator[Run]:
    """Ten letters end a row: before its budget does, and on its last token; a stop token in the prompt does not."""
    budget, ends_at = 13, 11
    free = alone(Request([STOP, 1], budget), 0)
    text = Letters().decode(decoded(free)[:-1])
    string = text[ends_at - 10 : ends_at]
    some = [Request([STOP, 1], n, stop_token_ids=(), stop_strings=(string,), sequence_id=0) for n in (budget, ends_at)]
    for each in some:
        done = run(method, [each, Request([2], 6, stop_token_ids=(STOP,))], pair_with_text())
        seen["stop strings"] += done.outputs[0][-1] == REASONS["stop"]
        yield done


def logprob_runs(method: str, seen: Counter[str]) -> Iterator[Run]:
    """Log-probabilities stay with their rows, beside one that has finished."""
    some = [Request([i], budget, stop_token_ids=()) for i, budget in enumerate((2, 8, 5))]
    yield run(method, some, pair_with_text(), logprobs=1)


def chunked_runs(method: str, seen: Counter[str]) -> Iterator[Run]:
    """Prompts longer than a chunk, and requests that come late, as rectangles and packed, alone and beside drafts."""
    some = [Request([i % VOCAB_SIZE for i in range(n)], 5, stop_token_ids=()) for n in (3, 7, 2, 6)]
    joint = (False, True) if method.startswith(UNMOVED_LAYOUTS) else (False,)
    for kind, beside in itertools.product((PackingMemory, PerfectMemory), joint):
        done = run(method, some, pair_with_text(kind), joint_prefill=beside)
        seen["chunks"] += any(record.chunks for record in done.rounds)
        yield done


def over_budget(rounds: list[Any], budget: int | None) -> str:
    """The first round of more tokens than its budget (INV-17); a row that decodes feeds its drafts and one token."""
    for record in rounds:
        tokens = sum(row.drafted + 1 for row in record.rows) + sum(count for _, count in record.chunks)
        if budget and tokens > budget:
            return f"{tokens} tokens in a round, of {budget}"
    return ""


def wrong_logprob(rounds: list[Any], requests: list[Request]) -> str:
    """The first log-probability that is not the table's."""
    texts = [list(request.prompt) for request in requests]
    for row in (row for record in rounds for row in record.rows):
        if not all(is_right(row, at, texts[row.sequence]) for at in range(row.kept)):
            return f"log-probabilities {row.logprobs} of row {row.sequence} after {texts[row.sequence]}"
        texts[row.sequence] += row.tokens
    return ""


def is_right(row: RowOutcome, at: int, text: list[Any]) -> bool:
    """One token of a round: its own log-probability, and that of the best."""
    table = torch.tensor(TARGET((*text, *row.tokens[:at]))).double().log_softmax(dim=0)
    told = row.logprobs[at]
    ((_, best),) = told.top
    return (
        told.token_id == row.tokens[at]
        and abs(told.logprob - float(table[told.token_id])) < CLOSE
        and abs(best - float(table.max())) < CLOSE
    )
