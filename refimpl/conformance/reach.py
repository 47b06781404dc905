"""How far cases went, and what they therefore say nothing about."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from refimpl.conformance.cases import EngineCase
from refimpl.conformance.protocol import EngineSettings

OUTSIDE = "stop strings, other penalties than for repetition, grammars, top-k and top-p"  # of the protocol


@dataclass(frozen=True)
class Reach:
    """The most that was asked for in cases which were answered and right; zeros where there is none.

    Attributes:
        prompt_tokens, new_tokens, num_drafts: of one row; drafts a round.
        rows: decoded together.
        last_round: of the service in which a prompt came.
        temperatures: in order.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    num_drafts: int = 0
    rows: int = 0
    last_round: int = 0
    temperatures: tuple[float, ...] = ()


def reach_of(cases: Iterable[EngineCase], bounded: Callable[[EngineSettings], EngineSettings]) -> Reach:
    """How far cases go; `bounded` gives the settings that the engine was asked with."""
    asked = [(case.prompts, bounded(case.settings)) for case in cases]
    if not asked:
        return Reach()
    settings = [own for _, own in asked]
    return Reach(
        max(len(prompt) for prompts, _ in asked for prompt in prompts),
        max(own.max_new_tokens for own in settings),
        max(own.num_speculative_tokens for own in settings),
        max(min(len(prompts), own.batch_size) for prompts, own in asked),
        max(max(own.submit_at, default=0) for own in settings),
        tuple(sorted({own.temperature for own in settings})),
    )


def _beyond_greedy(reach: Reach) -> str:
    sizes = f"batches over {reach.rows} rows, outputs over {reach.new_tokens} tokens"
    return f"prompts over {reach.prompt_tokens} tokens, {sizes}, more than {reach.num_drafts} drafts a round"


def _beyond_law(reach: Reach) -> str:
    low, high = reach.temperatures[0], reach.temperatures[-1]
    outside = f"outside {low:g} to {high:g}" if low < high else f"other than {low:g}"
    at = f"after {reach.prompt_tokens} tokens of prompt and {reach.new_tokens} new ones"
    return f"the law of samples at temperatures {outside}, {at}, with more than {reach.num_drafts} drafts a round"


def _beyond_service(reach: Reach) -> str:
    return f"prompts that come after round {reach.last_round} of a service"


BEYOND: dict[str, Callable[[Reach], str]] = {  # by the property whose cases go furthest
    "equals_reference": _beyond_greedy,
    "samples_follow_the_law": _beyond_law,
    "serving_equals_reference": _beyond_service,
}
