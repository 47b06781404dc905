"""What docs/reproduction.md says about requests that arrive: latency by scheduler, and by who is served next."""

from typing import Any

from pages import line_of, markdown_table

PERCENTILES = ("p50", "p90", "p99")


def arrivals(data: dict[str, Any]) -> str:
    """Latency by scheduler."""
    heads = ["batch, requests/s, scheduler", "busy", "P50 s", "P90 s", "P99 s", "longest gap s", "prefill %"]
    rows = [
        [
            f"{line['batch_size']}, {line['rate_per_s']:g}, {line['scheduler']}",
            f"{100 * line['busy_share']:.0f} %",
            *(f"{line[f'latency_{name}_s']:.1f}" for name in PERCENTILES),
            f"{line['longest_gap_s']:.1f}",
            f"{100 * line['prefill_share']:.0f}",
        ]
        for line in data["online"]
    ]

    def found(size: int, rate: float, scheduler: str) -> dict[str, Any]:
        lines = [line for line in data["online"] if line["scheduler"].startswith(scheduler)]
        return line_of(lines, batch_size=size, rate_per_s=rate)

    names = "EXSPEC as", "with aging", "oldest", "EXSPEC that"
    starved, aged, oldest, full = (found(2, 1.2, name) for name in names)
    rare = found(4, 1.65, "EXSPEC as")
    dropped, kept = (found(8, 1.8, name) for name in ("EXSPEC as", "EXSPEC that"))
    static, refilled = (found(8, 1.2, name) for name in ("EQSPEC as", "EXSPEC as"))
    unmixed = found(8, 1.8, "EQSPEC as")
    return f"""## When requests arrive

Poisson arrivals of shuffled Spec-Bench prompts. The *longest gap* is the longest time that a request waits between two of its
rounds.

{markdown_table(heads, rows)}
- Groups starve a request where full ones are frequent. At batch 2 a request waits up to {starved["longest_gap_s"]:.0f} s between two
  rounds, at batch 4 up to {rare["longest_gap_s"]:.0f} s; at batch 8 full groups are too rare to pass anybody over. Aging after 16 rounds
  makes the {starved["longest_gap_s"]:.0f} s {aged["longest_gap_s"]:.1f} s, and changes the 99th percentile of latency from {starved["latency_p99_s"]:.1f} s to {aged["latency_p99_s"]:.1f} s.
- From arrival to finish, the tail does not come from the choice of rows: the 99th percentile of EXSPEC at batch 2 is {starved["latency_p99_s"]:.0f} s,
  that of the oldest rows first {oldest["latency_p99_s"]:.0f} s. From the first round to finish it does, see [below](#a-backlog).
- At batch 2 the server is simply overloaded: with caches kept it is busy for {100 * full["busy_share"]:.0f} % of the time, and the 99th percentile
  is still {full["latency_p99_s"]:.0f} s.
- At batch 4 and 8 the tail comes from dropped caches. Nearly every arrival makes a mixed batch, and all of its rows are prefilled
  again: at batch 8 and {dropped["rate_per_s"]:g} requests/s the 99th percentile is {dropped["latency_p99_s"]:.0f} s, and {kept["latency_p99_s"]:.1f} s if caches are kept.
- EQSPEC takes new requests only when its whole batch has finished: at batch 8 and {static["rate_per_s"]:g} requests/s its median is {static["latency_p50_s"]:.1f} s, that of EXSPEC
  {refilled["latency_p50_s"]:.1f} s. But it never mixes: at {unmixed["rate_per_s"]:g} requests/s its 99th percentile is {unmixed["latency_p99_s"]:.0f} s, that of EXSPEC {dropped["latency_p99_s"]:.0f} s.

{backlogs(data)}
{admissions(data)}"""


def backlogs(data: dict[str, Any]) -> str:
    """Time from first round to finish where all requests wait at the start."""
    rows = [
        [
            f"{line['batch_size']}, {line['scheduler']}",
            *(latencies(line, name) for name in ("service", "latency")),
        ]
        for line in data["backlog"]
    ]
    grouped, aged, oldest = (
        line_of(data["backlog"], batch_size=2, scheduler=name)
        for name in ("EXSPEC as published", "with aging after 16 rounds", "oldest first, no groups")
    )
    heads = ["batch, scheduler", "first round to finish", "arrival to finish"]
    times = grouped["service_p90_s"] / oldest["service_p90_s"]
    return f"""### A backlog

The 100 prompts of the logs all wait at the start; P50 / P90 / P99 in seconds.

{markdown_table(heads, rows)}
At batch 2 full groups starve rows that have begun: 10 % of the requests take longer than {grouped["service_p90_s"]:.0f} s from their first round to
their last, {times:.0f} times as long as with the oldest rows first. Aging after 16 rounds leaves {aged["service_p90_s"] / oldest["service_p90_s"]:.0f} times. From arrival to finish the
schedulers look alike, because the wait for the first round is most of it.
"""


def admissions(data: dict[str, Any]) -> str:
    """Latency by who is served next."""
    lines = data["admission"]
    policies = list(dict.fromkeys(line["policy"] for line in lines))
    places = list(dict.fromkeys((line["batch_size"], line["rate_per_s"]) for line in lines))
    rows = [
        [policy, *(latencies(line_of(lines, policy=policy, batch_size=size, rate_per_s=rate)) for size, rate in places)]
        for policy in policies
    ]
    heads = ["who is served next", *(f"batch {size}, {rate:g} requests/s" for size, rate in places)]

    def spread(start: str) -> tuple[float, float]:
        """Least and largest ratio of the 99th percentile to the median."""
        chosen = [line for line in lines if line["policy"].startswith(start)]
        ratios = [line["latency_p99_s"] / line["latency_p50_s"] for line in chosen]
        return min(ratios), max(ratios)

    usual, groups, fresh, newest = (spread(policies[at]) for at in range(4))
    ended = spread(policies[-1])
    return f"""### What makes a tail

P50 / P90 / P99 of latency in seconds, at loads that the published EXSPEC can serve. There are no percentiles among the published
figures at hand, so the policies are compared with one another.

{markdown_table(heads, rows)}
- The published order of service makes no tail at these loads: the 99th percentile is {usual[0]:.1f} to {usual[1]:.1f} times the median, and part of
  that is due to dropped caches, as above. Preferring full groups of rows that have not run changes nothing ({groups[0]:.1f} to {groups[1]:.1f}), as such groups are rare; letting all
  rows that have not run go first changes little ({fresh[0]:.1f} to {fresh[1]:.1f}).
- **Serving the newest rows first makes it**: {newest[0]:.0f} to {newest[1]:.0f} times the median. Old requests then wait until no new one comes.
- A pad that ends its row makes another one, {ended[0]:.0f} to {ended[1]:.0f} times the median: nearly all rows end in their first round, and the tail
  is the longest row of each batch, which is never padded. It is shorter than the usual latency, since most of the text is missing.
"""


def latencies(line: dict[str, Any], name: str = "latency") -> str:
    """The three percentiles of a line, of latency or of another time."""
    return " / ".join(f"{line[f'{name}_{label}_s']:.1f}" for label in PERCENTILES)
