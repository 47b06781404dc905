"""What the figures show, read back from what matplotlib has drawn."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from refimpl.core.errors import InputError
from simulator import plots, read_validation
from simulator.intervals import mean_interval
from simulator.plots.labels import METRICS
from simulator.runner import simulate
from simulator.service.metrics import metric_names
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study
from simulator.studies.attribution import Attribution
from simulator.studies.designs import build_sweep
from simulator.studies.sweeps import sweep

REPLICATIONS = 4
ROWS = "engine.batch_size"
WINDOW = "engine.window_size"


def frame_of(**grid):
    """A sweep's frame of a made-up metric: 100 times the first setting, plus the others, plus the replication."""
    settings = [name.replace("__", ".") for name in grid]
    lines = [
        {"key": str(point), **dict(zip(settings, point, strict=True)), "replication": i, "tokens_per_s": level + i}
        for point in itertools.product(*grid.values())
        for level in [100 * point[0] + sum(value or 0 for value in point[1:])]
        for i in range(REPLICATIONS)
    ]
    return pd.DataFrame(lines)


def drawn_lines(axes):
    """Label → x, mean, low and high of every errorbar."""
    found = {}
    for bar in axes.containers:
        line, _, (band,) = bar
        ends = np.array([segment[:, 1] for segment in band.get_segments()])
        found[bar.get_label()] = (line.get_xdata(), line.get_ydata(), ends[:, 0], ends[:, 1])
    return found


def test_axes_and_titles_are_words_with_units():
    """Every metric has its words, and no figure that stands alone is without a title."""
    assert set(METRICS) == set(metric_names())
    for name, label in METRICS.items():
        assert "_" not in label
        seconds = name.endswith("_s") and not name.endswith("_per_s")
        assert label.endswith("(s)") == seconds
        assert label.endswith("(bytes)") == name.endswith("_bytes")
    frame = frame_of(engine__batch_size=[1, 2, 4], acceptance__probability=[0, 1])
    alone = plots.band_against(frame, ROWS, by="acceptance.probability")
    assert (alone.get_xlabel(), alone.get_ylabel()) == ("batch size (rows)", "tokens per second")
    assert alone.get_title() == "Tokens per second against batch size"
    assert [text.get_text() for text in alone.get_legend().get_texts()] == [
        f"acceptance probability {p}" for p in (0, 1)
    ]
    beside, _ = plots.panels(2)
    assert plots.heat_map(frame, ROWS, "acceptance.probability", axes=beside).get_title() == ""
    assert plots.captioned(alone, "What is seen.").figure.axes[0].get_title() == ""


@pytest.mark.parametrize("count", [1, 24])
def test_every_series_of_a_sweep_is_drawn(count):
    windows = list(range(10, 10 + count))
    frame = frame_of(engine__batch_size=[1, 2, 4], engine__window_size=windows)
    axes = plots.throughput_against(frame, ROWS, by=WINDOW)
    lines = drawn_lines(axes)
    assert list(lines) == [f"window size {window}" for window in windows]
    for window, (x, mean, low, high) in zip(windows, lines.values(), strict=True):
        expected = [mean_interval(100.0 * rows + window + np.arange(REPLICATIONS), 0.95)[:3] for rows in (1, 2, 4)]
        assert x.tolist() == [1, 2, 4]
        np.testing.assert_allclose(np.column_stack([mean, low, high]), expected)
    assert len(axes.get_legend().get_texts()) == count


def test_a_series_whose_setting_is_left_open_is_drawn():
    axes = plots.throughput_against(frame_of(engine__batch_size=[1, 2], engine__window_size=[8, None]), ROWS, by=WINDOW)
    assert len(drawn_lines(axes)) == 2


