"""The kinds of lengths, arrivals, acceptance, cost and so on that a scenario may name, with their parameters."""

from typing import Any

from refimpl.core.values import MAX_SPECULATIVE_TOKENS
from simulator.settings.fields import (
    COUNT,
    COUNTS,
    DEVICES,
    MAX_TOKENS,
    NON_NEGATIVE,
    POSITIVE,
    PROBABILITIES,
    PROBABILITY,
    REPLICAS,
    SHARE,
    TEXT,
    TIMES,
    VARIATION,
    Kinds,
    Range,
)

LENGTHS: Kinds = {
    "fixed": {"tokens": COUNT},
    "uniform": {"low_tokens": COUNT, "high_tokens": COUNT},
    "geometric": {"mean_tokens": Range(1, open_low=True, most=MAX_TOKENS)},
    "lognormal": {"median_tokens": POSITIVE, "sigma": VARIATION, "max_tokens": (COUNT, None)},
    "values": {"tokens": COUNTS},
    "file": {"path": TEXT, "column": TEXT},
    "spec_bench": {"path": TEXT, "characters_per_token": (POSITIVE, 4.0)},
    "trace": {"path": TEXT},
}
COMMON: Kinds = {
    "none": {},
    "system_prompt": {"tokens": COUNT, "prompts": (COUNT, 1)},
    "sessions": {"sessions": COUNT, "turns": COUNT},
    "trace": {"path": TEXT},
}
ARRIVALS: Kinds = {
    "fixed": {"interval_s": POSITIVE},
    "poisson": {"rate_per_s": POSITIVE},
    "gamma": {"rate_per_s": POSITIVE, "cv": Range(1e-3, 1e3)},
    "weibull": {"rate_per_s": POSITIVE, "shape": Range(0.05, 100)},
    "on_off": {"rate_per_s": POSITIVE, "mean_on_s": POSITIVE, "mean_off_s": POSITIVE},
    "sinusoidal": {"rate_per_s": POSITIVE, "amplitude": PROBABILITY, "period_s": POSITIVE},
    "trace": {
        "path": TEXT,
        "format": (("auto", "plain", "azure", "burstgpt", "mooncake"), "auto"),
        "speedup": (POSITIVE, 1.0),
    },
    "replay": {"path": TEXT, "clock": (("seconds", "rounds"), "seconds"), "speedup": (POSITIVE, 1.0)},
}
DEFAULT_PROBABILITY = 0.7  # that a draft is right, where nothing says
ACCEPTANCE: Kinds = {
    "iid": {"probability": PROBABILITY},
    "mean_length": {"tokens": Range(1, MAX_SPECULATIVE_TOKENS + 1), "drafts": (COUNT, None)},
    "scaling": {"training_tokens": POSITIVE, "parameters": POSITIVE, "path": (TEXT, "scaling/tiny.json")},
    "profile": {"probabilities": PROBABILITIES},
    "beta": {"a": Range(1e-3, 1e9), "b": Range(1e-3, 1e9)},
    "markov": {"probability": PROBABILITY, "correlation": PROBABILITY},
    "bootstrap": {"path": TEXT, "resample": ((False, True), False)},
    "replay": {"path": TEXT},
}
CONFIDENCE: Kinds = {
    "drawn": {"information": (PROBABILITY, 0.3), "noise": (VARIATION, 0.0)},
    "trace": {"path": TEXT},
}
LOOKUP: Kinds = {
    "iid": {
        "found": PROBABILITY,
        "probability": PROBABILITY,
        "most_tokens": (COUNT, None),
        "host_s_per_row": (NON_NEGATIVE, 0.0),
    },
    "trace": {"path": TEXT, "host_s_per_row": (NON_NEGATIVE, 0.0)},
}
HEAD: Kinds = {"steps": {"step_s": (NON_NEGATIVE, 0.0), "step_s_per_row": (NON_NEGATIVE, 0.0)}}
COST: Kinds = {
    "table": {"calibration": TEXT, "outside": (("refuse", "extrapolate"), "refuse")},
    "linear": {
        "verify_base_s": POSITIVE,
        "verify_s_per_token": (NON_NEGATIVE, 0.0),
        "draft_base_s": (NON_NEGATIVE, 0.0),
        "draft_s_per_token": (NON_NEGATIVE, 0.0),
        "context_s_per_token": (NON_NEGATIVE, 0.0),
        "prefill_base_s": (NON_NEGATIVE, 0.0),
        "prefill_s_per_token": (NON_NEGATIVE, 0.0),
        "realign_base_s": (NON_NEGATIVE, 0.0),
        "realign_s_per_row": (NON_NEGATIVE, 0.0),
        "concat_base_s": (NON_NEGATIVE, 0.0),
        "split_base_s": (NON_NEGATIVE, 0.0),
        "move_bytes_per_s": (Range(0, open_low=True, infinite=True, least=1), float("inf")),
        "kv_bytes_per_token": (NON_NEGATIVE, 0.0),
        "state_bytes_per_row": (NON_NEGATIVE, 0.0),
        "host_base_s": (NON_NEGATIVE, 0.0),
        "host_s_per_row": (NON_NEGATIVE, 0.0),
        "noise_cv": (VARIATION, 0.0),
        "run_cv": (VARIATION, 0.0),
    },
    "roofline": {
        "device": TEXT,
        "target": TEXT,
        "draft": (TEXT, ""),
        "dtype": (("float16", "bfloat16", "float8"), "bfloat16"),
        "tensor_parallel": (DEVICES, 1),
        "layers": (("compiled", "kernels", "lean", "transformers"), "compiled"),
        "graphs": ((False, True), True),
        "eager_pass_s": (NON_NEGATIVE, 1.705e-3),
        "eager_layer_s": (NON_NEGATIVE, 7.04e-4),
        "eager_cv": (VARIATION, 0.1),
        "host_s": (NON_NEGATIVE, 0.0),
        "from_calibration": (TEXT, ""),
        "attention": (("own", "widest"), "own"),
    },
}
POOLS: Kinds = {
    "colocated": {},
    "disaggregated": {
        "prefill_replicas": REPLICAS,
        "bytes_per_s": POSITIVE,
        "latency_s": (NON_NEGATIVE, 0.0),
        "draft": (("transferred", "recomputed"), "transferred"),
    },
}
FAILURES: Kinds = {
    "none": {},
    "times": {"times_s": TIMES, "repair_s": (NON_NEGATIVE, 0.0)},
    "random": {"mean_between_s": POSITIVE, "repair_s": (NON_NEGATIVE, 0.0)},
}
STEPS: dict[str, Any] = {
    "most_replicas": REPLICAS,
    "least_replicas": (REPLICAS, 1),
    "every_s": (POSITIVE, 10.0),
    "delay_s": (NON_NEGATIVE, 60.0),
}
SCALING: Kinds = {"fixed": {}, "queue": {"requests": POSITIVE} | STEPS, "utilisation": {"target": SHARE} | STEPS}
KINDS = {  # setting -> its kinds
    "study.arrivals": ARRIVALS,
    "workload.prompt_tokens": LENGTHS,
    "workload.output_tokens": LENGTHS,
    "workload.common": COMMON,
    "acceptance": ACCEPTANCE,
    "confidence": CONFIDENCE,
    "lookup": LOOKUP,
    "head": HEAD,
    "cost": COST,
    "service.pools": POOLS,
    "service.failures": FAILURES,
    "service.scaling": SCALING,
}
