"""The keyword settings of `generate`, `stream` and `verify`, spelt out for editors and type checkers.

Meaning, default and range of each are documented at `DecodeConfig`, `SamplingConfig` and `DraftingConfig`.
"""

from collections.abc import Sequence as Seq
from typing import TypedDict

from refimpl.core.config import AcceptanceName, CheckLevel, SamplingConfig
from refimpl.core.drafting import DraftBudgetName, DrafterName, DraftingConfig, RankingScore
from refimpl.core.execution import ExecutionName


class _Common(TypedDict, total=False):
    num_speculative_tokens: int
    max_new_tokens: int
    window_size: int | None
    aging_bound: float | None
    acceptance: AcceptanceName | None
    forced_lengths: tuple[float, ...]
    sampling: SamplingConfig
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    drafting: DraftingConfig
    drafter: DrafterName
    draft_budget: DraftBudgetName
    drafts_by_load: Seq[tuple[int, int]]
    draft_capacity: int | None
    draft_score: RankingScore
    draft_costs: Seq[tuple[int, Seq[float]]]
    draft_threshold: float
    stop_token_ids: Seq[int] | None
    stop_strings: Seq[str]
    logprobs: int | None
    checks: CheckLevel | None
    compaction_threshold: float
    shape_stable: bool
    cuda_graphs: bool
    kv_memory_gib: float | None
    block_size: int
    prefix_sharing: bool
    token_budget: int | None
    joint_prefill: bool
    max_model_len: int | None
    execution: ExecutionName


class Settings(_Common, total=False):
    """Fields of `DecodeConfig`; those of its `SamplingConfig` and `DraftingConfig` can be given in place of these."""

    method: str
    batch_size: int


class VerifySettings(_Common, total=False):
    """`Settings` that all methods and batch sizes of a `verify` share."""

    max_prompt_tokens: int | None
