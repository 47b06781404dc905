"""The demonstration: bundled prompts, bundled pair, transformers and every named method in turn, one table."""

import statistics
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from refimpl.bench.engines import hf_generate
from refimpl.bench.run import make_bench
from refimpl.bench.settings import PLAIN_DECODING, BenchSettings
from refimpl.core.config import NAMED_METHODS
from refimpl.core.stats import RunStats
from refimpl.generation import generate
from refimpl.judging.equivalence import compare
from refimpl.models.adapter import Pair
from refimpl.requests import prepare

PLAIN = "transformers"
ORACLE = "autoregressive"
NO_DRAFTS = "inplace, no drafts"
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class DemoRow:
    """One engine at a batch size. Columns of rounds are None for transformers, which has none.

    Attributes:
        method, batch_size: a method, `transformers` for its own `generate`, or `inplace` without drafts, which shows
            what prompts without pads and places that are filled at once bring by themselves.
        exact, prompts: outputs equal to the oracle's, in all repeats; of so many.
        tokens_per_s: median over repeats; prefill included.
        ratio_to_transformers: median over repeats of the ratio, within a repeat, to transformers at this batch size.
        rounds: of a run.
        tokens_per_row_round: committed.
        mean_acceptance_length: 1 + accepted drafts a row and round, those that a rollback drops included.
        grouping_rate: grouped rounds of at least two rows / rounds.
        share_realign: of the time of all stages.
    """

    method: str
    batch_size: int
    exact: int
    prompts: int
    tokens_per_s: float
    ratio_to_transformers: float
    rounds: int | None = None
    tokens_per_row_round: float | None = None
    mean_acceptance_length: float | None = None
    grouping_rate: float | None = None
    share_realign: float | None = None


@dataclass(frozen=True, slots=True)
class _Run:
    """What one engine did in one repeat."""

    tokens_per_s: float
    outputs: Seq[Seq[int]]
    stats: RunStats | None = None


def run_demo(
    pair: Pair,
    prompts: list[list[int]],
    *,
    batch_size: int = 8,
    max_new_tokens: int = 24,
    repeats: int = 2,
    checks: str = "host",
    progress: Progress | None = None,
) -> list[DemoRow]:
    """Decode the prompts by transformers' own `generate` and by every named method, in turn, after a warm-up.

    Stop tokens are off, so that every engine generates equally many tokens.

    Args:
        pair: from `load_pair`.
        prompts: token ids.
        batch_size: rows of a round; transformers runs at this size and one prompt at a time.
        max_new_tokens: budget of a prompt.
        repeats: runs of every engine; ratios are taken within each.
        checks: level of the run-time checks.
        progress: called with (engine, repeats done, repeats).

    Raises:
        InputError: an impossible setting, or a prompt that does not fit.
    """
    settings = BenchSettings((batch_size,), max_new_tokens=max_new_tokens, checks=checks)
    prepare(pair, prompts, settings.config("inplace", batch_size))  # what does not fit is refused before anything runs
    engines = _engines(pair, settings, batch_size)
    for (_, size), run in engines.items():
        run(prompts[:size])
    runs: dict[tuple[str, int], list[_Run]] = defaultdict(list)
    for repeat in range(1, repeats + 1):
        for (method, size), run in engines.items():
            runs[method, size].append(run(prompts))
            if progress:
                progress(f"{method} at batch {size}", repeat, repeats)
    reference = runs[ORACLE, 1][0].outputs
    return [_row(key, found, runs[PLAIN, key[1]], reference) for key, found in runs.items()]


Engines = dict[tuple[str, int], Callable[[list[list[int]]], _Run]]


