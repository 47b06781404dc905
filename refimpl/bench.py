"""Throughput of every method against what a user would pick instead, in one interleaved run.

Machines drift, so every engine runs once per repeat, in turn, on the same prompts and budgets, after a warm-up; what is
reported is the median and the spread over repeats, and the ratio to plain batched generation of transformers in the
same repeat. Stop tokens are switched off: every engine generates the same number of tokens.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from refimpl.equivalence import expand_methods
from refimpl.errors import InputError
from refimpl.generation import generate
from refimpl.kvstore import Block, KVShape
from refimpl.model import CausalLM, FeedRow, HuggingFaceLM, Pair

ROUND_STAGES = ("draft", "verify", "realign", "host")
PLAIN, ASSISTED, BATCHED = "hf_generate", "hf_assisted", "autoregressive_batched"


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What every engine of a benchmark shares.

    `forced_lengths` replaces natural acceptance: probabilities of 0 … k accepted drafts (see `refimpl.forced`).
    """

    batch_sizes: tuple[int, ...] = (1, 8)
    methods: tuple[str, ...] = ("all",)
    num_speculative_tokens: int = 5
    max_new_tokens: int = 48
    repeats: int = 3
    checks: str = "off"
    forced_lengths: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one engine; seconds of rounds by stage are None for engines without rounds."""

    seconds: float
    tokens: int
    rounds: int = 0
    stage_s: dict[str, float] | None = None
    forward_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BenchRow:
    """Medians over repeats.

    Attributes:
        engine: hf_generate, hf_assisted, autoregressive_batched, or a method.
        tokens_per_s, tokens_per_s_min, tokens_per_s_max: over the whole run, prefill included.
        ratio_to_hf_generate: median over repeats of the ratio within a repeat.
        ms_per_round: draft, verify, realign and host of a round, prefill left out; 0 for engines without rounds.
        share_draft, share_verify, share_realign, share_host: of `ms_per_round`.
        share_outside_forward: share of `ms_per_round` not spent in either model's forward pass.
    """

    engine: str
    batch_size: int
    tokens_per_s: float
    tokens_per_s_min: float
    tokens_per_s_max: float
    ratio_to_hf_generate: float
    ms_per_round: float
    share_draft: float
    share_verify: float
    share_realign: float
    share_host: float
    share_outside_forward: float


@dataclass(slots=True)
class TimedLM:
    """A model that adds up the seconds of its forward passes (CPU only, where a call ends when its work is done)."""

    inner: CausalLM
    forward_s: float = 0.0
    vocab_size: int = field(init=False)
    max_positions: int = field(init=False)
    kv_shape: KVShape = field(init=False)

    def __post_init__(self) -> None:
        self.vocab_size, self.max_positions = self.inner.vocab_size, self.inner.max_positions
        self.kv_shape = self.inner.kv_shape

    def forward(self, block: Block, num_logits: int) -> Tensor:
        """Run and time the inner model."""
        begun = time.perf_counter()
        logits = self.inner.forward(block, num_logits)
        self.forward_s += time.perf_counter() - begun
        return logits

    def fresh_row(self) -> FeedRow:
        """Not timed."""
        return self.inner.fresh_row()

    def fresh_kv(self, tokens: list[int]) -> Tensor:
        """Not timed."""
        return self.inner.fresh_kv(tokens)


def run_bench(
    pair: Pair,
    prompts: list[list[int]],
    settings: BenchSettings,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[BenchRow]:
    """Measure every engine at every batch size.

    Args:
        pair: two transformers models.
        prompts: token ids, the same for all.
        settings: shared by all engines.
        progress: told (batch size, finished, all).

    Raises:
        InputError: the pair's models are not transformers models.
    """
    if not isinstance(pair.target, HuggingFaceLM) or not isinstance(pair.draft, HuggingFaceLM):
        raise InputError("the benchmark compares with transformers' own generation: it needs two transformers models")
    transformers.utils.logging.set_verbosity_error()
    rows = []
    for batch_size in settings.batch_sizes:
        runners = _runners(pair, prompts, batch_size, settings)
        samples: dict[str, list[Sample]] = {name: [] for name in runners}
        for repeat in range(-1, settings.repeats):
            for done, (name, run) in enumerate(runners.items(), start=1):
                sample = run()
                if repeat >= 0:
                    samples[name].append(sample)
                if progress:
                    total = len(runners) * (settings.repeats + 1)
                    progress(f"batch {batch_size}", (repeat + 1) * len(runners) + done, total)
        rows += [_row(name, batch_size, samples[name], samples[PLAIN]) for name in runners]
    return rows


def _runners(
    pair: Pair, prompts: list[list[int]], batch_size: int, settings: BenchSettings
) -> dict[str, Callable[[], Sample]]:
    runners: dict[str, Callable[[], Sample]] = {PLAIN: lambda: hf_generate(pair, prompts, batch_size, settings)}
    if batch_size == 1:
        runners[ASSISTED] = lambda: hf_generate(pair, prompts, 1, settings, assisted=True)
    plain = replace(settings, num_speculative_tokens=0, forced_lengths=())
    runners[BATCHED] = lambda: run_method(pair, prompts, "inplace", batch_size, plain)
    for method in expand_methods(list(settings.methods)):
        if method != "speculative" or batch_size == 1:
            runners[method] = lambda name=method: run_method(pair, prompts, name, batch_size, settings)  # type: ignore[misc]
    return runners


def run_method(pair: Pair, prompts: list[list[int]], method: str, batch_size: int, settings: BenchSettings) -> Sample:
    """Decode the prompts once by a method of ours."""
    target, draft = TimedLM(pair.target), TimedLM(pair.draft)
    result = generate(
        replace(pair, target=target, draft=draft),
        prompts,
        method=method,
        batch_size=batch_size,
        num_speculative_tokens=settings.num_speculative_tokens,
        max_new_tokens=settings.max_new_tokens,
        stop_token_ids=(),
        checks=settings.checks,
        acceptance="forced" if settings.forced_lengths else None,
        forced_lengths=settings.forced_lengths,
    )
    stats = result.stats
    in_rounds = max(0.0, target.forward_s + draft.forward_s - stats.stage_s["prefill"])
    return Sample(stats.wall_s, stats.num_generated, stats.num_rounds, stats.stage_s, in_rounds)


@torch.inference_mode()
def hf_generate(
    pair: Pair, prompts: list[list[int]], batch_size: int, settings: BenchSettings, *, assisted: bool = False
) -> Sample:
    """Decode the prompts once by transformers' own `generate`, in left-padded batches, optionally assisted."""
    assert isinstance(pair.target, HuggingFaceLM)
    assert isinstance(pair.draft, HuggingFaceLM)
    config = GenerationConfig(
        do_sample=False, max_new_tokens=settings.max_new_tokens, eos_token_id=None, pad_token_id=0, use_cache=True
    )
    extra = {"assistant_model": _assistant(pair.draft.model, settings.num_speculative_tokens)} if assisted else {}
    device = pair.device
    begun, tokens = time.perf_counter(), 0
    for start in range(0, len(prompts), batch_size):
        batch = prompts[start : start + batch_size]
        width = max(map(len, batch))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in batch], device=device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch], device=device)
        output = pair.target.model.generate(ids, attention_mask=mask, generation_config=config, **extra)
        tokens += (output.shape[1] - width) * len(batch)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return Sample(time.perf_counter() - begun, tokens)


