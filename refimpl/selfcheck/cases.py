"""A case: prompts, settings and a script of acceptances that together determine a run of the engine."""

import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from refimpl.core.config import LAYOUTS, SCHEDULERS, DecodeConfig, SamplingConfig, make_config
from refimpl.core.drafting import DraftingConfig
from refimpl.core.execution import ExecutionName, joint_prefill_obstacle
from refimpl.core.request import Request
from refimpl.decoding.engine import Engine
from refimpl.decoding.memory import pool_gib
from refimpl.decoding.trace import RoundRecord
from refimpl.generation import generate
from refimpl.models.adapter import Pair
from refimpl.models.table_model import MAX_POSITIONS, VOCAB_SIZE, Letters, greedy_continuation, table_pair
from refimpl.pairs.random_pairs import random_pair
from refimpl.placement import num_states
from refimpl.requests import prepare
from refimpl.results import Result
from refimpl.scheduling import blocks_for

# Older seeds draw the same with these.
WHOLE_PROMPTS = tuple(name for name, facts in SCHEDULERS.items() if not facts.chunked)
OF_PAIR = ("sliding_window", "windowed_layers", "recurrent", "attending_head")  # fields of a case
MAX_ROUNDS_PER_TOKEN = 4  # beyond it a run is taken for endless


class RunawayError(RuntimeError):
    """A run goes on for more rounds than any schedule could need."""


@dataclass(frozen=True)
class Row:
    """One prompt and what belongs to it.

    Attributes:
        prompt: token ids.
        max_new_tokens: budget.
        k: drafts a round, at most.
        stop_at: offset among the generated tokens whose token is made a stop token; None: no stop token.
        agreements: by offset among the generated tokens, whether the draft agrees; True beyond the end. Rows that
            begin with the same token share the script of the first of them. None: the draft has no script.
        stop_tokens: stop tokens as they are, where `stop_at` is None.
        own: further fields of its Request, by name.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int = 8
    k: int = 3
    stop_at: int | None = None
    agreements: tuple[bool, ...] | None = ()
    stop_tokens: tuple[int, ...] = ()
    own: tuple[tuple[str, Any], ...] = ()

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The greedy continuation's token at `stop_at`, or `stop_tokens`."""
        return self.stop_tokens if self.stop_at is None else (greedy_continuation(self.prompt, self.stop_at + 1)[-1],)