def _engines(pair: Pair, settings: BenchSettings, batch_size: int) -> Engines:
    """(name, batch size) -> runs the prompts once; the oracle and `speculative` take them one at a time."""
    bench = make_bench(pair, settings)

    def plain(size: int) -> Callable[[list[list[int]]], _Run]:
        def run(prompts: list[list[int]]) -> _Run:
            sample = hf_generate(bench, prompts, size)
            return _Run(sample.tokens / sample.seconds, sample.outputs)

        return run

    def ours(method: str, size: int, **changes: Any) -> Callable[[list[list[int]]], _Run]:
        config = settings.config(method, size)
        arguments = settings.engine_settings(method, config.resolved_batch_size) | changes

        def run(prompts: list[list[int]]) -> _Run:
            result = generate(pair, prompts, **arguments)
            return _Run(result.stats.tokens_per_s, [s.token_ids for s in result.sequences], result.stats)

        return run

    sizes = dict.fromkeys((1, batch_size))
    found: Engines = {(PLAIN, size): plain(size) for size in sizes}
    found[NO_DRAFTS, batch_size] = ours("inplace", batch_size, **PLAIN_DECODING)
    for method in NAMED_METHODS:
        size = settings.config(method, batch_size).resolved_batch_size
        found[method, size] = ours(method, size)
    return dict(sorted(found.items(), key=lambda item: item[0][1]))


def _row(key: tuple[str, int], runs: Seq[_Run], plain: Seq[_Run], reference: Seq[Seq[int]]) -> DemoRow:
    ratios = [run.tokens_per_s / other.tokens_per_s for run, other in zip(runs, plain, strict=True)]
    return DemoRow(
        *key,
        exact=min(compare(reference, run.outputs).exact for run in runs),
        prompts=len(reference),
        tokens_per_s=statistics.median(run.tokens_per_s for run in runs),
        ratio_to_transformers=statistics.median(ratios),
        **_rounds(runs),
    )


def _rounds(runs: Seq[_Run]) -> dict[str, Any]:
    """Columns of rounds: the share is a median over repeats, the rest is the same in all of them."""
    found = [run.stats for run in runs if run.stats]
    if not found:
        return {}
    return {
        "rounds": found[0].num_rounds,
        "tokens_per_row_round": found[0].acceptance.tokens_per_row_round,
        "mean_acceptance_length": found[0].acceptance.mean_acceptance_length,
        "grouping_rate": found[0].grouping_rate,
        "share_realign": statistics.median(stats.share("realign") for stats in found),
    }


DEMO_HEADINGS = ("method", "batch", "exact", "tokens/s", "of transformers", "tokens/row·round", "moving K/V")


def demo_cells(row: dict[str, Any]) -> list[str]:
    """Cells of a row, formatted for a table."""
    has_rounds = row["rounds"] is not None
    return [
        row["method"],
        str(row["batch_size"]),
        f"{row['exact']}/{row['prompts']}",
        f"{row['tokens_per_s']:.0f}",
        f"{row['ratio_to_transformers']:.2f}×",
        f"{row['tokens_per_row_round']:.2f}" if has_rounds else "",
        f"{100 * row['share_realign']:.1f} %" if has_rounds else "",
    ]


def demo_legend(rows: Seq[dict[str, Any]], prompt_lens: Seq[int]) -> list[str]:
    """What the columns mean, and two figures that may be surprising."""
    lines = [
        "exact: outputs with exactly the tokens of autoregressive, the oracle. of transformers: tokens/s divided by "
        "those of its generate at the same batch size, in the same run. moving K/V: share of time, prefill included.",
    ]
    by_method = {row["method"]: row for row in rows}
    rollback, exspec = by_method["rollback"], by_method["exspec"]
    lines.append(
        f"rollback could commit {rollback['mean_acceptance_length']:.2f} tokens per row and round, and commits "
        f"{rollback['tokens_per_row_round']:.2f}: all rows go back to the one that accepted least."
    )
    lines.append(
        "inplace, no drafts: what is gained without drafts, because prompts are fed without pads and places in the "
        "batch are filled at once; the other methods have that, too."
    )
    lines.append(
        f"exspec ran {100 * exspec['grouping_rate']:.0f} % of its rounds with rows of equal length, which need no "
        f"realignment: the {len(prompt_lens)} prompts have {len(set(prompt_lens))} different lengths."
    )
    return lines


def demo_table(rows: list[DemoRow]) -> Table:
    """The table that `raggedspec demo` prints."""
    table = Table(title="All methods produce the tokens of ordinary decoding; they differ in cost only")
    for heading in DEMO_HEADINGS:
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in rows:
        table.add_row(*demo_cells(asdict(row)))
    return table
