"""To which places a round's stages are charged, at which speed, and what a line says of them; by hand."""

import random

import pytest

from refimpl.bench.forced import iid_lengths
from refimpl.bench.reference import Reference, Sample
from refimpl.calibrate.grid import IN_PLACE, VARIANTS, Cell
from refimpl.calibrate.points import Points
from refimpl.calibrate.visits import Place, TimedRound, Timing, Visit, Visitor, round_timings
from refimpl.decoding.trace import RoundRecord

STAGES = {"prefill_s": 0.0, "draft_s": 1.0, "verify_s": 2.0, "realign_s": 0.75, "host_s": 4.0, "round_s": 7.75}
ROWS, LENGTH = 4, 100
VARIANT = {(variant.layout, variant.rotating): variant for variant in VARIANTS}


def charged(variant, k, *, moves=0, split_s=0.0, rows=ROWS):
    """Seconds by component, tokens a row, and length of the prompt where the place has one."""
    cell, record = Cell(variant, rows, (k,), LENGTH), RoundRecord(0, "fifo", (), STAGES, moves)
    found = list(round_timings(cell, variant, k, record, split_s))
    assert {timing.place.batch_size for timing in found} == {rows}
    layouts = {(timing.place.component, timing.place.layout) for timing in found}
    assert layouts == {(name, "any" if name == "host" else variant.layout) for name, _ in layouts}
    return {(t.place.component, t.place.tokens_per_row, t.place.prompt_len): t.seconds for t in found}


def test_where_nothing_moves_realignment_is_host_work():
    host = {("host", 4, -1): 4.75}
    assert charged(IN_PLACE, 3) == {("draft", 3, LENGTH): 1, ("verify", 4, LENGTH): 2} | host
    assert charged(IN_PLACE, 0) == {("verify", 1, LENGTH): 2, ("host", 1, -1): 4.75}  # nothing is drafted


def test_a_move_is_charged_to_its_component():
    wanted = {("draft", 3, LENGTH): 1, ("verify", 4, LENGTH): 2, ("host", 4, -1): 4}
    assert charged(VARIANT["realigned", False], 3, moves=1) == wanted | {("realign", 0, LENGTH): 0.75}
    assert charged(VARIANT["masked", False], 3, moves=1) == wanted | {("compact", 0, LENGTH): 0.75}
    alone = charged(VARIANT["realigned", False], 3, moves=1, rows=1)
    assert "realign" not in {name for name, *_ in alone}, "a single row is never shifted"


def test_what_is_written_back_is_no_part_of_a_gather():
    """And passes of variants that are there for their moves alone are not counted again."""
    rotating = charged(VARIANT["masked", True], 3, moves=2, split_s=0.5)
    assert rotating == {("concat", 0, LENGTH): 0.25, ("split", 0, -1): 0.5, ("host", 4, -1): 4}


def test_the_speed_around_a_visit_is_that_of_passes_near_it():
    """Three seconds before and after it; one that was interrupted is left out."""
    reference = Reference.__new__(Reference)
    times = {0.0: 3.0, 8.0: 1.0, 10.0: 1.25, 11.0: 50.0, 14.0: 1.5, 14.5: 3.0}
    reference.samples = [Sample(at_s, seconds) for at_s, seconds in times.items()]
    assert reference.near(10.0, 11.0) == pytest.approx((1.0 + 1.25 + 1.5) / 3)


class Steady:
    mean_s = 1.0

    def near(self, begun_s, ended_s):
        return 1.0


def test_a_line_has_mean_median_and_the_outer_deciles():
    place = Place("verify", "inplace", 2, 4, 10)
    seconds = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 3.1]
    rounds = [TimedRound(("v", 2, 10, 3), s, s, (Timing(place, s),)) for s in seconds]
    (line,) = Points([Visit(0, 0.0, 1.0, tuple(rounds))], Steady()).lines()
    found = [float(line[name]) for name in ("mean_s", "median_s", "p10_s", "p90_s")]
    assert found == pytest.approx([sum(seconds) / 11, 1.5, 1.1, 1.9])


def test_a_visit_of_masked_rows_sees_some_compactions(tiny):
    """Though so few rounds leave holes in a small share of long rows only; else wide rows would have no point."""
    length = 1000
    stream, masked = [5 + i % 300 for i in range(2 * length)], VARIANT["masked", False]
    half_right = iid_lengths(0.5, 5)
    visitor = Visitor(tiny, stream, Reference(tiny, stream[:8], "host"), random.Random(0), "host", half_right)
    visit = visitor.visit(Cell(masked, 2, (5,), length), 0)
    places = [timing.place for timed in visit.rounds for timing in timed.timings]
    assert [place.prompt_len for place in places if place.component == "compact"].count(length) >= 2
