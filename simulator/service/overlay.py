"""A measured machine laid over a roofline: measured seconds within the points, the roofline's growth beyond them."""

import numpy as np

from refimpl.core.errors import require, shown
from simulator.service.roofline import RooflineCost
from simulator.service.table_cost import TableCost
from simulator.settings.calibration import Calibration

FIELDS = ("num_layers", "kv_bytes_per_token")  # of a calibration, each of target and draft


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
        InputError: the points are of another device, number format or pair of models, or one device alone was measured.
    """

    def __init__(self, calibration: Calibration, layout: str, factors: dict[str, float], roofline: RooflineCost):
        super().__init__(calibration, layout, factors, extrapolate=True)
        require_measured(calibration, roofline, "cost.from_calibration", "cost.")
        self.roofline = roofline
        self.kv_bytes_per_token, self.kv_capacity_bytes = roofline.kv_bytes_per_token, roofline.kv_capacity_bytes
        self.state_bytes_per_row = roofline.state_bytes_per_row
        self.cost_per_hour, self.watts = roofline.cost_per_hour, roofline.watts
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


def require_measured(calibration: Calibration, roofline: RooflineCost, named: str, option: str) -> None:
    """Raise InputError where a calibration is known to be of something else than the facts of a roofline.

    Args:
        calibration, roofline: which are compared.
        named: what the user calls the calibration.
        option: what stands before ``device``, ``target`` and so on, as the user gives them.
    """
    meta, machine = calibration.meta, roofline.machine
    was = f"{named} {calibration.name} was measured"
    cure = "" if machine.device.reported_as else " (reported_as in its file is the name that PyTorch has for it)"
    device = f"on {shown(meta['device'])}, {option}device is {shown(machine.device.name)}{cure}"
    require(meta["device"] in machine.device.names, f"{was} {device}")
    require(meta["dtype"] == machine.dtype, f"{was} in {meta['dtype']}, {option}dtype is {machine.dtype}")
    several = f"{was} on one device, {option}tensor_parallel is {machine.tensor_parallel}"
    require(machine.tensor_parallel == 1, several)
    for name, given in (("target", roofline.target), ("draft", roofline.draft)):
        facts = (given.model.layers, given.model.kv_bytes_per_token) if given else (0, 0)
        for field, what, fact in zip(FIELDS, ("layers", "bytes of K/V per token"), facts, strict=True):
            found = meta[field].get(name, 0)
            require(found == fact, f"{was} with a {name} of {found} {what}, {option}{name} has {fact}")