@dataclass(frozen=True)
class Case:
    """A run of the engine on the table pair. Fields that are not below are settings of DecodeConfig and SamplingConfig.

    Attributes:
        rows: prompts in the caller's order.
        cancellations: (rounds run before it, index of the row), in order.
        sequence_ids: keys of the rows' random numbers; their places where there are none.
        stop_as_text: give each stop token as a stop string, the letter that it stands for.
        spare_blocks: of a paged pool, beyond those that the longest row needs; None: as many as all rows need.
        joint_prefill: where the other settings allow it.
        recurrent: whether the table pair keeps states.
        attending_head: whether the table pair's head keeps K/V.
        architecture: of a random pair in place of the table pair, whose drafts follow no script.
        sliding_window: of the table pair's first `windowed_layers`; None: they see all of a row.
        spare_tokens: of a round's budget, beyond a verify pass of the row that drafts most; None: as in DecodeConfig.
    """

    rows: tuple[Row, ...]
    layout: str = "inplace"
    scheduler: str = "fifo"
    batch_size: int = 2
    window_size: int = 4
    aging_bound: int | None = None
    compaction_threshold: float = 0.25
    cancellations: tuple[tuple[int, int], ...] = ()
    acceptance: str = "greedy"
    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0
    sequence_ids: tuple[int, ...] = field(default=())
    stop_as_text: bool = False
    shape_stable: bool = False
    cuda_graphs: bool = False
    drafter: str = "model"
    draft_budget: str = "fixed"
    block_size: int = 16
    prefix_sharing: bool = True
    spare_blocks: int | None = None
    spare_tokens: int | None = None
    execution: ExecutionName = "serial"
    joint_prefill: bool = False
    sliding_window: int | None = None
    windowed_layers: int = 1
    recurrent: bool = False
    attending_head: bool = False
    architecture: str = ""

    @property
    def drafting(self) -> DraftingConfig:
        """What proposes tokens, and how many of them are verified."""
        return DraftingConfig(self.drafter, self.draft_budget)

    @property
    def pair(self) -> Pair:
        """The table model with this case's script, its tokens spelt as letters; or another pair, built once."""
        if self.architecture:
            return _random_pair(self.architecture)
        layers: dict[str, Any] = {name: getattr(self, name) for name in OF_PAIR}
        return replace(table_pair(self.script, **layers), tokenizer=Letters())

    @property
    def script(self) -> dict[int, tuple[bool, ...]]:
        """First token → agreement by position."""
        result: dict[int, tuple[bool, ...]] = {}
        for row in self.rows:
            result.setdefault(row.prompt[0], ((True,) * len(row.prompt) + (row.agreements or ()))[: MAX_POSITIONS + 1])
        return result

    @property
    def requests(self) -> list[Request]:
        """One request a row; the key of its random numbers is its place, or what `sequence_ids` says."""
        ids = self.sequence_ids or range(len(self.rows))
        return [self._request(row, i) for row, i in zip(self.rows, ids, strict=True)]

    def _request(self, row: Row, sequence_id: int) -> Request:
        stops = row.stop_token_ids
        letters = tuple(Letters().decode([token]) for token in stops)
        tokens, strings = ((), letters) if self.stop_as_text else (stops, None)
        own = dict(row.own)
        return Request(row.prompt, row.max_new_tokens, row.k, tokens, strings, sequence_id=sequence_id, **own)

    def config(self, **overrides: Any) -> DecodeConfig:
        """Settings of the run, some of them replaced."""
        named = {f.name for cls in (DecodeConfig, SamplingConfig) for f in fields(cls)}
        settings: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name in named}
        settings |= {
            "method": f"{self.layout}+{self.scheduler}",
            "window_size": max(self.window_size, self.batch_size),
            "num_speculative_tokens": max(row.k for row in self.rows),
            "token_budget": self.token_budget,
        } | overrides
        wanted = settings.pop("joint_prefill")
        config = make_config(**settings)
        return replace(config, joint_prefill=True) if wanted and not joint_prefill_obstacle(config) else config

    @property
    def token_budget(self) -> int | None:
        """Verify tokens of the row that drafts most, and the spare ones."""
        return None if self.spare_tokens is None else max(row.k for row in self.rows) + 1 + self.spare_tokens

    def kv_memory_gib(self, pair: Pair) -> float | None:
        """Memory that holds the longest row and the spare blocks, with the K/V of a pair."""
        if self.layout != "paged" or self.spare_blocks is None:
            return None
        longest = max(len(row.prompt) + row.max_new_tokens for row in self.rows)
        blocks = blocks_for(longest, self.block_size) + self.spare_blocks
        rows = min(self.config().resolved_window_size, len(self.rows))
        states = num_states(rows, min(self.batch_size, rows), max(row.k for row in self.rows) + 1)
        return pool_gib(pair, blocks, self.block_size, drafts=self.drafting.uses_draft, num_states=states)

    def permuted(self, order: Seq[int]) -> "Case":
        """The same rows handed in in another order, each with the random numbers it had."""
        ids = self.sequence_ids or tuple(range(len(self.rows)))
        rows, ids = tuple(self.rows[i] for i in order), tuple(ids[i] for i in order)
        return replace(self, rows=rows, sequence_ids=ids, cancellations=())


@dataclass(frozen=True)
class Run:
    """What a run gave: tokens and stop reason by row, the records of its rounds, and its result when it was whole."""

    outputs: list[list[int]]
    stop_reasons: list[str | None]
    rounds: list[RoundRecord]
    result: Result | None = None

    @classmethod
    def of(cls, result: Result) -> "Run":
        """A run that came to its end."""
        tokens = [s.token_ids for s in result.sequences]
        return cls(tokens, [s.stop_reason for s in result.sequences], result.rounds, result)

    @property
    def stats(self) -> Any:
        """Statistics of a whole run."""
        return self.result.stats if self.result else None


@lru_cache(maxsize=8)
def _random_pair(architecture: str) -> Pair:
    return random_pair(architecture)


