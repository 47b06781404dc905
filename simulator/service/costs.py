"""The cost model that a scenario names, as one replication draws it."""

from simulator.service.cost import CostModel, LinearCost, TableCost, draw_factors
from simulator.service.roofline import RooflineCost
from simulator.service.streams import Streams
from simulator.settings.calibration import load_calibration
from simulator.settings.kinds import COST
from simulator.settings.scenario import Scenario


def make_cost(scenario: Scenario, streams: Streams) -> CostModel:
    """Build the cost model that a scenario names, with this replication's uncertainty."""
    spec = scenario.cost
    values = spec.resolved(COST)
    if spec.kind == "roofline":
        return RooflineCost(spec, streams if scenario.noise else None)
    if spec.kind == "linear":
        factors = draw_factors(streams, {}, values["run_cv"], scenario.noise)
        return LinearCost(spec, factors)
    calibration = load_calibration(values["calibration"])
    factors = draw_factors(streams, calibration.meta["component_cv"], calibration.meta["run_cv"], scenario.noise)
    extrapolate = values["outside"] == "extrapolate"
    return TableCost(calibration, scenario.engine.layout, factors, extrapolate=extrapolate)
