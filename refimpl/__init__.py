"""Reference engine for batch speculative decoding: exact, heavily checked, several strategies for ragged batches.

The public names are loaded on first use, so `import refimpl.scheduling` loads no tensor library. They are named twice:
as imports for type checkers and editors, by module for the loading.
"""

import importlib
from typing import TYPE_CHECKING, Any

_NAMES = {
    "config": ("DecodeConfig", "Request", "SamplingConfig"),
    "equivalence": ("Comparison", "Divergence", "MethodReport", "VerifyReport", "verify"),
    "errors": ("InputError", "InvariantViolation"),
    "generation": ("Stream", "TokenEvent", "generate", "stream"),
    "model": ("Pair",),
    "pairs": ("VocabularyWarning", "load_pair", "make_pair"),
    "prompts": ("read_prompts",),
    "records": ("RowOutcome", "TokenLogprobs"),
    "requests": ("Prompt",),
    "results": ("GeneratedSequence", "Result"),
    "settings": ("Settings", "VerifySettings"),
    "stats": ("AcceptanceCollapseWarning", "AcceptanceStats", "RunStats"),
    "tie_or_bug": ("Judgement", "RowJudgement", "judge_method", "judge_outputs"),
    "trace": ("RoundRecord",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)
__version__ = "0.1.0"

if TYPE_CHECKING:
    from refimpl.config import DecodeConfig as DecodeConfig
    from refimpl.config import Request as Request
    from refimpl.config import SamplingConfig as SamplingConfig
    from refimpl.equivalence import Comparison as Comparison
    from refimpl.equivalence import Divergence as Divergence
    from refimpl.equivalence import MethodReport as MethodReport
    from refimpl.equivalence import VerifyReport as VerifyReport
    from refimpl.equivalence import verify as verify
    from refimpl.errors import InputError as InputError
    from refimpl.errors import InvariantViolation as InvariantViolation
    from refimpl.generation import Stream as Stream
    from refimpl.generation import TokenEvent as TokenEvent
    from refimpl.generation import generate as generate
    from refimpl.generation import stream as stream
    from refimpl.model import Pair as Pair
    from refimpl.pairs import VocabularyWarning as VocabularyWarning
    from refimpl.pairs import load_pair as load_pair
    from refimpl.pairs import make_pair as make_pair
    from refimpl.prompts import read_prompts as read_prompts
    from refimpl.records import RowOutcome as RowOutcome
    from refimpl.records import TokenLogprobs as TokenLogprobs
    from refimpl.requests import Prompt as Prompt
    from refimpl.results import GeneratedSequence as GeneratedSequence
    from refimpl.results import Result as Result
    from refimpl.settings import Settings as Settings
    from refimpl.settings import VerifySettings as VerifySettings
    from refimpl.stats import AcceptanceCollapseWarning as AcceptanceCollapseWarning
    from refimpl.stats import AcceptanceStats as AcceptanceStats
    from refimpl.stats import RunStats as RunStats
    from refimpl.tie_or_bug import Judgement as Judgement
    from refimpl.tie_or_bug import RowJudgement as RowJudgement
    from refimpl.tie_or_bug import judge_method as judge_method
    from refimpl.tie_or_bug import judge_outputs as judge_outputs
    from refimpl.trace import RoundRecord as RoundRecord
else:  # unseen by type checkers, which would take any name for granted

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
