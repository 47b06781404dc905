"""Which class of transformers a configuration is loaded as."""

import copy
from typing import Any

import transformers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel


def causal_class(config: PretrainedConfig, trust_remote_code: bool = False) -> Any:
    """What to load a checkpoint with: `AutoModelForCausalLM`, or the class in ``architectures`` where that knows none.

    Models that also read images are in no mapping of causal ones, though they generate from text alone.

    Returns:
        None where neither knows a class.
    """
    remote = getattr(config, "auto_map", None) or {}
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or (trust_remote_code and "AutoModelForCausalLM" in remote):
        return AutoModelForCausalLM
    named = next(iter(config.architectures or ()), None)
    found = getattr(transformers, named, None) if isinstance(named, str) else None
    return found if isinstance(found, type) and issubclass(found, PreTrainedModel) else None


def build(config: PretrainedConfig, trust_remote_code: bool = False, **settings: Any) -> Any:
    """A model of a configuration, which is left as it is; `settings` go to transformers."""
    known, config = causal_class(config, trust_remote_code), copy.deepcopy(config)
    if known is AutoModelForCausalLM:
        return known.from_config(config, trust_remote_code=trust_remote_code, **settings)
    return known._from_config(config, **settings)
