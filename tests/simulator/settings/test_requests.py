"""Streams of numbers, arrivals and lengths: what is drawn, and what is read from files."""

import json
import os

import numpy as np
import pytest

from simulator.runner import simulate
from simulator.service.streams import Purpose, Streams
from simulator.service.workload import arrival_times, draw_lengths
from simulator.settings.fields import Spec
from simulator.settings.scenario import Scenario, Study, Workload

STREAMS = Streams(7, 0)


def take(spec, count, streams=STREAMS):
    return np.fromiter(arrival_times(spec, streams, count), float)


def test_numbers_are_keyed_by_request_and_position_whatever_is_asked_first():
    late = Streams(7, 0).per_request(Purpose.PROMPT, 5000, 5010)
    assert np.array_equal(late, STREAMS.per_request(Purpose.PROMPT, 0, 6000)[5000:5010])
    assert np.array_equal(STREAMS.tile(Purpose.ACCEPT, 3, 1), Streams(7, 0).tile(Purpose.ACCEPT, 3, 1))


def test_streams_differ_by_purpose_replication_and_seed():
    draws = {
        Streams(seed, replication).per_request(purpose, 0, 8).tobytes()
        for seed in (0, 1)
        for replication in (0, 1)
        for purpose in (Purpose.PROMPT, Purpose.OUTPUT)
    }
    assert len(draws) == 8


RATED = [  # arrivals of five a second, the coefficient of variation of their gaps
    (Spec.of("poisson", rate_per_s=5.0), 1.0),
    (Spec.of("gamma", rate_per_s=5.0, cv=2.0), 2.0),
    (Spec.of("weibull", rate_per_s=5.0, shape=0.7), 1.46),
    (Spec.of("sinusoidal", rate_per_s=5.0, amplitude=0.8, period_s=10.0), None),
    (Spec.of("fixed", interval_s=0.2), 0.0),
    (Spec.of("on_off", rate_per_s=10.0, mean_on_s=2.0, mean_off_s=2.0), None),
]


@pytest.mark.parametrize(("spec", "cv"), RATED, ids=lambda value: getattr(value, "kind", ""))
def test_arrivals_never_decrease_and_keep_their_rate(spec, cv):
    times = take(spec, 20000)
    gaps = np.diff(times)
    assert (gaps >= 0).all()
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.15 if spec.kind == "on_off" else 0.08)
    if cv is not None:
        assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.15)
    if spec.kind == "on_off":
        assert gaps.std() / gaps.mean() > 1.5, "burstier than Poisson"


def test_on_off_arrivals_are_as_dense_at_the_beginning_as_later():
    """On for a quarter of the time: 5 standard errors of the share of 4,000 runs, false alarm below 1e-6."""
    spec = Spec.of("on_off", rate_per_s=1000.0, mean_on_s=1.0, mean_off_s=3.0)
    first_s = np.array([take(spec, 1, Streams(7, replication))[0] for replication in range(4000)])
    share = np.mean(first_s < 0.02)  # at once, or an off phase ends so soon: 1 - exp(-0.02 / 3)
    assert share == pytest.approx(0.25 + 0.75 * 0.0066, abs=5 * (0.25 * 0.75 / 4000) ** 0.5)
    assert first_s[first_s > 0.02].mean() == pytest.approx(3.0, rel=0.15)


def test_sinusoidal_arrivals_follow_the_rate():
    times = take(Spec.of("sinusoidal", rate_per_s=50.0, amplitude=0.9, period_s=4.0), 20000)
    counts = np.histogram(times % 4.0, bins=4, range=(0, 4))[0]
    assert counts[0] + counts[1] > 2 * (counts[2] + counts[3])


LENGTHS = [
    Spec.of("geometric", mean_tokens=20.0),
    Spec.of("uniform", low_tokens=10, high_tokens=30),
    Spec.of("lognormal", median_tokens=20.0, sigma=0.0),
    Spec.of("values", tokens=[10, 30]),
]


@pytest.mark.parametrize("spec", LENGTHS, ids=lambda spec: spec.kind)
def test_lengths_have_their_mean(spec):
    drawn = draw_lengths(spec, STREAMS, Purpose.OUTPUT, 0, 20000)
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(20.0, rel=0.05)


SEPARATORS = "\u2028\u0085\x1c"  # they end lines for `str.splitlines`, and may stand inside of a text in JSON


@pytest.mark.parametrize("kind", ["file", "spec_bench"])
def test_lengths_are_those_of_a_file_anew_once_it_is_written_anew(tmp_path, kind):
    """Four characters are a token; only line feeds end lines."""
    path = tmp_path / "l.jsonl"
    spec = Spec.of(kind, path=str(path), **({"column": "tokens"} if kind == "file" else {}))
    for lengths in ((7, 9), (10, 20)):
        lines = [{"tokens": n, "turns": ["x" * (4 * n - 3) + SEPARATORS]} for n in lengths]
        path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n", encoding="utf-8")
        os.utime(path, ns=lengths)
        assert set(draw_lengths(spec, STREAMS, Purpose.PROMPT, 0, 50)) == set(lengths)


def test_outputs_that_exceed_the_budget_are_told():
    workload = Workload(output_tokens=Spec.of("values", tokens=[100, 128, 129, 1000]))
    assert simulate(Scenario(study=Study(num_requests=8), workload=workload), 1)["cut_outputs"] == 4
