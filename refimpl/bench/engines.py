"""One run of one engine: transformers' own generation, or a method of ours."""

import gc
import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from refimpl.bench.probe import device_busy_s
from refimpl.bench.settings import BenchSettings
from refimpl.bench.work import Feed, ModelWork, Work, round_passes
from refimpl.core.config import DecodeConfig
from refimpl.core.request import Request
from refimpl.core.sequence import Sequence
from refimpl.core.stats import AcceptanceStats, acceptance_stats
from refimpl.decoding.devices import synchronize
from refimpl.decoding.engine import Engine
from refimpl.decoding.timing import sum_stages
from refimpl.decoding.trace import RoundRecord
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.store import Block
from refimpl.models.adapter import HuggingFaceLM, Pair
from refimpl.models.block_cache import cache_argument
from refimpl.models.lean_trial import Run
from refimpl.requests import SequenceMaker, prepare

STAGES = ("draft", "verify", "realign", "host")
WARM_TOKENS = 12  # of each row of the batch with which an engine warms up
BUSY_ROUNDS, BUSY_WARM_ROUNDS, BUSY_TRIES = 4, 3, 8
EMPTY_STAGE_S = 5e-4  # more than two CUDA events with nothing between them are apart, less than a prefill takes
ATTENTION = "sdpa"  # of transformers' own generation, regardless of what the adapter uses; cuDNN's is off for all


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one engine.

    Attributes:
        seconds: of the whole run, prefill included; `record_s` and the allocation of our K/V pools left out.
        tokens: generated.
        passes: forward passes that could not be avoided; those of rounds only, where there are rounds.
        passes_s: seconds that these passes took, and what rounds take around them.
        rounds: 0 for engines without rounds.
        stage_s: seconds of rounds by stage; None for engines without rounds.
        forward_s: seconds of rounds in either model's forward pass; None where it is not known.
        acceptance: None for engines without rounds.
        peak_bytes: most memory allocated on the device at a time; None on a CPU.
        kv_bytes: K/V pools; None for engines that have none of ours.
        record_s: seconds spent on recording rounds, one for each width of the context, the warm-up's included.
        drafts: of a row and round, at most.
        outputs: generated token ids of every prompt.
    """

    seconds: float
    tokens: int
    passes: tuple[Work, ...] = ()
    passes_s: float = 0.0
    rounds: int = 0
    stage_s: dict[str, float] | None = None
    forward_s: float | None = None
    acceptance: AcceptanceStats | None = None
    peak_bytes: int | None = None
    kv_bytes: int | None = None
    record_s: float = 0.0
    drafts: int = 0
    outputs: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Bench:
    """A pair of two transformers models, what their passes cost, and what all engines share."""

    pair: Pair
    target: HuggingFaceLM
    draft: HuggingFaceLM
    settings: BenchSettings
    works: tuple[ModelWork, ModelWork]

    @property
    def device(self) -> torch.device:
        """Device of both models."""
        return self.pair.device


def run_method(bench: Bench, prompts: list[list[int]], method: str, batch_size: int, **changes: Any) -> Sample:
    """Decode the prompts once by a method of ours, warmed up; `changes` replace engine settings."""
    config = bench.settings.config(method, batch_size, **changes)
    records: list[RoundRecord] = []
    round_ends: list[int] = []  # forward passes made by the end of each round
    with _peak_memory(bench.device) as peak, _forward_clock(bench) as clock:
        engine, sequences, warm = warm_engine(bench.pair, prompts, config)
        begun = time.perf_counter()
        for record in engine.rounds():
            records.append(record)
            round_ends.append(len(clock))
        seconds = time.perf_counter() - begun
    stage_s = sum_stages(record.stage_s for record in records)
    return Sample(
        seconds=seconds - stage_s["record"],
        tokens=sum(sequence.num_generated for sequence in sequences),
        passes=tuple(work for record in records for work in round_passes(record, *bench.works)),
        passes_s=sum(round_s(record) for record in records),
        rounds=len(records),
        stage_s={stage: stage_s[stage] for stage in STAGES},
        forward_s=_forward_s(records, round_ends, clock) if clock and config.execution == "serial" else None,
        acceptance=acceptance_stats(row for record in records for row in record.rows),
        peak_bytes=peak[0] if peak else None,
        kv_bytes=engine.kv_bytes,
        record_s=stage_s["record"] + sum_stages(record.stage_s for record in warm)["record"],
        drafts=config.num_speculative_tokens,
        outputs=tuple(tuple(sequence.generated) for sequence in sequences),
    )


def warm_engine(
    pair: Pair, prompts: Seq[list[int]], config: DecodeConfig
) -> tuple[Engine, list[Sequence], list[RoundRecord]]:
    """An engine that is to decode the prompts and has decoded a few tokens of a batch; these sequences, those rounds.

    What it has recorded serves again. The batch is of the first prompts read backwards, so that no block is shared.
    """
    maker, few = SequenceMaker(pair, config), min(WARM_TOKENS, config.max_new_tokens)
    batch = maker.make([Request(prompt[::-1], few) for prompt in prompts[: config.resolved_batch_size]])
    maker.note(batch)
    sequences = [each.sequence for each in maker.make(prompts)]
    engine = Engine(pair, [each.sequence for each in batch], config, expected=sequences)
    rounds = list(engine.rounds())
    engine.submit(sequences)
    return engine, sequences, rounds


def round_s(record: RoundRecord) -> float:
    """Seconds of a round by the clock, its prefill and recording left out."""
    return record.stage_s["round_s"] - record.stage_s["prefill_s"] - record.stage_s["record_s"]


def _forward_s(rounds: Seq[RoundRecord], round_ends: Seq[int], clock: Seq[float]) -> float:
    """Seconds of the rounds' own passes: the last of each round, those of its draft and one of the target."""
    ends = [(record, end) for record, end in zip(rounds, round_ends, strict=True) if record.rows]
    return sum(sum(clock[end - record.rows[0].draft_passes - 1 : end]) for record, end in ends)


