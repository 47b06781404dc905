"""Golden runs of the simulator: ten scenarios that together use every layout, scheduler and arrival process."""

from typing import Any

from golden_digest import digest, rounded

from simulator import Scenario, simulate

REPLICATIONS = 3
READABLE = ("tokens_per_s", "makespan_s", "rounds", "latency_p99_s", "grouping_rate", "kv_peak_bytes")
RUNS = "validation/cpu/tiny"
UNIFORM = {"kind": "uniform", "low_tokens": 8, "high_tokens": 120}
GEOMETRIC = {"kind": "geometric", "mean_tokens": 40}
TABLE = {"kind": "table", "calibration": "cpu/tiny", "outside": "extrapolate"}
LINEAR = {
    "kind": "linear", "verify_base_s": 0.025, "verify_s_per_token": 1e-4, "draft_base_s": 0.003,
    "context_s_per_token": 1e-6, "prefill_base_s": 0.01, "prefill_s_per_token": 1e-4, "realign_base_s": 0.004,
    "realign_s_per_row": 5e-4, "concat_base_s": 0.005, "split_base_s": 0.002, "move_bytes_per_s": 1e11,
    "kv_bytes_per_token": 5e5, "host_base_s": 1e-3, "host_s_per_row": 1e-4, "noise_cv": 0.05, "run_cv": 0.02,
}  # fmt: skip
PUBLISHED = {
    "switches.keep_bonus": False, "switches.draft_cache": False, "switches.discard_mixed_caches": True,
    "switches.copy_groups": True, "switches.k_policy": "batch_min", "switches.realign_read_s": 17e-6,
}  # fmt: skip

SCENARIOS: dict[str, dict[str, Any]] = {
    "eqspec offline": {
        "method": "eqspec", "study.num_requests": 60, "workload.prompt_tokens": UNIFORM, "cost": LINEAR,
        "workload.output_tokens": GEOMETRIC, "workload.sort_prompts": True,
    },
    "exspec as published": {
        "method": "exspec", "study.num_requests": 80, "engine.batch_size": 4, "engine.window_size": 48, "cost": LINEAR,
        "acceptance": {"kind": "beta", "a": 4.0, "b": 2.0}, "switches.group_key": "padded_length", **PUBLISHED,
    },
    "masked, measured costs, Poisson": {
        "method": "masked+fifo", "study": {"kind": "open", "num_requests": 120}, "engine.batch_size": 4,
        "study.arrivals": {"kind": "poisson", "rate_per_s": 6.0}, "workload.prompt_tokens": UNIFORM, "cost": TABLE,
        "workload.output_tokens": GEOMETRIC, "acceptance": {"kind": "markov", "probability": 0.6, "correlation": 0.3},
    },
    "rollback, closed": {
        "method": "rollback", "study": {"kind": "closed", "clients": 12, "duration_s": 90.0, "think_time_s": 0.5},
        "workload.output_tokens": GEOMETRIC, "acceptance": {"kind": "profile", "probabilities": [0.8, 0.6, 0.4]},
        "switches.zombies": False, "cost": LINEAR,
    },
    "inplace, replicas, K/V limit": {
        "method": "inplace", "study": {"kind": "open", "num_requests": 200}, "cost": LINEAR,
        "study.arrivals": {"kind": "gamma", "rate_per_s": 6.0, "cv": 2.5}, "workload.prompt_tokens": UNIFORM,
        "service": {"replicas": 3, "router": "least_loaded", "kv_capacity_bytes": 6e8, "slo_first_token_s": 2.0},
    },
    "aged groups, on and off": {
        "method": "realigned+grouped", "study": {"kind": "open", "num_requests": 150}, "engine.batch_size": 4,
        "study.arrivals": {"kind": "on_off", "rate_per_s": 9.0, "mean_on_s": 3.0, "mean_off_s": 4.0},
        "engine.aging_bound": 12, "cost": LINEAR,
        "service": {"replicas": 2, "router": "by_length"}, "workload.prompt_tokens": UNIFORM,
    },
    "masked groups, replayed": {
        "method": "masked+grouped", "study.num_requests": 40, "engine.batch_size": 4, "cost": TABLE,
        "workload.prompt_tokens": {"kind": "trace", "path": f"{RUNS}/exspec-b3-k5-w9-0.ndjson.gz"},
        "workload.output_tokens": {"kind": "trace", "path": f"{RUNS}/exspec-b3-k5-w9-0.ndjson.gz"},
        "acceptance": {"kind": "bootstrap", "path": f"{RUNS}/fit/acceptance.ndjson.gz", "resample": True},
    },
    "inplace, waits and load": {
        "method": "inplace+static", "study": {"kind": "open", "duration_s": 60.0}, "cost": LINEAR,
        "study.arrivals": {"kind": "sinusoidal", "rate_per_s": 5.0, "amplitude": 0.8, "period_s": 20.0},
        "switches": {"wait_for_rows": 4, "wait_at_most_s": 1.5},
        "engine.draft_budget": "by_load:4=3,7=1",
        "workload.output_tokens": {"kind": "lognormal", "median_tokens": 40, "sigma": 0.8, "max_tokens": 128},
    },
    "speculative, warmed up": {
        "method": "speculative", "study": {"kind": "open", "num_requests": 400, "warmup": "mser5"},
        "study.arrivals": {"kind": "weibull", "rate_per_s": 0.4, "shape": 0.7}, "workload.output_tokens": GEOMETRIC,
        "cost.kv_bytes_per_token": 5e5,
    },
    "rollback groups": {
        "method": "rollback+grouped", "study": {"kind": "open", "num_requests": 90},
        "study.arrivals": {"kind": "fixed", "interval_s": 0.25}, "workload.prompt_tokens": UNIFORM, "cost": LINEAR,
        "engine.batch_size": 3,
    },
}  # fmt: skip


def summary(scenario: Scenario) -> dict[str, Any]:
    """Readable means, the digest of every metric of every replication, and those of its requests and rounds."""
    results = simulate(scenario, REPLICATIONS)
    return {
        **{name: rounded(results[name]) for name in READABLE},
        "metrics": digest(results.metrics.to_dict(orient="list")),
        "requests": digest(results.frame("requests").to_dict(orient="list")),
        "timeline": digest(results.frame("rounds").to_dict(orient="list")),
        "extrapolated": digest(results.extrapolated),
    }


def simulator_cases() -> dict[str, dict[str, Any]]:
    """All cases by name."""
    base = Scenario(seed=3)
    scenarios = {name: base.but(**changes) for name, changes in SCENARIOS.items()}
    return {name: summary(scenario) for name, scenario in scenarios.items()}
