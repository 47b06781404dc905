"""The cost model that a scenario names, as one replication draws it."""

from collections.abc import Callable

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
    return COSTS[scenario.cost.kind](scenario, streams)


def _linear(scenario: Scenario, streams: Streams) -> CostModel:
    factors = draw_factors(streams, {}, scenario.cost.resolved(COST)["run_cv"], scenario.noise)
    return LinearCost(scenario.cost, factors)


def _table(scenario: Scenario, streams: Streams) -> CostModel:
    values = scenario.cost.resolved(COST)
    measured = _measured(values["calibration"], scenario, streams, Purpose.CALIBRATION)
    cost = TableCost(*measured, extrapolate=values["outside"] == "extrapolate")
    if not scenario.runs_draft:
        meta = cost.calibration.meta
        cost.kv_bytes_per_token = float(meta["kv_bytes_per_token"]["target"])
        cost.state_bytes_per_row = float(meta.get("state_bytes_per_row", {}).get("target", 0))
    return cost


def _roofline(scenario: Scenario, streams: Streams) -> CostModel:
    roofline = RooflineCost(scenario.cost, streams if scenario.noise else None, runs_draft=scenario.runs_draft)
    name = scenario.cost.resolved(COST)["from_calibration"]
    return OverlaidCost(*_measured(name, scenario, streams, Purpose.OVERLAY), roofline) if name else roofline


# by kind; the parameters of each are declared in simulator/settings/kinds.py
COSTS: dict[str, Callable[[Scenario, Streams], CostModel]] = {"linear": _linear, "table": _table, "roofline": _roofline}


def _measured(
    name: str, scenario: Scenario, streams: Streams, purpose: Purpose
) -> tuple[Calibration, str, dict[str, float]]:
    """A calibration, the layout whose points are used, and the factor of each component."""
    calibration = load_calibration(name)
    meta = calibration.meta
    factors = draw_factors(streams, meta["component_cv"], meta["run_cv"], scenario.noise, purpose)
    layout = RECORDED if scenario.engine.cuda_graphs else scenario.engine.layout
    return calibration, layout, factors
