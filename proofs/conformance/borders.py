"""Rows of six tokens never fill a step of 32 columns: here steps, slack, chunks and matches are as small as can be."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from refimpl.decoding import prefill
from refimpl.drafting import ngram
from refimpl.placement import left_padded, masked, rectangle, sizes

BLOCK_SIZE = 2
SMALLEST = (
    (sizes, "COLUMN_STEP", 1),
    (rectangle, "SLACK_COLUMNS", 1),
    (left_padded, "SLACK_COLUMNS", 1),
    (masked, "SLACK_COLUMNS", 1),
    (prefill, "PREFILL_CHUNK_TOKENS", 1),
    (ngram, "SHORTEST", 1),
)


@contextmanager
def small_borders() -> Iterator[None]:
    """Inside, short rows grow, are chunked and cross the ends of blocks."""
    with ExitStack() as stack:
        for border in SMALLEST:
            stack.enter_context(patch.object(*border))
        yield
