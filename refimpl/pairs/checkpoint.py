"""Settings of a checkpoint's generation config that change what transformers' `generate` gives.

What a setting does is asked of transformers: alone on a neutral, greedy config, does it bring a logits processor, or
another way of decoding? Processors that are functions of a row's text are applied here, and so are stop tokens. How
tokens are drawn (temperature, top-k, …) is for the caller to say. Anything else is named in a warning.
"""

import warnings
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from transformers import GenerationConfig, InfNanRemoveLogitsProcessor, LogitNormalization, PreTrainedModel
from transformers.generation import GenerationMode
from transformers.generation.logits_process import (
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from refimpl.core.errors import shown
from refimpl.core.processing import Processing

LEAVE_THE_ARGMAX = (InfNanRemoveLogitsProcessor, LogitNormalization)
KEEP_A_STATE = (SynthIDTextWatermarkLogitsProcessor, UnbatchedClassifierFreeGuidanceLogitsProcessor)
SAME_TOKENS = (GenerationMode.GREEDY_SEARCH, GenerationMode.ASSISTED_GENERATION)
OUTSIDE_OF_LOGITS = ("stop_strings", "max_time", "token_healing")
REPLACED = {  # by a request's own
    "logit_bias": {"sequence_bias"},
    "repetition_penalty": {"repetition_penalty"},
    "min_new_tokens": {"min_new_tokens", "min_length"},
    "bad_words_ids": {"bad_words_ids"},
}
BEFORE_PENALTIES = {"sequence_bias", "encoder_repetition_penalty"}


class GenerationConfigWarning(UserWarning):
    """The target's generation config changes what transformers' `generate` gives, in ways that are not applied here."""


class Checkpoint:
    """What a model's generation config does to the logits of its prompts.

    Args:
        model: the target.

    Attributes:
        applied: settings that change logits.
        unapplied: settings that change the tokens of ``model.generate`` in other ways, as ``name = value, …``.
    """

    def __init__(self, model: PreTrainedModel):
        config = model.generation_config
        given = [] if config is None else [name for name in config.to_diff_dict() if hasattr(config, name)]
        changes = {name: _change(model, name) for name in given}
        self._model = model
        self.applied = {name for name, change in changes.items() if change == "logits"}
        found = [name for name, change in changes.items() if change == "other"]
        self.unapplied = ", ".join(f"{name} = {shown(getattr(config, name))}" for name in found)
        if found:
            what = f"the target's generation config sets {self.unapplied}"
            message = f"{what}: not applied here, so transformers' generate differs"
            warnings.warn(message, GenerationConfigWarning, stacklevel=3)  # who calls `make_pair`

    def processing(self, own: Processing | None, prompt: list[int], max_new_tokens: int) -> Processing | None:
        """A prompt's own settings, and those of the checkpoint that they leave open."""
        own = own or Processing()
        replaced = {name for field in REPLACED if getattr(own, field) is not None for name in REPLACED[field]}
        names = self.applied - replaced
        if not names:
            return own
        if "repetition_penalty" in names and not names & BEFORE_PENALTIES:  # what is applied here comes first
            names -= {"repetition_penalty"}
            own = replace(own, repetition_penalty=float(self._model.generation_config.repetition_penalty))
        processors = _processors(self._model, names, prompt, max_new_tokens)
        return replace(own, logits_processors=(*(own.logits_processors or ()), *processors))


def _change(model: Any, name: str) -> str:
    """Whether one setting of a model's generation config changes greedy output: in logits, otherwise, or not at all."""
    if name in OUTSIDE_OF_LOGITS:
        return "other"
    try:
        processors = _processors(model, [name], [0], 1)
        mode = _trial(model, [name]).get_generation_mode()
    except Exception:
        return "other"
    if mode not in SAME_TOKENS or any(isinstance(each, KEEP_A_STATE) for each in processors):
        return "other"
    return "logits" if processors else ""


def _processors(model: Any, names: Collection[str], prompt: list[int], max_new_tokens: int) -> list[Any]:
    """What transformers makes of some settings, for a prompt; without those that leave the argmax."""
    trial = _trial(model, names)
    trial.max_length = len(prompt) + max_new_tokens
    ids = torch.tensor([prompt], device=model.device)
    found = model._get_logits_processor(trial, len(prompt), encoder_input_ids=ids, device=model.device)
    return [each for each in found if not isinstance(each, LEAVE_THE_ARGMAX)]


def _trial(model: Any, names: Collection[str]) -> GenerationConfig:
    """A greedy config that changes no logits, with what other settings build on: the ends, and the k of contrast."""
    given = model.generation_config
    trial = GenerationConfig(eos_token_id=given.eos_token_id)
    trial.top_k = given.top_k
    stops = given.eos_token_id
    trial._eos_token_tensor = None if stops is None else torch.tensor(stops, device=model.device).reshape(-1)
    for name in names:
        setattr(trial, name, getattr(given, name))
    trial.do_sample = False
    return trial