def run_case(case: Case, *, checks: str = "off", pair: Pair | None = None, **overrides: Any) -> Run:
    """Decode a case through the public interface, or round by round when something is cancelled.

    Raises:
        InvariantViolation: a check of the level failed.
        RunawayError: the run does not end.
    """
    pair = pair or case.pair
    config = case.config(**{"checks": checks, "kv_memory_gib": case.kv_memory_gib(pair)} | overrides)
    limit = 8 + MAX_ROUNDS_PER_TOKEN * sum(row.max_new_tokens for row in case.rows)
    if case.cancellations:
        return _run_with_cancellations(case, pair, config, limit)
    num_rounds = 0

    def watch(*_: int) -> None:
        nonlocal num_rounds
        num_rounds += 1
        if num_rounds > limit:
            raise RunawayError(f"no end after {limit} rounds")

    settings = {f.name: getattr(config, f.name) for f in fields(config)}
    return Run.of(generate(pair, case.requests, progress=watch, **settings))


def _run_with_cancellations(case: Case, pair: Pair, config: DecodeConfig, limit: int) -> Run:
    engine = Engine(pair, prepare(pair, case.requests, config), config)
    rounds: list[RoundRecord] = []
    pending = list(case.cancellations)
    while not engine.scheduler.done:
        while pending and pending[0][0] <= len(rounds):
            engine.cancel(engine.sequences[pending.pop(0)[1]])
        if engine.scheduler.done:
            break
        rounds.append(engine.run_one_round())
        if len(rounds) > limit:
            raise RunawayError(f"no end after {limit} rounds")
    return Run([s.generated for s in engine.sequences], [s.stop_reason for s in engine.sequences], rounds)


def oracle_run(case: Case, pair: Pair | None = None, **settings: Any) -> Run:
    """Autoregressive decoding of every row; on the table pair unless another is given."""
    sampling = case.config().sampling
    return Run.of(generate(pair or case.pair, case.requests, method="autoregressive", sampling=sampling, **settings))


def oracle_outputs(case: Case, pair: Pair | None = None) -> list[list[int]]:
    """What autoregressive decoding generates for every row."""
    return oracle_run(case, pair).outputs


def expected_accepted(case: Case, first: int, position: int, drafted: int) -> int:
    """Drafts accepted in a round that fills positions from `position` on: the script's leading agreements."""
    pattern = case.script[first]
    agreed = [pattern[p] if p < len(pattern) else True for p in range(position, position + drafted)]
    return next((i for i, agrees in enumerate(agreed) if not agrees), drafted)


def acceptance_lengths(lengths: Seq[int], k: int) -> tuple[bool, ...]:
    """Script in which successive rounds of k drafts accept `lengths` of them; later rounds accept all."""
    script: list[bool] = []
    for length in lengths:
        script += [True] * min(length, k) + [length >= k]  # the last is the recovered or the bonus token's place
    return tuple(script)


def random_row(rng: random.Random) -> Row:
    """Draw a row: short prompts often, all kinds of acceptance, a stop token in every third row."""
    k, budget = rng.choice([0, 1, 2, 3, 4, 5]), rng.choice([1, 2, 5, 8, 12, 16])
    prompt = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([1, 2, 3, 5, 8, 13])))
    lengths = [rng.choice([0, 1, k, k, rng.randrange(k + 1)]) for _ in range(budget)]
    stop_at = rng.randrange(budget) if rng.random() < 1 / 3 else None
    return Row(prompt, budget, k, stop_at, acceptance_lengths(lengths, k)[:budget])


def random_case(rng: random.Random, *, layouts: Seq[str] = LAYOUTS, schedulers: Seq[str] = WHOLE_PROMPTS) -> Case:
    """Draw a case without any library, so that a seed means the same everywhere."""
    rows = [random_row(rng) for _ in range(rng.choice([1, 2, 3, 5, 7]))]
    if rng.random() < 0.3:
        rows.append(rng.choice(rows))
    if rng.random() < 0.4:  # equal lengths, so that groups form
        rows = [replace(row, prompt=(row.prompt * 3)[:3], k=rows[0].k) for row in rows]
    batch_size = rng.choice([1, 2, 3, 4])
    return Case(
        tuple(rows),
        rng.choice(layouts),
        rng.choice(schedulers),
        batch_size,
        window_size=batch_size * rng.choice([1, 2, 3]),
        aging_bound=rng.choice([None, 0, 1, 3]),
        compaction_threshold=rng.choice([0.05, 0.25, 1.0]),
    )
