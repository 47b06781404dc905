"""Figures from the tidy tables. Each function draws on given axes and returns them; nothing is computed twice."""

from refimpl.viz.style import BLUE, GREY, ORANGE, captioned, new_axes, panels, series_styles
from simulator.plots.files import check_figure, save
from simulator.plots.runs import backlog, latency_cdf, raggedness_map
from simulator.plots.studies import held_out_runs, waterfall
from simulator.plots.swept import band_against, heat_map, pareto, pareto_front, throughput_against

__all__ = [
    "BLUE", "GREY", "ORANGE", "backlog", "band_against", "captioned", "check_figure", "heat_map", "held_out_runs",
    "latency_cdf", "new_axes", "panels", "pareto", "pareto_front", "raggedness_map", "save", "series_styles",
    "throughput_against", "waterfall",
]  # fmt: skip
