"""`generate` and `stream`: prompts in, results out."""

from collections.abc import Sequence as Seq
from typing import Unpack

from refimpl.core.config import make_config
from refimpl.core.errors import InputError, require, shown
from refimpl.core.keywords import Settings
from refimpl.models.adapter import Pair
from refimpl.oracle.one_by_one import ProgressCallback, decode_one_by_one
from refimpl.requests import Prompt, SequenceMaker, listed
from refimpl.results import Result
from refimpl.streaming import Prompts, Stream


def generate(
    pair: Pair,
    prompts: Seq[Prompt],
    *,
    max_prompt_tokens: int | None = None,
    progress: ProgressCallback | None = None,
    **settings: Unpack[Settings],
) -> Result:
    """Decode prompts to their end.

    Args:
        pair: from `load_pair`.
        prompts: texts, lists of token ids, or Requests, mixed as you like.
        max_prompt_tokens: keep only the last so many tokens of each prompt; None keeps all.
        progress: called with (finished, all) after every round.
        **settings: fields of DecodeConfig and SamplingConfig, for example ``batch_size=8``.

    Returns:
        Results in input order.

    Raises:
        InputError: impossible settings or prompts.
        InvariantViolation: the engine's state broke an invariant that `checks` covers.
    """
    config = make_config(**settings)
    require(progress is None or callable(progress), f"progress must be a function, not {shown(progress)}")
    if config.resolved_method.layout is None:
        return decode_one_by_one(pair, SequenceMaker(pair, config, max_prompt_tokens).make(prompts), config, progress)
    run = Stream(pair, listed(prompts), config, max_prompt_tokens)
    while not run.done:
        run.run_one_round()
        if progress:
            progress(run.num_finished, run.num_sequences)
    return run.result()


def stream(
    pair: Pair, prompts: Prompts, *, max_prompt_tokens: int | None = None, **settings: Unpack[Settings]
) -> Stream:
    """Decode prompts, handing out tokens as rounds commit them; see `generate` for the other arguments.

    Prompts come at the `arrival_s` of their Request. With `max_model_len` they may also come by `Stream.submit`, or
    from an iterator, which is asked for the next one between rounds while less than a window waits.

    Raises:
        InputError: impossible settings or prompts; `autoregressive` has no rounds to stream.
    """
    config = make_config(**settings)
    if config.resolved_method.layout is None:
        raise InputError(f"{config.method} has no rounds to stream: choose another method, or call generate")
    return Stream(pair, prompts, config, max_prompt_tokens)