@torch.inference_mode()
def hf_generate(bench: Bench, prompts: list[list[int]], batch_size: int, *, assisted: bool = False) -> Sample:
    """Decode the prompts once by transformers' own `generate`, in left-padded batches, optionally assisted."""
    config = GenerationConfig(
        do_sample=False, max_new_tokens=bench.settings.max_new_tokens, eos_token_id=None, pad_token_id=0, use_cache=True
    )
    target, draft, device = bench.target.model, bench.draft.model, bench.device
    outputs: list[Tensor] = []
    extra = {"assistant_model": draft} if assisted else {}
    pads: list[int] = []
    with _peak_memory(device) as peak, as_shipped(bench), _recorded_passes(bench, pads) as passes:
        synchronize(device)
        begun = time.perf_counter()
        for start in range(0, len(prompts), batch_size):
            batch = prompts[start : start + batch_size]
            width = max(map(len, batch))
            pads[:] = [width - len(prompt) for prompt in batch]
            ids = torch.tensor([[0] * (width - len(p)) + p for p in batch], device=device)
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch], device=device)
            output = target.generate(ids, attention_mask=mask, generation_config=config, **extra)
            outputs += output[:, width:]
        synchronize(device)
        seconds = time.perf_counter() - begun
    generated = tuple(tuple(row.tolist()) for row in outputs)
    tokens, most = sum(map(len, generated)), peak[0] if peak else None
    return Sample(seconds, tokens, tuple(passes), seconds, peak_bytes=most, outputs=generated)


