"""Each setting that needs others beside it is tried in scenarios of every kind."""

from functools import cache
from itertools import product

import pytest

from refimpl.core.config import LAYOUTS, SCHEDULERS
from refimpl.core.errors import InputError
from simulator.service.simulation import simulate_once
from simulator.settings.scenario import Scenario
from simulator.studies.attribution import attribute

BASE = Scenario(
    study={"kind": "open", "num_requests": 16, "arrivals": {"kind": "gamma", "rate_per_s": 12.0, "cv": 2.0}},
    workload={
        "prompt_tokens": {"kind": "values", "tokens": [24, 24, 25, 24, 27, 31]},
        "output_tokens": {"kind": "geometric", "mean_tokens": 14},
        "common": {"kind": "system_prompt", "tokens": 20},
    },
    engine={"batch_size": 3, "num_speculative_tokens": 3, "max_new_tokens": 16},
    acceptance={"kind": "beta", "a": 2.0, "b": 2.0},
    cost={
        "kind": "linear", "verify_base_s": 0.25, "verify_s_per_token": 0.01, "draft_base_s": 0.03,
        "draft_s_per_token": 0.001, "context_s_per_token": 1e-5, "prefill_base_s": 0.1, "prefill_s_per_token": 0.01,
        "realign_base_s": 0.04, "realign_s_per_row": 0.005, "concat_base_s": 0.05, "split_base_s": 0.02,
        "host_base_s": 0.01, "kv_bytes_per_token": 1000.0,
    },
    noise=False,
)  # fmt: skip
PLACES = [
    {"engine.layout": layout, "engine.scheduler": scheduler, "study.kind": kind}
    for layout, scheduler, kind in product(LAYOUTS, SCHEDULERS, ("open", "offline"))
]
TRIED = {  # setting -> another value than its default
    "engine.window_size": 5, "engine.aging_bound": 1, "engine.compaction_threshold": 0.02, "engine.block_size": 4,
    "engine.num_blocks": 6, "engine.prefix_sharing": False, "engine.token_budget": 12, "engine.contention": 1.0,
    "switches.refill": False, "switches.zombies": False,
    "switches.k_policy": "batch_min", "switches.wait_for_rows": 3,
    "switches.wait_at_most_s": 0.001, "switches.keep_bonus": False, "switches.draft_cache": False,
    "switches.group_key": "padded_length",
    "switches.pad_prompts": True, "switches.discard_mixed_caches": True, "switches.copy_groups": True,
    "switches.realign_read_s": 1e-3, "switches.copy_launch_s": 1e-3, "switches.realign_layers": 7,
    "switches.pad_ends": True, "switches.free_realign": True, "service.router": "least_loaded",
    "service.pools": {"kind": "disaggregated", "prefill_replicas": 1, "bytes_per_s": 1e6},
    "service.failures": {"kind": "times", "times_s": [0.9]},
    "service.scaling": {"kind": "queue", "requests": 2, "most_replicas": 3, "every_s": 0.2, "delay_s": 0.1},
    "service.kv_capacity_bytes": 1.5e5, "workload.sort_prompts": True, "engine.draft_budget": "confidence",
    "confidence": {"kind": "drawn", "information": 1.0},
    "engine.max_new_tokens": 9, "cost.eager_pass_s": 0.5, "cost.eager_layer_s": 0.1, "cost.eager_cv": 0.7,
    "cost.host_s": 0.2, "cost.attention": "widest",
    "lookup": {"kind": "iid", "found": 0.9, "probability": 0.5}, "head": {"kind": "steps", "step_s": 1.0},
}  # fmt: skip
VICUNA = {"kind": "roofline", "device": "h200", "target": "vicuna-7b", "draft": "vicuna-68m"}
EAGER, RECORDED = {"noise": True, "cost": VICUNA | {"graphs": False}}, {"noise": True, "cost": VICUNA}
MEASURED = {"cost": VICUNA | {"from_calibration": "nvidia-h200/vicuna"}}
TRACE = "validation/cpu/tiny/exspec-b3-k5-w9-0.ndjson.gz"
ALIKE = {
    "acceptance": {"kind": "iid", "probability": 1.0}, "workload.prompt_tokens": {"kind": "fixed", "tokens": 24},
}  # fmt: skip
BESIDE = {  # setting -> others that it may need; several of them in a tuple
    "engine.max_new_tokens": {"workload.output_tokens": {"kind": "trace", "path": TRACE}},
    "cost.eager_pass_s": (EAGER, RECORDED),
    "cost.eager_layer_s": (EAGER, RECORDED),
    "cost.eager_cv": (EAGER, RECORDED),
    "cost.host_s": (RECORDED, MEASURED),
    "cost.attention": (RECORDED, MEASURED, RECORDED | {"engine.cuda_graphs": True}),
    "service.router": {"service.replicas": 2},
    "service.kv_capacity_bytes": {"engine.num_blocks": 40},
    "engine.block_size": {"engine.num_blocks": 40},
    "engine.prefix_sharing": {"engine.num_blocks": 40},
    "engine.contention": {"engine.execution": "overlapped"},
    "engine.draft_budget": {"engine.num_speculative_tokens": 0},
    "switches.k_policy": {"engine.num_speculative_tokens": 0},
    "switches.keep_bonus": {"engine.num_speculative_tokens": 0},
    "switches.draft_cache": {"engine.num_speculative_tokens": 0},
    "confidence": {"engine.draft_budget": "confidence"},
    "lookup": {"engine.drafter": "ngram"},
    "head": {"engine.drafter": "head"},
    "switches.wait_at_most_s": {"switches.wait_for_rows": 3},
    "switches.realign_layers": {"switches.copy_launch_s": 1e-3},
    "switches.free_realign": ({"switches.copy_launch_s": 1e-3}, ALIKE | {"switches.copy_groups": True}),
    "switches.copy_groups": ALIKE,
}


@cache
def rounds_of(made):
    """What was simulated; the error where a request does not fit into the memory for K/V."""
    try:
        return simulate_once(made).log.rounds
    except InputError as error:
        if "holds" not in str(error):
            raise
        return str(error)


def accepted(case):
    try:
        return BASE.but(case) is not None
    except InputError:
        return False


@pytest.mark.parametrize("path", TRIED)
def test_every_setting_changes_what_is_simulated(path):
    """With some layout, scheduler and kind of study, beside the settings that it needs."""
    others = BESIDE.get(path, ())
    besides = [{}, *(others if isinstance(others, tuple) else (others,))]
    cases = [place | beside for place in PLACES for beside in besides]
    assert any(
        rounds_of(BASE.but({**case, path: TRIED[path]})) != rounds_of(BASE.but(case))
        for case in cases
        if accepted(case) and accepted({**case, path: TRIED[path]})
    )


def test_a_mixture_takes_what_has_an_effect_in_it():
    """EQSPEC to grouped rounds that copy: the copies alone are a factor that does nothing to a static batch."""
    static = BASE.but(method="eqspec")
    grouped = BASE.but({"engine.window_size": 9, "switches.copy_groups": True}, method="exspec")
    found = attribute(static, grouped, 2)
    assert {"refill", "grouping", "alignment cost"} <= set(found.table.index)
