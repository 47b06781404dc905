"""Requests that come while others run: the tokens are those of a run that knew them from the start."""

import time
from itertools import count, islice, product
from types import SimpleNamespace

import pytest

from refimpl import InputError, Request, generate, stream
from refimpl.core.config import make_config
from refimpl.decoding.engine import Engine
from refimpl.requests import prepare
from simulator.engine_runs.parity import check_parity, replay_scenario
from simulator.service.simulation import simulate_once
from simulator.settings.traces import read_engine_trace

METHODS = ["inplace", "eqspec", "exspec", "masked+fifo", "rollback", "paged", "paged+continuous", "inplace+continuous"]
RULES = [{}, {"temperature": 0.9, "seed": 5}, {"temperature": 1.0, "acceptance": "rejection"}]
NEIGHBOURS_MATTER = [("rollback", RULES[2])]  # the tokens depend on who is there
SETTINGS = {"batch_size": 3, "num_speculative_tokens": 3, "max_new_tokens": 9}
OPEN = {"max_model_len": 40}


def wanted(pair, prompts, **settings):
    return [s.token_ids for s in generate(pair, prompts, **SETTINGS, **settings).sequences]


def tokens_of(run):
    """Tokens of the events, and of the result, which must agree."""
    found = {}
    for event in run:
        found.setdefault(event.index, []).extend(event.token_ids)
    assert [s.token_ids for s in run.result().sequences] == [found[i] for i in sorted(found)]
    return [found[i] for i in sorted(found)]


def by_turns(pair, prompts, path=None, **settings):
    """Submit a prompt after every second round; write the trace."""
    run, rest = stream(pair, prompts[:2], **SETTINGS, **OPEN, **settings), list(prompts[2:])
    while rest or not run.done:
        for _ in range(2):
            if not run.done:
                run.run_one_round()
        if rest:
            run.submit([rest.pop(0)])
    if path:
        run.result().write_trace(path)
    return [s.token_ids for s in run.result().sequences]


@pytest.mark.parametrize(
    ("method", "rule"), [pair for pair in product(METHODS, RULES) if pair not in NEIGHBOURS_MATTER], ids=str
)
def test_who_comes_late_gets_the_same_tokens(llama, ragged_prompts, tmp_path, method, rule):
    """And the simulator decides as the engine did, round by round."""
    path = tmp_path / "run.ndjson"
    found = by_turns(llama, ragged_prompts, path, method=method, **rule)
    assert found == wanted(llama, ragged_prompts, method=method, **rule)
    parity = check_parity(path)
    assert parity.exact, parity.first_difference


def test_a_replay_that_lets_all_in_at_once_is_another_run(llama, ragged_prompts, tmp_path):
    path = tmp_path / "run.ndjson"
    by_turns(llama, ragged_prompts, path, method="paged")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace('"submitted_at"', '"elsewhere"'), *lines[1:]]))
    assert not check_parity(path).exact


def test_the_replay_in_seconds_has_the_engines_arrivals(llama, tmp_path):
    requests = [Request([3, i], arrival_s=i / 50) for i in range(4)]
    run = stream(llama, requests, **SETTINGS)
    tokens_of(run)
    path = tmp_path / "run.ndjson"
    run.result().write_trace(path)
    log = simulate_once(replay_scenario(read_engine_trace(path), clock="seconds")).log
    assert [request.arrival_s for request in log.requests] == [0.0, 0.02, 0.04, 0.06]


def test_a_result_stays_as_it_was_when_the_run_goes_on(llama, tmp_path):
    """And its trace is still that of the run until then."""
    run = stream(llama, [[1, 2]], **SETTINGS, **OPEN)
    run.run_one_round()
    run.submit([[3]])
    list(run)
    result = run.result()
    rounds, header = list(result.rounds), {key: str(value) for key, value in result.header.items()}
    run.submit([[4, 5]])
    list(run)
    assert (result.rounds, {key: str(value) for key, value in result.header.items()}) == (rounds, header)
    result.write_trace(tmp_path / "run.ndjson")
    assert check_parity(tmp_path / "run.ndjson").exact


@pytest.mark.parametrize("method", ["inplace", "paged+continuous"])
def test_requests_come_at_their_time(llama, ragged_prompts, method):
    requests = [Request(prompt, arrival_s=0.03 * i) for i, prompt in enumerate(ragged_prompts)]
    began = time.perf_counter()
    run, first = stream(llama, requests, method=method, **SETTINGS), {}
    found = [[] for _ in requests]
    for event in run:
        first.setdefault(event.index, event.time_s)
        found[event.index] += event.token_ids
    assert found == wanted(llama, ragged_prompts, method=method)
    assert all(first[i] >= request.arrival_s for i, request in enumerate(requests))
    assert time.perf_counter() - began >= requests[-1].arrival_s
    assert run.result().header["arrival_s"] == [request.arrival_s for request in requests]


