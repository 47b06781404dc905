"""Settings of a checkpoint's generation config that change what transformers' `generate` gives, and are not applied.

What a setting does is asked of transformers: alone on a neutral, greedy config, does it bring a logits processor, or
another way of decoding? Stop tokens are applied; how tokens are drawn (temperature, top-k, …) is for the caller to say.
"""

import warnings
from typing import Any

import torch
from transformers import GenerationConfig, InfNanRemoveLogitsProcessor, LogitNormalization, PreTrainedModel
from transformers.generation import GenerationMode

from refimpl.core.errors import shown

LEAVE_THE_ARGMAX = (InfNanRemoveLogitsProcessor, LogitNormalization)
SAME_TOKENS = (GenerationMode.GREEDY_SEARCH, GenerationMode.ASSISTED_GENERATION)
OUTSIDE_OF_LOGITS = ("stop_strings", "max_time", "token_healing")


class GenerationConfigWarning(UserWarning):
    """The target's generation config changes what transformers' `generate` gives, in ways that are not applied here."""


def warn_of_unapplied(model: PreTrainedModel) -> str:
    """Warn of settings that change the tokens of ``model.generate``; they are returned as ``name = value, …``."""
    config = model.generation_config
    given = [] if config is None else config.to_diff_dict()
    found = [name for name in given if hasattr(config, name) and _changes_tokens(model, name)]
    settings = ", ".join(f"{name} = {shown(getattr(config, name))}" for name in found)
    if settings:
        message = f"the target's generation config sets {settings}: not applied here, so transformers' generate differs"
        warnings.warn(message, GenerationConfigWarning, stacklevel=3)  # who calls `make_pair`
    return settings


def _changes_tokens(model: Any, name: str) -> bool:
    """Whether one setting of a model's generation config changes greedy output; a setting that fails counts, too."""
    if name in OUTSIDE_OF_LOGITS:
        return True
    trial = _neutral(model.generation_config)
    setattr(trial, name, getattr(model.generation_config, name))
    trial.do_sample = False
    try:
        processors = model._get_logits_processor(trial, 1, encoder_input_ids=torch.ones(1, 1).long(), device="cpu")
    except Exception:
        return True
    changed = any(not isinstance(processor, LEAVE_THE_ARGMAX) for processor in processors)
    return changed or trial.get_generation_mode() not in SAME_TOKENS


def _neutral(given: GenerationConfig) -> GenerationConfig:
    """A greedy config that changes no logits, with what other settings build on: the ends, and the k of contrast."""
    neutral = GenerationConfig(eos_token_id=given.eos_token_id)
    neutral.top_k = given.top_k
    stops = given.eos_token_id
    neutral._eos_token_tensor = None if stops is None else torch.tensor(stops).reshape(-1)  # as `generate` sets it
    return neutral
