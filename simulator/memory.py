"""K/V slots of a run, one token each: the reckoning of `refimpl.kvstore` and `refimpl.layouts` without the tensors."""

from collections.abc import Sequence as Seq

from simulator.scenario import Engine

COLUMN_STEP = 32  # pool rows are a multiple of it
SLACK_COLUMNS = 32  # columns that the engine keeps free when it lays a batch out anew


def pool_columns(longest: int, span: int) -> int:
    """Columns of a pool row: for `longest` tokens, the `span` that a round feeds, and one scratch column."""
    return -(-(longest + span + 1) // COLUMN_STEP) * COLUMN_STEP


def working_slots(layout: str, batch_rows: int, columns: int) -> int:
    """Slots beside the pool: two buffers that hold `batch_rows` of its rows each; 0 where nothing is copied."""
    if layout == "inplace":
        return 0
    holes = columns // 4 if layout == "masked" else 0
    return 2 * batch_rows * (columns + holes + SLACK_COLUMNS)


def num_slots(layout: str, rows: int, batch_rows: int, columns: int) -> int:
    """Slots of a pool of `rows`, and of what stands beside it when rounds have `batch_rows` members."""
    return rows * columns + working_slots(layout, batch_rows, columns)


def run_slots(engine: Engine, lengths: Seq[int]) -> int:
    """Slots that the engine asks for before a run of requests of so many tokens each, prompt and budget together."""
    rows = min(engine.resolved_window_size, len(lengths))
    columns = pool_columns(max(lengths), engine.num_speculative_tokens + 1)
    return num_slots(engine.layout, rows, min(engine.batch_size, rows), columns)
