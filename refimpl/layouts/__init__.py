"""Where K/V live: one class a layout, one protocol."""

from refimpl.layouts.base import Layout
from refimpl.layouts.inplace import InplaceLayout
from refimpl.layouts.left_padded import RealignedLayout, RollbackLayout
from refimpl.layouts.masked import MaskedLayout

LAYOUT_CLASSES: dict[str, type[Layout]] = {
    "realigned": RealignedLayout,
    "masked": MaskedLayout,
    "rollback": RollbackLayout,
    "inplace": InplaceLayout,
}

__all__ = ["LAYOUT_CLASSES", "InplaceLayout", "Layout", "MaskedLayout", "RealignedLayout", "RollbackLayout"]
