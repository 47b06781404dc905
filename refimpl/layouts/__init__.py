"""Where K/V are stored: one protocol, and one class for each way to store them."""

from typing import Any

from refimpl.layouts.base import Layout
from refimpl.layouts.inplace import InplaceLayout
from refimpl.layouts.left_padded import LeftPaddedLayout
from refimpl.layouts.masked import MaskedLayout
from refimpl.layouts.paged import PagedLayout
from refimpl.layouts.store import KVShape
from refimpl.placement import PoolSize, make_placement

LAYOUT_CLASSES: dict[str, type[Layout]] = {
    "realigned": LeftPaddedLayout,
    "masked": MaskedLayout,
    "rollback": LeftPaddedLayout,
    "inplace": InplaceLayout,
    "paged": PagedLayout,
}


def make_layout(
    name: str, shape: KVShape, size: PoolSize, *, compaction_threshold: float = 0.25, **options: Any
) -> Layout:
    """Build a layout by name; the other arguments are those of `Layout`."""
    placement = make_placement(name, compaction_threshold)
    return LAYOUT_CLASSES[name](shape, placement, size, **options)