def test_what_passes_between_rounds_is_of_no_round(llama, ragged_prompts, monkeypatch):
    """The clock moves while tokens are read, and at no other time."""
    clock = SimpleNamespace(now_s=0.0)
    clock.perf_counter = lambda: clock.now_s
    for module in ("refimpl.streaming", "refimpl.decoding.timing"):
        monkeypatch.setattr(f"{module}.time", clock)
    run = stream(llama, ragged_prompts, **SETTINGS)
    for _ in run:
        clock.now_s += 1
    result = run.result()
    assert {seconds for record in result.rounds for seconds in record.stage_s.values()} == {0.0}
    assert result.stats.wall_s == 0


def test_generate_waits_for_arrivals_too(llama, ragged_prompts):
    requests = [Request(prompt, arrival_s=0.01 * i) for i, prompt in enumerate(ragged_prompts)]
    assert wanted(llama, requests) == wanted(llama, iter(ragged_prompts)) == wanted(llama, ragged_prompts)


@pytest.mark.parametrize("method", ["inplace", "masked", "paged+continuous"])
def test_a_run_that_has_ended_has_no_further_round(llama, method):
    run = stream(llama, [[1, 2]], method=method, **SETTINGS, **OPEN)
    list(run)
    num_rounds = len(run.result().rounds)
    with pytest.raises(InputError, match="the run has ended"):
        run.run_one_round()
    assert len(run.result().rounds) == num_rounds
    assert [run.submit([[3]]), {event.index for event in run}] == [[1], {1}]


def test_an_iterator_without_prompts_is_a_run_without_sequences(llama):
    run = stream(llama, iter([]), **SETTINGS, **OPEN)
    assert (list(run), run.result().sequences) == ([], [])


def test_prompts_from_an_iterator_are_asked_for_one_ahead(llama, ragged_prompts):
    asked = []

    def prompts():
        for i, prompt in enumerate(ragged_prompts):
            asked.append(i)
            yield Request(prompt, arrival_s=0.02 * i)

    run = stream(llama, prompts(), **SETTINGS, **OPEN)
    assert asked == []
    run.run_one_round()
    assert asked == [0, 1]
    list(run)
    assert [s.token_ids for s in run.result().sequences] == wanted(llama, ragged_prompts)


@pytest.mark.parametrize("method", ["inplace", "masked", "exspec", "paged+continuous"])
def test_an_iterator_is_read_as_there_is_room(llama, ragged_prompts, tmp_path, method):
    """So it need not end; who waits is a window at most, and the rounds are those of a list."""
    asked = []

    def prompts():
        for i in count():
            asked.append(i)
            yield ragged_prompts[i % len(ragged_prompts)]

    run = stream(llama, islice(prompts(), 20), method=method, **SETTINGS, **OPEN)
    assert asked == []
    run.run_one_round()
    assert len(asked) == (12 if method == "exspec" else 3)
    list(run)
    expected = generate(llama, [ragged_prompts[i % len(ragged_prompts)] for i in range(20)], method=method, **SETTINGS)
    assert [record.rows for record in run.result().rounds] == [record.rows for record in expected.rounds]
    run.result().write_trace(tmp_path / "run.ndjson")
    assert check_parity(tmp_path / "run.ndjson").exact


def test_refused_prompts_keep_their_numbers(llama):
    run, errors = stream(llama, iter([[1], None, [], [2], None]), **SETTINGS, **OPEN), []
    while not run.done:
        try:
            list(run)
        except InputError as error:
            errors.append(str(error))
    assert [s.token_ids for s in run.result().sequences] == wanted(llama, [[1], [2]])
    assert [error.split("prompt ")[1][0] for error in errors] == ["1", "2", "4"]


def test_a_bad_request_is_left_out_and_the_others_go_on(llama, ragged_prompts):
    good = [Request(prompt, arrival_s=0.01) for prompt in ragged_prompts[:3]]
    prompts = [good[0], Request([5] * 80, arrival_s=0.01), good[1], Request([4], arrival_s=0.0), good[2]]
    run, errors, events = stream(llama, iter(prompts), **SETTINGS, **OPEN), [], []
    while True:
        try:
            events += list(run)
            break
        except InputError as error:
            errors.append(str(error))
    assert [s.token_ids for s in run.result().sequences] == wanted(llama, ragged_prompts[:3])
    assert errors == [
        "prompt 1 has 80 tokens: with 9 new ones it does not fit max_model_len 40 (see max_prompt_tokens)",
        "arrivals go backwards: prompt 3 comes at 0.0 s, after one at 0.01 s",
    ]


