"""How large the pool of a run is."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

COLUMN_STEP = 32  # pools and views grow in steps, so that few shapes occur and masks are aligned


def padded_columns(columns: int) -> int:
    """The smallest multiple of COLUMN_STEP that is at least `columns`."""
    return -(-columns // COLUMN_STEP) * COLUMN_STEP


def pool_columns(longest: int, window: int) -> int:
    """Columns of a pool row: for `longest` tokens, `window` more in flight, and one scratch column at the end."""
    return padded_columns(longest + window + 1)


def num_states(rows: int, batch_rows: int, span: int) -> int:
    """Recurrent states that a run holds: one of each row of the pool, and in a round of up to `span` tokens a row those
    before the tokens and behind each, of every member.
    """
    return rows + batch_rows * (span + 1)


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Size of one model's K/V pool.

    Attributes:
        rows: sequences resident at a time.
        columns: of a row.
        batch_rows: members of a round, at most.
        block_size: tokens of a block, in a paged pool.
        num_blocks: blocks of a paged pool.
    """

    rows: int
    columns: int
    batch_rows: int
    block_size: int = 16
    num_blocks: int = 0

    @classmethod
    def of_run(
        cls,
        lengths: Seq[int],
        *,
        window_size: int,
        batch_size: int,
        span: int,
        least_rows: int = 0,
        block_size: int = 16,
    ) -> "PoolSize":
        """The pool of a run.

        Args:
            lengths: tokens of each sequence, prompt and budget together.
            window_size: sequences that a scheduler chooses from.
            batch_size: members of a round.
            span: tokens a row that one round feeds.
            least_rows: of the pool, however few sequences there are.
            block_size: tokens of a block; there are as many blocks as the longest sequences together can fill.
        """
        rows = max(min(window_size, len(lengths)), least_rows)
        blocks = sum(-(-length // block_size) for length in sorted(lengths)[-rows:])
        return cls(rows, pool_columns(max(lengths), span), min(batch_size, rows), block_size, blocks)
