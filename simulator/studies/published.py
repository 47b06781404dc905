"""The published experiments as scenarios: the paper's setting, and the behaviours of its code as switches."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from refimpl.core.reading import read_mapping
from simulator.settings.folders import PUBLISHED
from simulator.settings.scenario import Scenario

CONSTANTS, LENGTHS = PUBLISHED / "constants.json", PUBLISHED / "spec_bench_lengths.json"
CHARACTERS_PER_TOKEN, MOST_PROMPT_TOKENS = 4.0, 1024
OVERHEAD_PROMPTS, WINDOW, BUDGET, NUM_DRAFTS = 100, 48, 128, 5
CAPTIONS, CAPTION_TOKENS, CAPTION_BUDGET, CAPTION_WINDOW = 100, 16, 50, 50
ONLINE_REQUESTS, SHUFFLE_SEED = 300, 0
FITTED_CV = 0.03  # how much the speed of a host differs between two runs on one machine
OLDEST_FIRST: dict[str, Any] = {  # changes to EXSPEC: the oldest rows run, whatever their lengths
    "engine.scheduler": "fifo", "engine.window_size": None, "engine.aging_bound": None,
    "switches.group_key": "length_and_lag", "switches.copy_groups": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Constants:
    """What the published setting leaves open.

    Attributes:
        acceptance_probability: that a draft is right.
        output_mean_tokens: of a geometric length before it is cut at the budget.
        eager_pass_s, eager_layer_s: seconds of the host per forward pass, and per layer of it.
        host_operation_s: seconds of one host read, or of launching one copy.
        caption_output_tokens: the same as `output_mean_tokens` for the prompts of 16 tokens; chosen so that their
            grouping rates fit.
    """

    acceptance_probability: float
    output_mean_tokens: float
    eager_pass_s: float
    eager_layer_s: float
    host_operation_s: float
    caption_output_tokens: float


def load_constants() -> Constants:
    """The committed constants."""
    data = read_mapping(CONSTANTS)
    return Constants(**data["fitted"], **data["chosen"])


@lru_cache(maxsize=1)
def committed_lengths() -> tuple[int, ...]:
    """Lengths in tokens of the prompts of Spec-Bench, from a committed summary."""
    return prompt_tokens(json.loads(LENGTHS.read_text())["characters"])


def prompt_tokens(characters: list[int]) -> tuple[int, ...]:
    """Token counts by characters, cut as the paper does."""
    return tuple(min(MOST_PROMPT_TOKENS, max(1, round(count / CHARACTERS_PER_TOKEN))) for count in characters)


def read_lengths(path: str | Path) -> tuple[int, ...]:
    """The same from Spec-Bench's own file."""
    from simulator.service.workload import first_turns

    return prompt_tokens([len(turn) for turn in first_turns(Path(path))])


def machine(constants: Constants, *, graphs: bool = False) -> dict[str, Any]:
    """Cost of the paper's Vicuna pair on an A100, driven by transformers or by recorded graphs."""
    host = {"eager_pass_s": constants.eager_pass_s, "eager_layer_s": constants.eager_layer_s, "eager_cv": FITTED_CV}
    pair = {"device": "a100-80", "target": "vicuna-7b", "draft": "vicuna-68m", "dtype": "float16"}
    return {"kind": "roofline", **pair, **({"graphs": True} if graphs else {"graphs": False, **host})}


def overhead_scenario(method: str, batch_size: int, constants: Constants, lengths: tuple[int, ...]) -> Scenario:
    """Prompts of Spec-Bench, decoded by the published ``eqspec`` or ``exspec``."""
    prompts = {"kind": "values", "tokens": list(lengths)}
    outputs = {"kind": "geometric", "mean_tokens": constants.output_mean_tokens}
    scenario = _scenario(method, batch_size, constants, (prompts, outputs), WINDOW, BUDGET)
    return scenario.but({"study.num_requests": len(lengths)})


def online_scenario(batch_size: int, rate_per_s: float, constants: Constants, method: str = "exspec") -> Scenario:
    """A published method on requests that arrive: Poisson, with the prompts of Spec-Bench in shuffled order."""
    lengths = list(committed_lengths())
    Random(SHUFFLE_SEED).shuffle(lengths)
    arrivals = {"kind": "poisson", "rate_per_s": rate_per_s}
    scenario = overhead_scenario(method, batch_size, constants, tuple(lengths))
    return scenario.but({"study.kind": "open", "study.num_requests": ONLINE_REQUESTS, "study.arrivals": arrivals})


def caption_scenario(batch_size: int, constants: Constants) -> Scenario:
    """The grouping experiment: captions of 16 tokens, grouped by length."""
    prompts = {"kind": "fixed", "tokens": CAPTION_TOKENS}
    outputs = {"kind": "geometric", "mean_tokens": constants.caption_output_tokens}
    return _scenario("exspec", batch_size, constants, (prompts, outputs), CAPTION_WINDOW, CAPTION_BUDGET)


def _scenario(
    method: str, batch_size: int, constants: Constants, workload: tuple[Any, Any], window: int, budget: int
) -> Scenario:
    grouped = method == "exspec"
    engine = {
        "method": method,
        "batch_size": batch_size,
        "num_speculative_tokens": NUM_DRAFTS,
        "max_new_tokens": budget,
    }
    pool = {"window_size": max(window, batch_size), "aging_bound": float("inf")}
    operation = "copy_launch_s" if grouped else "realign_read_s"
    switches = {"keep_bonus": False, "draft_cache": False, "k_policy": "batch_min", "discard_mixed_caches": True}
    switches |= {"pad_prompts": True, operation: constants.host_operation_s}
    return Scenario(
        name=f"published {method}, batch {batch_size}",
        study={"num_requests": CAPTIONS},  # type: ignore[arg-type]
        workload={"prompt_tokens": workload[0], "output_tokens": workload[1]},  # type: ignore[arg-type]
        engine=engine | (pool if grouped else {}),  # type: ignore[arg-type]
        switches=switches | ({"copy_groups": True, "group_key": "padded_length"} if grouped else {}),  # type: ignore[arg-type]
        acceptance={"kind": "iid", "probability": constants.acceptance_probability},  # type: ignore[arg-type]
        cost=machine(constants),  # type: ignore[arg-type]
    )
