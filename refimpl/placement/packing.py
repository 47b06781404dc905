"""Whether a pass leaves out the pads of rows that feed different numbers of tokens."""

from collections.abc import Sequence as Seq

MOST_PACKED = 0.75  # of a rectangle that is real: with more, leaving the pads out costs about what it saves


def pays_to_pack(counts: Seq[int], width: int) -> bool:
    """Whether rows that feed `counts` tokens are better fed without the pads of a rectangle `width` tokens wide."""
    return sum(counts) <= MOST_PACKED * len(counts) * width
