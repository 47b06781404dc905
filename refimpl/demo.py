"""The demonstration: bundled prompts, bundled pair, every named method, one table."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from rich.table import Table

from refimpl.config import NAMED_METHODS
from refimpl.equivalence import compare
from refimpl.generation import generate
from refimpl.model import Pair
from refimpl.requests import Prompt
from refimpl.results import Result

SHARES = ("draft", "verify", "realign", "prefill", "host")


@dataclass(frozen=True, slots=True)
class DemoRow:
    """One method of the demonstration; `tokens_per_row_round` committed, shares of the time of all stages."""

    method: str
    batch_size: int
    exact: int
    prompts: int
    tokens_per_s: float
    rounds: int
    tokens_per_row_round: float
    grouping_rate: float
    share_draft: float
    share_verify: float
    share_realign: float
    share_prefill: float
    share_host: float


def run_demo(
    pair: Pair, prompts: list[Prompt], progress: Callable[[str, int, int], None] | None = None, **settings: Any
) -> list[DemoRow]:
    """Decode the prompts by every named method, the oracle first.

    Args:
        pair: from `load_pair`.
        prompts: what to decode.
        progress: told (method, finished, all).
        **settings: as for `generate`.
    """
    reference: Result | None = None
    rows = []
    for method in NAMED_METHODS:
        bar = partial(progress, method) if progress else None
        result = generate(pair, prompts, method=method, progress=bar, **settings)
        reference = reference or result
        rows.append(_row(result, reference))
    return rows


def _row(result: Result, reference: Result) -> DemoRow:
    stats = result.stats
    match = compare([s.token_ids for s in reference.sequences], [s.token_ids for s in result.sequences])
    return DemoRow(
        method=result.config.method,
        batch_size=result.config.resolved_batch_size,
        exact=match.exact,
        prompts=match.prompts,
        tokens_per_s=stats.tokens_per_s,
        rounds=stats.num_rounds,
        tokens_per_row_round=stats.acceptance.tokens_per_row_round,
        grouping_rate=stats.grouping_rate,
        **{f"share_{stage}": stats.share(stage) for stage in SHARES},
    )


def demo_cells(row: dict[str, Any]) -> list[str]:
    """Cells of a row, formatted for a table."""
    return [
        row["method"],
        str(row["batch_size"]),
        f"{row['exact']}/{row['prompts']}",
        f"{row['tokens_per_s']:.0f}",
        str(row["rounds"]),
        f"{row['tokens_per_row_round']:.2f}",
        f"{100 * row['grouping_rate']:.0f} %",
        *(f"{100 * row[f'share_{stage}']:.0f} %" for stage in SHARES),
    ]


DEMO_HEADINGS = ("method", "batch", "exact", "tokens/s", "rounds", "tokens/row", "grouped", *SHARES)


def demo_table(rows: list[DemoRow]) -> Table:
    """The table that `python -m refimpl demo` prints."""
    table = Table(title="Every method gives the tokens of plain decoding; they differ in cost only")
    for heading in DEMO_HEADINGS:
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in rows:
        table.add_row(*demo_cells(asdict(row)))
    return table
