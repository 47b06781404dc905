"""What axes and titles say: metrics and settings as people write them, with units."""

from matplotlib.axes import Axes

from refimpl.viz.style import new_axes
from simulator.service.metrics import QUANTILES

SPREADS = {
    "first_token": "time to first token",
    "per_token": "time per further token",
    "inter_token": "time between tokens",
    "latency": "latency",
    "service": "time from first round to finish",
}
METRICS = {
    "tokens_per_s": "tokens per second",
    "requests_per_s": "finished requests per second",
    "makespan_s": "time until the last round ends (s)",
    "completed": "finished requests",
    "censored": "unfinished requests",
    "cut_outputs": "outputs cut at the budget",
    "warmup_s": "warm-up left out (s)",
    "queueing_mean_s": "mean wait for the first round (s)",
    "fairness": "fairness (Jain's index)",
    "goodput_per_s": "requests per second within the limits",
    "slo_attainment": "share of requests within the limits",
    "cost_per_million_tokens": "cost of a million tokens",
    "tokens_per_joule": "tokens per joule",
    "rounds": "rounds",
    "tokens_per_round": "committed tokens per round",
    "drawn_tokens_per_round": "tokens drawn by the draft per round",
    "verified_tokens_per_round": "verified tokens per round",
    "verified_rectangle_per_round": "verified tokens per round, pads included",
    "occupancy": "share of rows in use",
    "grouping_rate": "share of grouped rounds",
    "busy_share": "share of time in rounds",
    "preemptions": "preempted requests",
    "cache_hit_rate": "prefix-hit share of tokens",
    "kv_peak_bytes": "peak K/V (bytes)",
    "kv_mean_bytes": "mean K/V (bytes)",
    "kv_allocated_bytes": "allocated K/V (bytes)",
    "prefill_share": "share of time in prefill",
    "draft_share": "share of time in drafting",
    "verify_share": "share of time in verification",
    "realign_share": "share of time in moving K/V",
    "host_share": "share of time on the host",
    "draft_acceptance_rate": "share of drafts accepted",
    "mean_acceptance_length": "mean acceptance length (tokens)",
    "longest_wait_rounds": "longest wait of a row (rounds)",
    "longest_gap_s": "longest pause of a request (s)",
} | {
    f"{name}_{key}_s": f"{label} of {what} (s)"
    for name, what in SPREADS.items()
    for key, label in {"mean": "mean", **{key: f"{key[1:]}th percentile" for key in QUANTILES}}.items()
}
UNITS = {"_per_s": "per second", "_s": "s", "_tokens": "tokens", "_bytes": "bytes", "_rounds": "rounds"}  # of settings
COUNTED = {
    "batch_size": "rows", "window_size": "sequences", "aging_bound": "rounds", "token_budget": "tokens per round",
    "block_size": "tokens", "num_blocks": "blocks", "num_speculative_tokens": "drafts per row and round",
}  # fmt: skip


def label_of(column: str) -> str:
    """A metric, also of a class, or a setting in words, with its unit; any other column as it is called."""
    if column in METRICS:
        return METRICS[column]
    if "." not in column:
        return column
    part, _, name = column.rpartition(".")
    if part in METRICS:
        return f"{METRICS[part]}, {name}"
    ending = next((each for each in UNITS if name.endswith(each)), "")
    unit = COUNTED.get(name, UNITS.get(ending, ""))
    words = name.removesuffix(ending) if name not in COUNTED else name
    words = f"{part.rpartition('.')[2]} {words}" if words in ("kind", "path", "probability") else words
    return f"{words.replace('_', ' ')} ({unit})" if unit else words.replace("_", " ")


def titled(axes: Axes | None, title: str, *size: float) -> Axes:
    """The given axes, which have a title or a caption elsewhere; else new ones with this title."""
    if axes is not None:
        return axes
    fresh = new_axes(*size)
    fresh.set_title(title[0].upper() + title[1:], fontsize=10)
    return fresh
