"""Throughput of every method compared with what a user would choose instead, and the anatomy of realignment.

Machines drift, so every engine runs once per repeat, in turn, on the same prompts and budgets, after a warm-up; what is
reported is the median and the spread over repeats, and the ratio to plain batched generation of transformers in the
same repeat. Stop tokens are switched off: every engine generates the same number of tokens.

| module         | what it holds                                                                    |
|----------------|----------------------------------------------------------------------------------|
| `settings`     | what all engines of a run share; which prompts they decode                       |
| `work`         | bytes and FLOPs that a forward pass cannot avoid, and the time they take at best |
| `probe`        | bandwidth and matrix rate of the device; its busy time                           |
| `engines`      | one run of one engine                                                            |
| `rows`         | from runs to the rows of the table                                               |
| `run`          | the interleaved benchmark                                                        |
| `anatomy`      | one forced trace through every layout: what realignment moves and costs          |
| `anatomy_rows` | its rows, and what they say                                                      |
| `per_row`      | realignment row by row and layer by layer, as published code does it, to compare |
| `reference`    | a fixed pass of the target, by which drifts of the machine are seen              |
| `acceptance`   | accepted drafts of the rules that keep the law, as sums of probabilities         |
| `forced`       | distributions of accepted drafts, as text and as probabilities                   |
| `demo`         | bundled pair and prompts, every method in turn, in one table                     |
| `serving`      | requests that arrive in real time, and how long they wait                        |
| `memory`       | what a run allocates                                                             |
"""

from refimpl.bench.rows import BenchRow
from refimpl.bench.run import BenchReport, run_bench
from refimpl.bench.settings import BenchSettings, spread

__all__ = ["BenchReport", "BenchRow", "BenchSettings", "run_bench", "spread"]
