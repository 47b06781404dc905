"""The cost model that a scenario names, as one replication draws it."""

from simulator.service.cost import CostModel, LinearCost, draw_factors
from simulator.service.overlay import OverlaidCost
from simulator.service.roofline import RooflineCost
from simulator.service.streams import Purpose, Streams
from simulator.service.table_cost import TableCost
from simulator.settings.calibration import RECORDED, Calibration, load_calibration
from simulator.settings.kinds import COST
from simulator.settings.scenario import Scenario


def make_cost(scenario: Scenario, streams: Streams) -> CostModel:
    """Build the cost model that a scenario names, with this replication's uncertainty."""
    spec = scenario.cost
    values = spec.resolved(COST)
    if spec.kind == "linear":
        factors = draw_factors(streams, {}, values["run_cv"], scenario.noise)
        return LinearCost(spec, factors)
    if spec.kind == "table":
        measured = _measured(values["calibration"], scenario, streams, Purpose.CALIBRATION)
        return TableCost(*measured, extrapolate=values["outside"] == "extrapolate")
    roofline = RooflineCost(spec, streams if scenario.noise else None)
    name = values["from_calibration"]
    return OverlaidCost(*_measured(name, scenario, streams, Purpose.OVERLAY), roofline) if name else roofline


def _measured(
    name: str, scenario: Scenario, streams: Streams, purpose: Purpose
) -> tuple[Calibration, str, dict[str, float]]:
    """A calibration, the layout whose points are used, and the factor of each component."""
    calibration = load_calibration(name)
    meta = calibration.meta
    factors = draw_factors(streams, meta["component_cv"], meta["run_cv"], scenario.noise, purpose)
    layout = RECORDED if scenario.engine.cuda_graphs else scenario.engine.layout
    return calibration, layout, factors