def test_what_the_run_was_not_built_for_is_refused_and_nothing_is_lost(llama, ragged_prompts):
    run = stream(llama, ragged_prompts[:2], **SETTINGS, **OPEN)
    run.run_one_round()
    for request, message in [
        (Request([1] * 32), "does not fit max_model_len 40"),
        (
            Request([1], num_speculative_tokens=4),
            "asks for 4 drafts a round: with max_model_len, num_speculative_tokens 3",
        ),
        (Request([61]), "outside the vocabulary"),
        (Request([1], arrival_s=0.5), "comes now: leave out its arrival_s"),
        ("text", "has no tokenizer"),
    ]:
        with pytest.raises(InputError, match=message):
            run.submit([[7, 7], request])
    assert run.submit([ragged_prompts[2]]) == [2]
    assert {event.index for event in run} == {0, 1, 2}
    assert [s.token_ids for s in run.result().sequences] == wanted(llama, ragged_prompts[:3])


def test_samples_of_a_request_come_together(llama):
    settings = {"temperature": 0.9, **SETTINGS}
    run = stream(llama, [[1, 2]], **settings, **OPEN)
    assert [run.submit([Request([3], n=2)]), run.submit([[4], [5]])] == [[1, 2], [3, 4]]
    assert tokens_of(run) == wanted(llama, [[1, 2], Request([3], n=2), [4], [5]], temperature=0.9)


def test_random_numbers_of_who_was_there_are_taken(llama):
    run = stream(llama, [Request([1], sequence_id=7)], temperature=0.9, **SETTINGS, **OPEN)
    with pytest.raises(InputError, match="share seed 0 and sequence id 7"):
        run.submit([Request([2], sequence_id=7)])
    run.submit([Request([2], sequence_id=8)])
    with pytest.raises(InputError, match="share seed 0 and sequence id 8"):
        run.submit([Request([3], sequence_id=8)])


def test_who_comes_later_is_given_a_key_that_is_free(llama):
    settings = {"temperature": 0.9, **SETTINGS}
    run = stream(llama, [Request([1], sequence_id=1)], **settings, **OPEN)
    assert [run.submit([[2]]), run.submit([[3], [4]])] == [[1], [2, 3]]
    run.submit([Request([5], seed=7)])  # another seed has all of its places
    keyed = [*(Request([token], sequence_id=token) for token in (1, 2, 3, 4)), Request([5], seed=7, sequence_id=4)]
    assert tokens_of(run) == wanted(llama, keyed, temperature=0.9)


def test_a_run_that_knows_all_its_prompts_takes_no_others(llama):
    run = stream(llama, [[1, 2]], **SETTINGS)
    with pytest.raises(InputError, match="give max_model_len, so that more may come"):
        run.submit([[3]])
    with pytest.raises(InputError, match="prompts that come one by one need max_model_len"):
        stream(llama, iter([[1, 2]]), **SETTINGS)
    late = stream(llama, [[1], Request([2], arrival_s=9.0)], **SETTINGS, **OPEN)
    with pytest.raises(InputError, match="requests of a list or an iterator are still to come"):
        late.submit([[3]])


def test_who_comes_asynchronously_is_awaited(llama):
    async def prompts():
        yield [1]

    with pytest.raises(InputError, match="use `async for`"):
        next(iter(stream(llama, prompts(), **SETTINGS, **OPEN)))


@pytest.mark.parametrize("arrival_s", [-1, float("inf"), 1e300])
def test_an_arrival_is_a_number_of_seconds(arrival_s):
    with pytest.raises(InputError, match="arrival_s must be a number of seconds in"):
        Request([1], arrival_s=arrival_s)


def test_arrivals_do_not_go_backwards(llama):
    with pytest.raises(InputError, match=r"prompt 1 comes at 0.5 s, after one at 1.0 s"):
        generate(llama, [Request([1], arrival_s=1.0), Request([2], arrival_s=0.5)])


def test_the_longest_sequence_must_fit_the_models(llama):
    with pytest.raises(InputError, match="max_model_len must be an integer ≥ 2"):
        generate(llama, [[1]], max_model_len=1)
    context = llama.target.max_positions
    with pytest.raises(InputError, match=f"max_model_len {context + 1} is more than the context of {context}"):
        generate(llama, [[1]], max_model_len=context + 1)


@pytest.mark.parametrize("bound", [{"max_model_len": 40}, {}])
def test_a_sequence_may_fill_what_there_is(llama, bound):
    """And not one token more."""
    most = bound.get("max_model_len", llama.target.max_positions)
    (sequence,) = generate(llama, [[1] * (most - 9)], **SETTINGS, **bound, checks="off").sequences
    assert len(sequence.token_ids) == 9
    with pytest.raises(InputError, match=f"it does not fit .* {most}"):
        generate(llama, [[1] * (most - 8)], **SETTINGS, **bound)


def test_an_engine_takes_sequences_between_rounds(llama, ragged_prompts):
    config = make_config(method="paged", **SETTINGS)
    sequences = prepare(llama, ragged_prompts, config)
    engine = Engine(llama, sequences[:2], config, expected=sequences[2:])
    for i, _ in enumerate(engine.rounds()):
        if i < 9:
            engine.submit([sequences[2 + i]])
    assert [s.generated for s in engine.sequences] == wanted(llama, ragged_prompts, method="paged")
    assert engine.submitted_at == [0, 0, *range(1, 10)]
