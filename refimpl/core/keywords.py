"""The keyword settings of `generate`, `stream` and `verify`, written by tools/settings.py.

Meaning, default and range of each stand in docs/settings.md, and at `DecodeConfig` and `SamplingConfig`.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict

from refimpl.core.config import SamplingConfig


class _Common(TypedDict, total=False):
    num_speculative_tokens: int
    drafter: Literal["model", "ngram", "suffix", "hybrid", "head"]
    draft_budget: str
    window_size: int | None
    aging_bound: float | None
    token_budget: int | None
    joint_prefill: bool
    execution: Literal["serial", "overlapped"]
    cuda_graphs: bool
    block_size: int
    prefix_sharing: bool
    compaction_threshold: float
    max_new_tokens: int
    acceptance: str | None
    sampling: SamplingConfig
    stop_token_ids: Sequence[int] | None
    stop_strings: Sequence[str]
    logprobs: int | None
    checks: Literal["off", "host", "device", "oracle"] | None
    shape_stable: bool
    kv_memory_gib: float | None
    max_model_len: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


class Settings(_Common, total=False):
    """Fields of `DecodeConfig`; those of its `SamplingConfig` can be given in place of `sampling`."""

    method: str
    batch_size: int


class VerifySettings(_Common, total=False):
    """`Settings` that all methods and batch sizes of a `verify` share."""

    max_prompt_tokens: int | None
