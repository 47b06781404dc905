"""From a run of the engine to its trace, and from the trace to a replay that decides the same."""

import json
import math
from itertools import product

import pytest

from refimpl import Request, generate
from refimpl.core.errors import InputError
from refimpl.decoding.memory import pool_gib
from simulator.engine_runs.acceptance_fit import fit_all
from simulator.engine_runs.parity import check_parity, compare_rows, replay_scenario
from simulator.runner import simulate
from simulator.service.metrics import measure
from simulator.service.simulation import simulate_once
from simulator.settings.fields import Spec
from simulator.settings.scenario import Scenario
from simulator.settings.traces import EngineTrace, read_engine_trace
from tests.synthetic_inputs import HEADER, LINES, write_engine_trace
from tests.traced_runs import traced

DECISIONS = {
    "by_load": {"draft_budget": "by_load:2=2,3=1"},
    "by_load to none": {"draft_budget": "by_load:3=0"},
    "capacity": {"draft_budget": "capacity:4"},
    "goodput": {"draft_budget": "goodput:1=1.2/1.5/1.8,3=1.5/2.2"},
    "goodput of ngrams": {"drafter": "ngram", "draft_budget": "goodput:1=1.2/1.5/1.8"},
    "confidence": {"draft_budget": "confidence:0.02"},
    "ngram": {"drafter": "ngram"},
    "suffix": {"drafter": "suffix"},
    "hybrid": {"drafter": "hybrid"},
    "head": {"drafter": "head"},
    "head by capacity": {"drafter": "head", "draft_budget": "capacity:4"},
    "hybrid by load": {"drafter": "hybrid", "draft_budget": "by_load:3=2"},
}
METHODS = (
    "eqspec", "exspec", "rollback", "masked+fifo", "inplace", "inplace+grouped", "paged", "masked+continuous",
    "rollback+continuous",
)  # fmt: skip
COMMON = [5, 6, 7, 8, 9, 10]
ALIKE = [Request([*COMMON[: 6 - i], *range(i)], max_new_tokens=6 + 2 * i) for i in range(4)]  # as prompts and samples
ALIKE = [*ALIKE, Request(COMMON, n=3, max_new_tokens=9)]
FORCED = {"acceptance": "forced:0.3/0.3/0.2/0.2"}
OVERLAPPED = {"execution": "overlapped", "batch_size": 5}


def runs():
    """Names and settings; `blocks` are those of the pool, and preempt where they are 18."""
    for method, (stops, ends) in product(METHODS, (("to the budget", {}), ("stops", {"stop_token_ids": None}))):
        yield f"{method} {stops}", {"method": method, "temperature": 0.5, **ends}
    for (name, settings), method in product(DECISIONS.items(), ("inplace", "eqspec", "masked+grouped", "rollback",
                                                                "paged+continuous")):  # fmt: skip
        if method != "rollback" or "drafter" not in settings:
            yield f"{method} {name}", {"method": method, **settings}
    for name in ("hybrid", "by_load to none"):
        yield f"exspec {name}", {"method": "exspec", **DECISIONS[name]}  # groups of rows whose draft rests
    for name, method in product((None, "goodput", "capacity", "confidence", "hybrid by load"), ("inplace", "paged")):
        yield f"overlapped {method} {name}", {"method": method, **OVERLAPPED, **DECISIONS.get(name, {})}
    for name in (None, "goodput"):
        settings = {"method": "paged", "block_size": 2, "blocks": 24, **OVERLAPPED, **DECISIONS.get(name, {})}
        yield f"overlapped preempting {name}", settings
    for method in ("paged", "paged+static", "paged+grouped"):
        yield f"{method} preempting", {"method": method, "block_size": 2, "blocks": 18}
    for method, blocks in product(("paged", "paged+grouped", "paged+continuous"), (18, 39)):
        yield f"{method} shared {blocks}", {"method": method, "block_size": 2, "blocks": blocks, "asked": ALIKE}
    for budget, blocks in product((4, 9, 40, None), (18, None)):
        settings = {"method": "paged+continuous", "block_size": 2, "token_budget": budget, "blocks": blocks}
        yield f"chunks {budget} {blocks}", settings
    for scheduler, blocks, drafter in product(("fifo", "static", "grouped", "continuous"), (18, None),
                                              ("model", "ngram")):  # fmt: skip
        settings = {"method": f"paged+{scheduler}", "block_size": 2, "blocks": blocks, "drafter": drafter}
        yield f"joint {scheduler} {blocks} {drafter}", settings | {"joint_prefill": True}
    for method, rule in product(("inplace", "inplace+static"), ({}, FORCED)):
        yield f"recorded {method} {'forced' if rule else ''}", {"method": method, "cuda_graphs": True, **rule}
    for budget in ("by_load", "by_load to none", "goodput"):
        yield f"recorded {budget}", {"method": "inplace", "cuda_graphs": True, **DECISIONS[budget]}
    for method in ("eqspec", "exspec", "masked+fifo", "inplace", "paged+continuous"):
        yield f"{method} without drafts", {"method": method, "num_speculative_tokens": 0}
    yield "masked forced", {"method": "masked", **FORCED}
    yield "inplace sampled", {"method": "inplace", "temperature": 0.9, "top_p": 0.9, "seed": 11}
    yield "never aged", {"method": "exspec", "aging_bound": math.inf}
    for size in (1, 4, 32):
        yield f"blocks of {size}", {"method": "paged", "block_size": size}