def busy_s_per_round(
    bench: Bench, prompts: list[list[int]], method: str, batch_size: int, **changes: Any
) -> float | None:
    """Seconds a round in which the device works, over a few rounds in the middle; CUDA only, None where unknown.

    Rounds that prefill or record do work that is not a round's: where one is met, the next few rounds are profiled
    instead, up to `BUSY_TRIES` times.
    """
    settings = bench.settings.engine_settings(method, batch_size) | changes
    config = bench.settings.config(method, batch_size, **changes)
    engine = Engine(bench.pair, prepare(bench.pair, prompts, config), config)
    num_rounds = min(BUSY_ROUNDS, settings["max_new_tokens"] // (2 * settings["num_speculative_tokens"] + 2)) or 1
    _next_rounds(engine, BUSY_WARM_ROUNDS)
    for _ in range(BUSY_TRIES):
        records, busy_s = _profiled(engine, num_rounds)
        if busy_s is None or not records:
            return None
        if all(only_decodes(record) for record in records):
            return busy_s / len(records)
    return None


def _next_rounds(engine: Engine, count: int) -> list[RoundRecord]:
    """Run so many rounds, or as many as are left."""
    return list(islice(engine.rounds(), count))


def _profiled(engine: Engine, count: int) -> tuple[list[RoundRecord], float | None]:
    """The same under the profiler, with the seconds in which the device worked."""
    records: list[RoundRecord] = []
    return records, device_busy_s(lambda: records.extend(_next_rounds(engine, count)))


def only_decodes(record: RoundRecord) -> bool:
    """Whether a round neither prefilled nor recorded."""
    return max(record.stage_s["prefill_s"], record.stage_s["record_s"]) < EMPTY_STAGE_S


@contextmanager
def _peak_memory(device: torch.device) -> Iterator[list[int]]:
    """Yield a list that holds, afterwards, the most bytes allocated on a CUDA device; it stays empty on a CPU.

    What an earlier run has dropped is freed first.
    """
    gc.collect()
    peak: list[int] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    yield peak
    if device.type == "cuda":
        peak.append(torch.cuda.max_memory_allocated(device))


@contextmanager
def as_shipped(bench: Bench) -> Iterator[None]:
    """Have the models use transformers' standard attention and no generation settings of their own, then as before.

    What a generation config leaves open is filled from the model's: its stop tokens would end rows early. The draft is
    set to propose a constant number of tokens, regardless of its confidence.
    """
    constant = GenerationConfig(
        num_assistant_tokens=bench.settings.num_speculative_tokens,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
    models = (bench.target.model, bench.draft.model)
    before = [(model.config._attn_implementation, model.generation_config) for model in models]
    for model, generation_config in zip(models, (GenerationConfig(), constant), strict=True):
        model.set_attn_implementation(ATTENTION)
        model.generation_config = generation_config
    try:
        yield
    finally:
        for model, (attention, generation_config) in zip(models, before, strict=True):
            model.set_attn_implementation(attention)
            model.generation_config = generation_config


@contextmanager
def _forward_clock(bench: Bench) -> Iterator[list[float]]:
    """Yield a list that gets the seconds of every forward pass.

    On a CPU only, where a call ends when its work is done; on CUDA it stays empty, nothing is hooked.
    """
    seconds: list[float] = []
    if bench.device.type != "cpu":
        yield seconds
        return

    def timed(run: Run) -> Run:
        def clocked(block: Block | PackedBlock, num_logits: int) -> Tensor:
            begun = time.perf_counter()
            logits = run(block, num_logits)
            seconds.append(time.perf_counter() - begun)
            return logits

        return clocked

    models = {id(lm): lm for lm in (bench.target, bench.draft)}.values()
    before = [(lm, lm.run_layers) for lm in models]
    for lm, run in before:
        lm.run_layers = timed(run)
    try:
        yield seconds
    finally:
        for lm, run in before:
            lm.run_layers = run


@contextmanager
def _recorded_passes(bench: Bench, pads: list[int]) -> Iterator[list[Work]]:
    """Yield a list that gets the work of every forward pass that transformers' own generation makes.

    Its batches are rectangles with `pads` columns in front of each row, which are no work that has to be done.
    """
    passes: list[Work] = []

    def hook_of(work: ModelWork) -> Any:
        def record(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            fed = (kwargs["input_ids"] if "input_ids" in kwargs else args[0]).shape[1]
            cache, keep = kwargs.get(cache_argument(model)), kwargs.get("logits_to_keep") or fed
            cached = cache.get_seq_length() if cache is not None else 0
            passes.append(work.forward_pass(_real(cached, fed, keep, n) for n in pads))

        return record

    handles = [
        lm.model.register_forward_pre_hook(hook_of(work), with_kwargs=True)
        for lm, work in zip((bench.target, bench.draft), bench.works, strict=True)
    ]
    try:
        yield passes
    finally:
        for handle in handles:
            handle.remove()


def _real(cached: int, fed: int, num_logits: int, pads: int) -> Feed:
    """What a row brings into a pass, its first `pads` columns left out."""
    return Feed(max(0, cached - pads), fed - max(0, pads - cached), num_logits)