def _assistant(draft: PreTrainedModel, num_speculative_tokens: int) -> PreTrainedModel:
    """The draft, told to propose a constant number of tokens whatever its confidence."""
    draft.generation_config.num_assistant_tokens = num_speculative_tokens
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    return draft


def _row(name: str, batch_size: int, samples: list[Sample], plain: list[Sample]) -> BenchRow:
    speeds = [s.tokens / s.seconds for s in samples]
    ratios = [speed / (p.tokens / p.seconds) for speed, p in zip(speeds, plain, strict=True)]
    shares, ms, outside = dict.fromkeys(ROUND_STAGES, 0.0), 0.0, 0.0
    if samples[0].stage_s is not None:
        totals = [sum((s.stage_s or {})[stage] for stage in ROUND_STAGES) for s in samples]
        ms = statistics.median(1e3 * t / s.rounds for t, s in zip(totals, samples, strict=True))
        outside = statistics.median(1 - s.forward_s / t for t, s in zip(totals, samples, strict=True))
        shares = {
            stage: statistics.median((s.stage_s or {})[stage] / t for t, s in zip(totals, samples, strict=True))
            for stage in ROUND_STAGES
        }
    return BenchRow(
        engine=name,
        batch_size=batch_size,
        tokens_per_s=statistics.median(speeds),
        tokens_per_s_min=min(speeds),
        tokens_per_s_max=max(speeds),
        ratio_to_hf_generate=statistics.median(ratios),
        ms_per_round=ms,
        share_outside_forward=outside,
        **{f"share_{stage}": share for stage, share in shares.items()},
    )


def as_rows(rows: list[BenchRow]) -> list[dict[str, Any]]:
    """JSON-ready."""
    return [asdict(row) for row in rows]
