"""Figures from the tidy tables. Each function draws on given axes and returns them; nothing is computed twice."""

from refimpl.viz.style import BLUE as BLUE
from refimpl.viz.style import GREY as GREY
from refimpl.viz.style import ORANGE as ORANGE
from refimpl.viz.style import captioned as captioned
from refimpl.viz.style import new_axes as new_axes
from refimpl.viz.style import panels as panels
from refimpl.viz.style import series_styles as series_styles
from simulator.plots.files import check_figure as check_figure
from simulator.plots.files import save as save
from simulator.plots.runs import backlog as backlog
from simulator.plots.runs import latency_cdf as latency_cdf
from simulator.plots.runs import raggedness_map as raggedness_map
from simulator.plots.studies import held_out_runs as held_out_runs
from simulator.plots.studies import waterfall as waterfall
from simulator.plots.swept import band_against as band_against
from simulator.plots.swept import heat_map as heat_map
from simulator.plots.swept import pareto as pareto
from simulator.plots.swept import pareto_front as pareto_front
from simulator.plots.swept import throughput_against as throughput_against