def test_other_swept_settings_are_not_pooled():
    frame = frame_of(engine__batch_size=[1, 8], engine__window_size=[16, 32])
    with pytest.raises(InputError) as refused:
        plots.throughput_against(frame, WINDOW)
    assert str(refused.value) == (
        f"{ROWS}: several values at one {WINDOW}; draw a line for each with by={ROWS!r}, or keep one: "
        f"frame[frame[{ROWS!r}] == 1]"
    )
    third = frame_of(engine__batch_size=[1, 8], engine__window_size=[16, 32], seed=[0, 1])
    with pytest.raises(InputError, match=r"^seed: several values at one .*; keep one: frame\[frame\['seed'\] == 0\]$"):
        plots.throughput_against(third, ROWS, by=WINDOW)
    with pytest.raises(InputError, match=f"^{WINDOW}, seed: several values at one {ROWS}; keep one: "):
        plots.throughput_against(third, ROWS)
    one = plots.throughput_against(frame[frame[ROWS] == 1], WINDOW)
    each = plots.throughput_against(frame, WINDOW, by=ROWS)
    (kept,) = drawn_lines(one).values()
    np.testing.assert_allclose(kept, drawn_lines(each)["batch size 1"])


def test_bands_hold_the_middle_of_the_replications():
    frame = frame_of(engine__batch_size=[1, 2, 4], engine__window_size=list(range(10, 18)))
    axes = plots.band_against(frame, ROWS, by=WINDOW, level=0.5)
    assert [line.get_label() for line in axes.lines] == [f"window size {window}" for window in range(10, 18)]
    for window, line, band in zip(range(10, 18), axes.lines, axes.collections, strict=True):
        values = [100 * rows + window + np.arange(REPLICATIONS) for rows in (1, 2, 4)]
        np.testing.assert_allclose(line.get_ydata(), np.median(values, axis=1))
        ends = np.quantile(values, [0.25, 0.75], axis=1, method="weibull")
        edges = band.get_paths()[0].vertices[:, 1]
        assert (edges.min(), edges.max()) == pytest.approx((ends[0].min(), ends[1].max()))
    named = plots.band_against(frame, ROWS, by=WINDOW, labels={10: "ten"})
    assert [line.get_label() for line in named.lines[:2]] == ["ten", "11"]
    with pytest.raises(InputError, match="several values at one"):
        plots.band_against(frame, ROWS)


def test_a_heat_map_holds_the_means_and_pools_no_third_setting():
    frame = frame_of(engine__batch_size=[1, 2, 4], engine__window_size=[8, 16])
    axes = plots.heat_map(frame, ROWS, WINDOW, numbers="{:.1f}")
    expected = [[100 * rows + window + 1.5 for rows in (1, 2, 4)] for window in (8, 16)]
    np.testing.assert_allclose(axes.images[0].get_array(), expected)
    assert [text.get_text() for text in axes.texts] == [f"{value:.1f}" for line in expected for value in line]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["8", "16"]
    with pytest.raises(InputError, match="seed: several values"):
        plots.heat_map(frame_of(engine__batch_size=[1], engine__window_size=[8], seed=[0, 1]), ROWS, WINDOW)


def test_every_latency_curve_is_drawn_with_its_band():
    scenario = Scenario(engine=Engine(batch_size=2), study=Study(num_requests=12))
    results = {f"seed {seed}": simulate(scenario.but(seed=seed), 3) for seed in range(8)}
    axes = plots.latency_cdf(results, level=0.5)
    assert [line.get_label() for line in axes.lines] == list(results)
    assert len(axes.collections) == len(results)
    for line, band, result in zip(axes.lines, axes.collections, results.values(), strict=True):
        requests = result.frame("requests")
        latency = (requests["finished_s"] - requests["arrival_s"]).groupby(requests["replication"])
        curves = np.array([np.quantile(values, line.get_ydata()) for _, values in latency])
        np.testing.assert_allclose(line.get_xdata(), curves.mean(axis=0))
        expected = curves[:, 0].min(), curves[:, -1].max()  # a quarter of three runs
        edges = band.get_paths()[0].vertices[:, 0]
        assert (edges.min(), edges.max()) == pytest.approx(expected)


