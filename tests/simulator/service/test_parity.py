"""Decision parity: what a replay of a trace decides is compared with the trace, and any difference is seen."""

import pytest

from refimpl import InputError
from simulator.engine_runs.parity import check_parity, compare_rows, replay_scenario
from simulator.service.simulation import simulate_once
from simulator.settings.traces import EngineTrace, read_engine_trace
from tests.synthetic_inputs import HEADER, LINES, trace_line, write_engine_trace


def test_a_replay_decides_as_the_trace_says(engine_trace):
    parity = check_parity(engine_trace)
    assert parity.exact
    assert (parity.rounds, parity.rows) == (3, 5)


def test_a_run_without_drafts_is_replayed(tmp_path):
    """There is no acceptance to learn from it, and none is needed."""
    header = HEADER | {
        "num_speculative_tokens": 0,
        "num_speculative_tokens_each": [0, 0],
        "max_new_tokens_each": [2, 1],
    }
    rows = [(0, 0, 0, 4, False), (0, 1, 1, 5, True), (1, 0, 0, 5, True)]
    lines = [trace_line(*row, 0, k=0, drafted=0, lag=0 if row[0] else 1, finished=ends) for *row, ends in rows]
    lines = [line | {"draft_lag": line["round"] + 1} for line in lines]
    assert check_parity(write_engine_trace(tmp_path / "plain.ndjson", header, lines)).exact


@pytest.mark.parametrize(
    ("at", "change"),
    [(1, {"sequence": 0}), (3, {"kept": 1}), (1, {"draft_lag": 2}), (0, {"mode": "static"}), (4, {"k": 1})],
)
def test_parity_sees_any_difference(engine_trace, at, change):
    """The replay of the honest trace is compared with a trace that was tampered with."""
    honest = read_engine_trace(engine_trace)
    replayed = simulate_once(replay_scenario(honest), keep_rows=True).log.row_frame()
    lines = [dict(line) for line in LINES]
    lines[at] |= change
    path = write_engine_trace(engine_trace.with_name("tampered.ndjson"), HEADER, lines)
    tampered = read_engine_trace(path)
    parity = compare_rows(tampered, replayed)
    assert not parity.exact
    assert parity.first_difference.startswith(f"round {LINES[at]['round']}, row {LINES[at]['row']}: ")


def test_parity_fails_when_the_replay_is_shorter(engine_trace):
    trace = read_engine_trace(engine_trace)
    replayed = simulate_once(replay_scenario(trace), keep_rows=True).log.row_frame()
    assert not compare_rows(trace, replayed[replayed["round"] < 2]).exact
    longer = EngineTrace(trace.path, trace.header, trace.rows[trace.rows["round"] < 2])
    assert not compare_rows(longer, replayed).exact


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ({"shape_stable": True, "block_size": 64, "texts": [[], []]}, LINES, "rows share prompts alone"),
        ({"output_lens": [6, 3]}, LINES[:-1], "sequence 1 was cancelled, which a scenario cannot replay"),
    ],
)
def test_what_a_scenario_cannot_say_is_not_replayed(tmp_path, header, rows, message):
    path = write_engine_trace(tmp_path / "t.ndjson", HEADER | header, rows)
    with pytest.raises(InputError, match=message):
        check_parity(path)
