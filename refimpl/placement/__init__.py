"""Where K/V are stored and when they move, in integers only: layouts move tensors, the simulator charges seconds."""

from refimpl.placement.base import Move, Placement, are_neighbours
from refimpl.placement.inplace import InplacePlacement
from refimpl.placement.left_padded import RealignedPlacement, RollbackPlacement
from refimpl.placement.masked import MaskedPlacement
from refimpl.placement.packing import pays_to_pack
from refimpl.placement.paged import PagedPlacement
from refimpl.placement.rectangle import RectanglePlacement
from refimpl.placement.sizes import PoolSize, num_states, padded_columns, pool_columns

PLACEMENTS: dict[str, type[Placement]] = {
    "realigned": RealignedPlacement,
    "masked": MaskedPlacement,
    "rollback": RollbackPlacement,
    "inplace": InplacePlacement,
    "paged": PagedPlacement,
}


def make_placement(layout: str, compaction_threshold: float) -> Placement:
    """Build a layout's placement by the layout's name."""
    return MaskedPlacement(compaction_threshold) if layout == "masked" else PLACEMENTS[layout]()