def test_requests_of_the_warm_up_are_in_no_curve_of_latencies():
    """A rush at the beginning, of which metrics know nothing: the slowest that the curve shows came after it."""
    study = {"kind": "closed", "clients": 60, "duration_s": 40.0, "warmup": "mser5"}
    engine = Engine(batch_size=8, num_speculative_tokens=0)
    rush = Scenario(engine=engine, cost=Spec.of("linear", verify_base_s=0.01)).but(
        {"workload.output_tokens.tokens": 10}, study=study
    )
    found = simulate(rush, 1)
    requests = found.frame("requests")
    later = requests[requests["arrival_s"] >= found["warmup_s"]]
    assert 0 < len(later) < len(requests)
    times, shares = plots.latency_cdf(found).lines[0].get_data()
    middle = np.nanquantile(later["finished_s"] - later["arrival_s"], 0.5 * len(later) / later["finished_s"].count())
    assert np.interp(0.5, shares, times) == pytest.approx(middle, rel=0.01)
    assert (times[np.isfinite(times)] >= (later["finished_s"] - later["arrival_s"]).min()).all()


def unfinished(share):
    """Of three batch sizes, at the largest of which so many requests did not finish; latencies fall with the size."""
    frame = frame_of(engine__batch_size=[1, 2, 4]).rename(columns={"tokens_per_s": "latency_p99_s"})
    frame["censored"] = np.where(frame[ROWS] == 4, 100 * share, 0)
    return frame.assign(completed=100 - frame["censored"], tokens_per_s=frame[ROWS], latency_p99_s=4 / frame[ROWS])


def test_points_whose_requests_did_not_finish_show_no_latency():
    for share, sizes in ((0.005, [1, 2, 4]), (0.5, [1, 2])):
        frame = unfinished(share)
        ((x, *_),) = drawn_lines(plots.throughput_against(frame, ROWS, metric="latency_p99_s")).values()
        assert x.tolist() == sizes
        assert plots.band_against(frame, ROWS, "latency_p99_s").lines[0].get_xdata().tolist() == sizes
        grid = plots.heat_map(frame.assign(seed=0), "seed", ROWS, "latency_p99_s")
        assert [label.get_text() for label in grid.get_yticklabels()] == [str(size) for size in sizes]
        axes = plots.pareto(frame)
        assert axes.lines[0].get_xdata().tolist() == [4 / max(sizes)]
        left_out = [text.get_text() for text in axes.get_legend().get_texts() if "left out" in text.get_text()]
        assert left_out == ([] if len(sizes) == 3 else ["scenarios (1 with unfinished requests left out)"])
        ((x, *_),) = drawn_lines(plots.throughput_against(frame, ROWS)).values()
        assert x.tolist() == [1, 2, 4], "how many tokens are made is known"
    never = unfinished(0.5).assign(censored=100, completed=0)
    with pytest.raises(InputError, match="latency_p99_s is known at no point: more than 1% of the requests"):
        plots.pareto(never)
    nothing = unfinished(0.0).assign(latency_p99_s=lambda frame: frame["latency_p99_s"].where(frame[ROWS] < 4))
    assert plots.pareto(nothing).lines[0].get_xdata().tolist() == [2.0]


def test_the_rows_of_any_replica_are_drawn():
    two = Scenario(study=Study(num_requests=12), engine=Engine(batch_size=2), service={"replicas": 2})
    results = simulate(two, 1, keep_rows=True)
    rows = results.frame("rows")
    for replica in (0, 1):
        axes = plots.raggedness_map(results, replica=replica)
        mine = rows[rows["replica"] == replica]
        assert axes.images[0].get_array().shape == (mine["slot"].nunique(), mine["round"].nunique())
        assert axes.get_ylabel() == f"slot of replica {replica}"
    with pytest.raises(InputError, match="replica 2 ran no rows: replicas are 0 … 1"):
        plots.raggedness_map(results, replica=2)


def test_rounds_without_rows_and_slots_that_never_ran_keep_their_places():
    """Rounds of chunks alone are no rows; a slot may wait until the clock stops."""
    results = simulate(Scenario(study=Study(num_requests=2)), 1, keep_rows=True)
    frames, rows = results.replications[0].frames, results.frame("rows")
    gaps = rows.assign(round=2 * rows["round"] + 1, slot=2 * rows["slot"] + 1).drop(columns="replication")
    spaced = replace(results.replications[0], frames=replace(frames, rows=gaps))
    image = plots.raggedness_map(replace(results, replications=(spaced,))).images[0]
    whole = plots.raggedness_map(results).images[0]
    assert image.get_extent() == [0.5, gaps["round"].max() + 0.5, gaps["slot"].max() + 0.5, -0.5]
    np.testing.assert_array_equal(image.get_array()[1::2, ::2], whole.get_array())
    assert np.ma.getmaskarray(image.get_array())[::2].all()