RUNS = dict(runs())


def run(pair, path, *, blocks=None, **settings):
    if blocks is not None:
        memory = pool_gib(pair, blocks, 2, drafts=settings.get("drafter", "model") == "model")
        settings |= {"kv_memory_gib": memory}
    return traced(pair, path, **settings)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_replayed_without_a_difference(llama, tmp_path, name):
    settings, path = RUNS[name], tmp_path / "run.ndjson"
    result = run(llama, path, **settings)
    trace, parity = read_engine_trace(path), check_parity(path)
    assert parity.exact, parity.first_difference
    rows, chunks = (sum(len(getattr(record, part)) for record in result.rounds) for part in ("rows", "chunks"))
    assert (parity.rounds, parity.rows, parity.chunks) == (len(result.rounds), rows, chunks)
    assert trace.output_lens == [len(sequence.token_ids) for sequence in result.sequences]
    models = llama.models(with_draft=result.config.num_speculative_tokens > 0)
    per_token = sum(model.kv_shape.bytes_per_token for model in models)
    byte = {"kind": "linear", "verify_base_s": 1.0, "kv_bytes_per_token": per_token}
    simulation = simulate_once(replay_scenario(trace).but({"cost": byte}))
    log, metrics = simulation.log, measure(simulation)
    passes = [record.rows[0].draft_passes if record.rows else 0 for record in result.rounds]
    assert [line.passes for line in log.rounds] == passes
    hits = log.num_prefix_hits.total()
    assert (log.num_preemptions, hits) == (result.stats.num_preemptions, result.stats.num_prefix_hits)
    assert (log.num_preemptions > 0) == (settings.get("blocks") in (18, 24) and settings.get("token_budget") != 4)
    if "cuda_graphs" in settings and "draft_budget" not in settings:
        assert set(trace.rows["k"]) == {3}, "also where no row can use as many"
    if "asked" in settings:
        assert metrics["cache_hit_rate"] == hits / log.num_to_cache.total() > 0
    if trace.header["layout"] in ("inplace", "paged") and {"blocks", "drafter"}.isdisjoint(settings):
        assert metrics["kv_allocated_bytes"] == result.stats.kv_bytes


@pytest.mark.parametrize("method", ["eqspec", "exspec", "rollback", "masked+fifo", "inplace+grouped"])
def test_the_engine_needs_the_room_that_is_predicted(llama, tmp_path, method):
    """An error tells what it would have needed."""
    settings = {"method": method, "batch_size": 3, "window_size": 5, "num_speculative_tokens": 3, "max_new_tokens": 8}
    prompts = [[5 + (7 * i + j) % 50 for j in range(3 + 6 * i)] for i in range(7)]
    traced(llama, tmp_path / "run.ndjson", prompts, **settings)
    cost = Spec.of("linear", verify_base_s=1.0, kv_bytes_per_token=1.0)
    tokens = simulate(replay_scenario(read_engine_trace(tmp_path / "run.ndjson"), cost), 1)["kv_allocated_bytes"]
    with pytest.raises(InputError, match=f"K/V of {tokens:.0f} tokens"):
        generate(llama, prompts, **settings, kv_memory_gib=1e-9)


def rewrite(path, header, rows=lambda text: text):
    """The trace with other fields in its header, and a function of the text of its rows."""
    first, _, text = path.read_text().partition("\n")
    made = {name: value for name, value in (json.loads(first) | header).items() if value is not ...}
    path.write_text(f"{json.dumps(made)}\n{rows(text)}")


FIXED = {"drafter": "model", "draft_budget": "fixed"}
MATTERS = [  # a run, and what its replay differs by
    *((f"inplace {name}", FIXED, str) for name in DECISIONS),
    ("overlapped inplace None", {"execution": "serial"}, str),
    ("joint fifo None model", {"joint_prefill": False}, str),
    ("paged+grouped shared 18", {"texts": ...}, str),
    ("paged preempting", {}, lambda rows: rows.replace('"num_blocks": 1', '"num_blocks": 2')),
    ("chunks 9 None", {}, lambda rows: rows.replace('"chunk": ', '"chunk": 1')),
]


