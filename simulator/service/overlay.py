"""A measured machine laid over a roofline: measured seconds within the points, the roofline's growth beyond them."""

import numpy as np

from refimpl.core.errors import require
from simulator.service.roofline import RooflineCost
from simulator.service.table_cost import TableCost
from simulator.settings.calibration import Calibration


class OverlaidCost(TableCost):
    """Measured points of a pair of models, continued by a roofline of the same pair.

    Beyond the points, the seconds at the nearest one grow as those of the roofline do. What was asked for there is
    marked, as a table marks it.

    Args:
        calibration: the points.
        layout: whose points are used.
        factors: component → factor drawn for the replication.
        roofline: facts of the device and of the models; K/V and room are its own.

    Raises:
        InputError: the points are of models with other numbers of layers.
    """

    def __init__(self, calibration: Calibration, layout: str, factors: dict[str, float], roofline: RooflineCost):
        super().__init__(calibration, layout, factors, extrapolate=True)
        measured, layers = sum(calibration.meta["num_layers"].values()), roofline.num_layers
        other = f"was measured with models of {measured} layers, cost.target and cost.draft have {layers}"
        require(measured == layers, f"cost.from_calibration {calibration.name} {other}")
        self.roofline = roofline
        self.kv_bytes_per_token, self.kv_capacity_bytes = roofline.kv_bytes_per_token, roofline.kv_capacity_bytes
        self.origin = f"{self.origin} over {roofline.origin}"

    def seconds(self, component: str, rows: int, tokens: float, widths: np.ndarray, scattered: bool) -> np.ndarray:
        """The measured seconds, times the roofline's growth from the nearest point to the one that is asked for."""
        grid, roofline = self._grid(component, scattered), self.roofline
        near_rows, near_tokens, near_widths = grid.nearest(rows, tokens, widths)
        self._note(grid.outside(rows, tokens, near_widths[0]), component)
        measured = grid.line(near_rows, near_tokens, near_widths)
        asked = roofline.seconds(component, rows, tokens, widths, scattered)
        near = roofline.seconds(component, near_rows, near_tokens, near_widths, scattered)
        return measured * np.divide(asked, near, out=np.ones(len(widths)), where=near > 0)