def test_a_backlog_counts_who_has_arrived_and_not_finished():
    """One row, rounds of 1 s, two a request; arrivals at 1, 2 and 3 s finish at 3, 5 and 7 s."""
    lengths = {"prompt_tokens": {"kind": "fixed", "tokens": 4}, "output_tokens": {"kind": "fixed", "tokens": 2}}
    arrivals = {"kind": "open", "num_requests": 3, "arrivals": {"kind": "fixed", "interval_s": 1.0}}
    one_row = Scenario(engine=Engine(batch_size=1, num_speculative_tokens=0))
    slow = one_row.but(cost={"kind": "linear", "verify_base_s": 1.0}, workload=lengths, study=arrivals)
    fast = slow.but({"cost.verify_base_s": 0.25})
    first, second = plots.backlog({"slow": simulate(slow, 2), "fast": simulate(fast, 1)}).lines
    assert (first.get_label(), second.get_label()) == ("slow", "fast")
    assert list(zip(*first.get_data(), strict=True)) == [(1, 1), (2, 2), (3, 2), (5, 1), (7, 0)]
    assert list(zip(*second.get_data(), strict=True)) == [(1, 1), (1.5, 0), (2, 1), (2.5, 0), (3, 1), (3.5, 0)]


def test_every_study_is_named_once_at_the_middle_of_its_runs():
    """And the legend says what share of replications a band holds."""
    found = read_validation("cpu/tiny")
    axes = plots.held_out_runs(found)
    names = [label.get_text() for label in axes.get_xticklabels()]
    counts = found.table["study"].value_counts().sort_index()
    assert names == list(counts.index)
    ends = counts.cumsum()
    assert axes.get_xticks().tolist() == ((ends - counts + ends - 1) / 2).tolist()
    for replications, held in ((200, 90), (9, 80)):
        axes = plots.held_out_runs(replace(found, table=found.table.assign(replications=replications)))
        assert axes.get_legend().get_texts()[0].get_text() == f"simulated, {held} % of replications"


def attribution_of(a, *shares):
    """From a by steps of these heights, each known to a tenth of itself."""
    names = [f"factor {i}" for i in range(len(shares))]
    lines = pd.Series([*shares, sum(shares)], [*names, "total"])
    ends = {"low": lines - abs(lines) / 10, "high": lines + abs(lines) / 10}
    return Attribution("tokens_per_s", a, a + sum(shares), pd.DataFrame({"share": lines, **ends}), pd.DataFrame())


def test_an_axis_of_a_waterfall_is_cut_where_its_steps_are_small_beside_the_ends():
    axes = plots.waterfall(attribution_of(100.0, 0.5, -0.2))
    low, high = axes.get_ylim()
    assert 99.5 < low < 100 < 100.55 < high < 101
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([0.5, -0.2])
    assert [text.get_text() for text in axes.texts] == ["100", "100.3"]
    assert [level for (_, level), _ in axes.collections[-1].get_segments()] == pytest.approx([100.0, 100.3])
    axes = plots.waterfall(attribution_of(100.0, 50.0, -20.0))
    assert axes.get_ylim()[0] == 0
    assert sorted(bar.get_height() for bar in axes.patches) == pytest.approx([-20.0, 50.0, 100.0, 130.0])


def test_the_frame_of_a_sweep_is_drawn_and_saved(tmp_path):
    frame = sweep(build_sweep(Scenario(study=Study(num_requests=8)), replications=2, grid={ROWS: [1, 2, 4]}))
    for name, axes in (("lines", plots.throughput_against(frame, ROWS)), ("front", plots.pareto(frame))):
        plots.save(axes, str(tmp_path / f"{name}.png"))
        assert (tmp_path / f"{name}.png").stat().st_size > 2000


def test_the_pareto_front_holds_what_nothing_beats():
    front = plots.pareto_front(np.array([1.0, 2.0, 3.0, 2.0]), np.array([1.0, 3.0, 2.0, 3.0]))
    assert front.tolist() == [True, True, False, True]