@pytest.mark.parametrize(("name", "header", "rows"), MATTERS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_a_trace_says_matters(llama, tmp_path, name, header, rows):
    run(llama, tmp_path / "run.ndjson", **RUNS[name])
    rewrite(tmp_path / "run.ndjson", header, rows)
    assert not check_parity(tmp_path / "run.ndjson").exact


def test_the_header_holds_what_the_replay_needs_and_how_was_sampled(llama, tmp_path):
    path = tmp_path / "run.ndjson"
    settings = {"temperature": 0.5, "top_p": 0.9, "top_k": 0, "seed": 11}
    asked = [Request([5, 6, 7 + i], num_speculative_tokens=2) for i in range(3)]
    traced(llama, path, asked, method="masked", compaction_threshold=0.07, **settings)
    header = json.loads(path.read_text().splitlines()[0], parse_constant=pytest.fail)
    assert settings.items() <= header.items()
    engine = replay_scenario(read_engine_trace(path)).engine
    assert (engine.compaction_threshold, engine.num_speculative_tokens) == (0.07, 2)
    run(llama, path, **RUNS["never aged"])
    json.loads(path.read_text().splitlines()[0], parse_constant=pytest.fail)
    assert replay_scenario(read_engine_trace(path)).engine.aging_bound == math.inf


REFUSED = [  # a run, what is made of it, and what is said then
    ("rollback", {"drafter": "ngram"}, check_parity, r"run\.ndjson:1: rollback drafts positions again, where a lookup"),
    ("rollback", FORCED, check_parity, r"run\.ndjson:1: rollback drafts positions again, which forced"),
    ("inplace", {}, lambda path: simulate_once(Scenario(workload={"common": {"kind": "trace", "path": str(path)}})),
     "does not say which sequences begin with the same tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "settings", "use", "words"), REFUSED)
def test_what_cannot_be_replayed_is_refused(llama, tmp_path, method, settings, use, words):
    traced(llama, tmp_path / "run.ndjson", method=method, **settings)
    with pytest.raises(InputError, match=words):
        use(tmp_path / "run.ndjson")


def test_a_budget_that_reads_probabilities_needs_a_trace_with_estimates(llama, tmp_path):
    path = tmp_path / "run.ndjson"
    run(llama, path, **RUNS["inplace capacity"])
    rewrite(path, {}, lambda rows: rows.replace('"survival"', '"other"'))
    with pytest.raises(InputError, match="does not say how likely drafts were to survive"):
        check_parity(path)


@pytest.mark.parametrize("name", ["ngram", "hybrid", "capacity", "confidence", "head by capacity"])
def test_what_a_trace_says_of_its_drafts_goes_with_its_own_rounds(llama, tmp_path, name):
    """Rounds of another acceptance begin elsewhere. There, rows had no drafts, or a list ended too soon."""
    run(llama, tmp_path / "run.ndjson", **RUNS[f"inplace {name}"])
    trace = read_engine_trace(tmp_path / "run.ndjson")
    other = replay_scenario(trace, acceptance=Spec.of("iid", probability=0.5))
    with pytest.raises(InputError, match=r"run\.ndjson: no round of sequence \d began at \d+ tokens, .*: keep the run"):
        simulate_once(other)
    with pytest.raises(InputError, match=r"run\.ndjson:1: no model can be held against a run with drafter .* alone$"):
        fit_all(trace, replications=2)


@pytest.mark.parametrize("name", ["by_load", "goodput", "head"])
def test_acceptance_is_fitted_to_runs_whose_drafts_are_known_anywhere(llama, tmp_path, name):
    run(llama, tmp_path / "run.ndjson", **RUNS[f"inplace {name}"])
    assert fit_all(read_engine_trace(tmp_path / "run.ndjson"), replications=2)["iid"].table["model"].notna().all()


# --- how a replay is compared ------------------------------------------------------------------------------------


def replayed(path):
    return simulate_once(replay_scenario(read_engine_trace(path)), keep_rows=True).log.row_frame()


@pytest.mark.parametrize(
    ("at", "change"),
    [(1, {"sequence": 0}), (3, {"kept": 1}), (1, {"draft_lag": 2}), (0, {"mode": "static"}), (4, {"k": 1})],
)
def test_parity_sees_any_difference(engine_trace, at, change):
    """The replay of the honest trace is compared with a trace that was tampered with."""
    lines = [line | (change if index == at else {}) for index, line in enumerate(LINES)]
    path = write_engine_trace(engine_trace.with_name("tampered.ndjson"), HEADER, lines)
    parity = compare_rows(read_engine_trace(path), replayed(engine_trace))
    assert not parity.exact
    assert parity.first_difference.startswith(f"round {LINES[at]['round']}, row {LINES[at]['row']}: ")


def test_parity_fails_when_one_of_the_two_is_shorter(engine_trace):
    trace, ours = read_engine_trace(engine_trace), replayed(engine_trace)
    assert not compare_rows(trace, ours[ours["round"] < 2]).exact
    assert not compare_rows(EngineTrace(trace.path, trace.header, trace.rows[trace.rows["round"] < 2]), ours).exact
