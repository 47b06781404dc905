"""Reference engine for batch speculative decoding: exact, heavily checked, several strategies for ragged batches.

The public names are loaded on first use, so `import refimpl.scheduling` loads no tensor library. They are named twice:
as imports for type checkers and editors, by module for the loading.
"""

import importlib
from typing import TYPE_CHECKING, Any

_NAMES = {
    "refimpl.core.config": ("DecodeConfig", "SamplingConfig"),
    "refimpl.judging.equivalence": ("Comparison", "Divergence", "MethodReport", "VerifyReport", "verify"),
    "refimpl.core.errors": ("InputError",),
    "refimpl.core.invariants": ("InvariantViolation",),
    "refimpl.generation": ("generate", "stream"),
    "refimpl.models.adapter": ("Pair",),
    "refimpl.planning": ("MemoryPlan", "plan_memory"),
    "refimpl.pairs": ("GenerationConfigWarning", "VocabularyWarning", "load_pair", "make_pair"),
    "refimpl.prompts": ("read_prompts",),
    "refimpl.core.records": ("RowOutcome", "TokenLogprobs"),
    "refimpl.core.request": ("Request",),
    "refimpl.requests": ("Prompt",),
    "refimpl.results": ("GeneratedSequence", "Result"),
    "refimpl.core.keywords": ("Settings", "VerifySettings"),
    "refimpl.streaming": ("Stream", "TokenEvent"),
    "refimpl.core.stats": ("AcceptanceCollapseWarning", "AcceptanceStats", "RunStats"),
    "refimpl.judging.tie_or_bug": ("Judgement", "RowJudgement", "judge_method", "judge_outputs"),
    "refimpl.decoding.processors": ("ThinkingBudget",),
    "refimpl.decoding.trace": ("RoundRecord",),
    "refimpl.decoding.dry_run": ("Footprint",),
    "refimpl.viz.watch": ("WatchedRound", "watch"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)
__version__ = "0.2.0"

if TYPE_CHECKING:
    from refimpl.core.config import DecodeConfig as DecodeConfig
    from refimpl.core.config import SamplingConfig as SamplingConfig
    from refimpl.core.errors import InputError as InputError
    from refimpl.core.invariants import InvariantViolation as InvariantViolation
    from refimpl.core.keywords import Settings as Settings
    from refimpl.core.keywords import VerifySettings as VerifySettings
    from refimpl.core.records import RowOutcome as RowOutcome
    from refimpl.core.records import TokenLogprobs as TokenLogprobs
    from refimpl.core.request import Request as Request
    from refimpl.core.stats import AcceptanceCollapseWarning as AcceptanceCollapseWarning
    from refimpl.core.stats import AcceptanceStats as AcceptanceStats
    from refimpl.core.stats import RunStats as RunStats
    from refimpl.decoding.dry_run import Footprint as Footprint
    from refimpl.decoding.processors import ThinkingBudget as ThinkingBudget
    from refimpl.decoding.trace import RoundRecord as RoundRecord
    from refimpl.generation import generate as generate
    from refimpl.generation import stream as stream
    from refimpl.judging.equivalence import Comparison as Comparison
    from refimpl.judging.equivalence import Divergence as Divergence
    from refimpl.judging.equivalence import MethodReport as MethodReport
    from refimpl.judging.equivalence import VerifyReport as VerifyReport
    from refimpl.judging.equivalence import verify as verify
    from refimpl.judging.tie_or_bug import Judgement as Judgement
    from refimpl.judging.tie_or_bug import RowJudgement as RowJudgement
    from refimpl.judging.tie_or_bug import judge_method as judge_method
    from refimpl.judging.tie_or_bug import judge_outputs as judge_outputs
    from refimpl.models.adapter import Pair as Pair
    from refimpl.pairs import GenerationConfigWarning as GenerationConfigWarning
    from refimpl.pairs import VocabularyWarning as VocabularyWarning
    from refimpl.pairs import load_pair as load_pair
    from refimpl.pairs import make_pair as make_pair
    from refimpl.planning import MemoryPlan as MemoryPlan
    from refimpl.planning import plan_memory as plan_memory
    from refimpl.prompts import read_prompts as read_prompts
    from refimpl.requests import Prompt as Prompt
    from refimpl.results import GeneratedSequence as GeneratedSequence
    from refimpl.results import Result as Result
    from refimpl.streaming import Stream as Stream
    from refimpl.streaming import TokenEvent as TokenEvent
    from refimpl.viz.watch import WatchedRound as WatchedRound
    from refimpl.viz.watch import watch as watch
else:  # unseen by type checkers, which would take any name for granted

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
