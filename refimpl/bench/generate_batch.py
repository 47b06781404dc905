"""transformers' own continuous batching, the loop behind `generate_batch`, where the installed version can run it."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig

from refimpl.bench.engines import Bench, Sample, as_shipped
from refimpl.core.errors import InputError

PAGE_TOKENS = 256  # of transformers' pool; a row needs one more page while it crosses a border
TOKEN_BUDGET = 512  # tokens of a pass
PROBE = [1, 2, 3]


def runs_generate_batch(bench: Bench) -> bool:
    """Whether a short prompt comes through; whatever fails in another library counts as no."""
    try:
        return hf_generate_batch(bench, [PROBE], 1).tokens > 0
    except Exception:
        return False


def hf_generate_batch(bench: Bench, prompts: list[list[int]], batch_size: int) -> Sample:
    """Decode the prompts once, with up to so many requests in a pass.

    Timed from the first request to the last answer. A short request runs before, so that starting the loop and
    allocating its pool are left out, as they are for our engine.

    Raises:
        InputError: a request failed.
    """
    with _quiet(), as_shipped(bench), _manager(bench, prompts, batch_size) as manager:
        _answers(manager, [PROBE], 1)
        begun = time.perf_counter()
        outputs = _answers(manager, prompts, bench.settings.max_new_tokens)
        seconds = time.perf_counter() - begun
    return Sample(seconds, sum(map(len, outputs)), (), seconds, outputs=outputs)


def _manager(bench: Bench, prompts: list[list[int]], batch_size: int) -> Any:
    budget = bench.settings.max_new_tokens
    pages = -(-(max(map(len, prompts)) + budget) // PAGE_TOKENS) + 1
    pool = ContinuousBatchingConfig(
        num_blocks=pages * batch_size, max_batch_tokens=TOKEN_BUDGET, max_requests_per_batch=batch_size
    )
    config = GenerationConfig(do_sample=False, max_new_tokens=budget, eos_token_id=-1, pad_token_id=0)
    return bench.target.model.continuous_batching_context_manager(
        generation_config=config, continuous_batching_config=pool
    )


def _answers(manager: Any, prompts: list[list[int]], budget: int) -> tuple[tuple[int, ...], ...]:
    """Generated ids of each prompt, in order."""
    names = manager.add_requests(inputs=prompts, max_new_tokens=budget)
    found: dict[str, tuple[int, ...]] = {}
    while len(found) < len(names):
        result = manager.get_result(timeout=1)
        if result is None and not manager.is_running():
            raise InputError("transformers' continuous batching ended before its requests did")
        if result is not None and result.error is not None:
            raise InputError(f"transformers' continuous batching failed: {result.error}")
        if result is not None and result.is_finished():
            found[result.request_id] = tuple(result.generated_tokens)
    return tuple(found[name] for name in names)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the loop's own log, which a table would be lost in."""
    log = logging.getLogger("ContinuousBatchingLogger")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
