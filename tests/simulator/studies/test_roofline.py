"""Costs of kind roofline: facts of models and devices, their errors, and what a scenario gets from them."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from refimpl.core.errors import InputError
from refimpl.core.independent import probability_of
from simulator.commands.options import read_scenario
from simulator.runner import simulate
from simulator.service.cost import Fed
from simulator.service.roofline import LARGE_KERNEL_S, LAYERS, SMALL_KERNEL_S, RooflineCost
from simulator.service.simulation import Simulation, simulate_once
from simulator.settings.curves import curve_cv, curve_errors
from simulator.settings.fields import Spec
from simulator.settings.folders import PUBLISHED
from simulator.settings.hardware import hardware_file, load_architecture, load_device, shipped
from simulator.settings.inputs import input_files
from simulator.settings.kinds import COST
from simulator.settings.plain_yaml import read_yaml
from simulator.settings.scenario import Scenario
from simulator.studies.published import load_constants
from simulator.studies.roofline_checks import (
    ERRORS,
    EXPLAINED,
    OUTLIER,
    attention_s,
    check_roofline,
    summarize_checks,
    write_checks,
)

RESULTS = Path(__file__).parents[3] / "docs" / "results"
PAIR = {"device": "h100", "target": "qwen3-8b", "draft": "qwen3-0.6b"}


def cost_of(**more):
    return RooflineCost(Spec.of("roofline", **PAIR | more), None)


def verify_s(rows=4, tokens=6, context=512, **more):
    return cost_of(**more).line("verify", rows, tokens)[context]


@pytest.mark.parametrize(
    ("name", "billions", "kv_kib"),
    [
        ("vicuna-7b", 6.74, 512), ("qwen3-8b", 8.19, 144), ("glm-4-9b", 9.40, 40), ("qwen3-0.6b", 0.596, 112),
        ("llama-3-8b", 8.03, 128), ("llama-3-70b", 70.6, 320), ("qwen3-30b-a3b", 30.5, 96), ("mixtral-8x7b", 46.7, 128),
        ("deepseek-v2-lite", 15.7, 30.375),
    ],
)  # fmt: skip
def test_weights_and_cache_are_those_that_the_makers_state(name, billions, kv_kib):
    model = load_architecture(name)
    assert model.weights / 1e9 == pytest.approx(billions, rel=0.005)
    assert model.kv_bytes_per_token == kv_kib * 1024


def test_every_shipped_file_is_whole():
    assert {load_device(name).curve for name in shipped("devices")} == {"a100", "h100"}
    assert all(load_architecture(name).source for name in shipped("architectures"))


def test_tables_are_predicted_from_the_rest():
    errors = pd.DataFrame(curve_errors()).set_index(["table", "left_out"])
    print(errors)
    assert (errors.xs("points", level=1)["median"] < 0.03).all()
    assert (errors.xs("device", level=1)["median"] < 0.10).all()
    assert curve_cv(load_device("h200")) > curve_cv(load_device("h100"))  # it has no table of its own


@pytest.fixture(scope="module")
def checks():
    return check_roofline()


def test_published_numbers_are_within_15_percent_and_outliers_are_explained(checks):
    summary = summarize_checks(checks)
    print(summary)
    assert len(checks) > 60
    assert summary.loc["all", "median"] <= 0.15
    assert set(checks.loc[checks["relative_error"].abs() > OUTLIER, "group"]) == set(EXPLAINED)
    assert set(checks["source"]) <= set(read_yaml(PUBLISHED / "sources.yaml"))
    page = " ".join((Path(__file__).parents[3] / "docs" / "scenarios.md").read_text().split())
    devices = {1: "one", 5: "five", 6: "six", 7: "seven", 8: "eight"}[checks["device"].nunique()]
    assert f"[{len(checks)} published numbers](../simulator/data/published/checks.csv) from {devices} devices" in page
    worst = checks["relative_error"].abs().max()
    assert f"median is {summary.loc['all', 'median']:.1%}, the worst {worst:.0%}".replace("%", " %") in page


def test_committed_errors_are_fresh(checks, tmp_path):
    write_checks(checks, tmp_path / "errors.csv")
    assert (tmp_path / "errors.csv").read_text() == ERRORS.read_text()


def test_published_attention_on_unequal_rows_is_that_of_each_row_s_own_tokens(checks):
    """Of random lengths; were each row read as the longest is, the passes would take about twice as long."""
    unequal = checks[checks["what"] == "attention"]
    widest_s = [attention_s(row, float(row["longest_tokens"])) for row in unequal.to_dict(orient="records")]
    assert len(unequal) == 5
    assert unequal["relative_error"].abs().median() < 0.2
    assert (widest_s / unequal["measured_s"] - 1).median() > 0.75
    long = unequal.iloc[-1]
    published = EXPLAINED["FlashMLA unequal rows"]
    assert f"it is {abs(long['relative_error']):.0%} off".replace("%", " %") in published
    assert f"be {widest_s[-1] / long['measured_s'] - 1:.0%} off".replace("%", " %") in published


def round_s(row):
    """Predicted seconds of drafting and verifying."""
    cost = cost_of(**{name: row[name] for name in ("device", "target", "draft", "dtype")})
    width, k = np.array([float(row["context_tokens"])]), row["num_speculative_tokens"]
    return float((cost.seconds("draft", 1, k, width, False) + cost.seconds("verify", 1, k + 1, width, False))[0])


def test_published_speculative_speeds_are_possible_and_predict_each_other():
    """At batch 1: the tokens that a round must yield at its predicted seconds, and the acceptance that yields them."""
    rows = pd.read_csv(PUBLISHED / "speculative.csv")
    rows["round_s"] = [round_s(row) for row in rows.to_dict(orient="records")]
    rows["needed_tokens"] = rows["tokens_per_s"] * rows["round_s"]
    rows["acceptance_probability"] = list(map(probability_of, rows["needed_tokens"], rows["num_speculative_tokens"]))
    assert (rows["needed_tokens"] > 1).all()
    assert (rows["needed_tokens"] < rows["num_speculative_tokens"] + 1).all()
    assert rows["acceptance_probability"].between(0.3, 0.95).all()
    two, seven = rows.iloc[0], rows.iloc[1]
    predicted = sum(two["acceptance_probability"] ** i for i in range(8)) / seven["round_s"]
    assert predicted == pytest.approx(seven["tokens_per_s"], rel=0.15)


def test_laws_of_a_pass():
    assert verify_s(context=8192) > verify_s(context=512) > 0
    assert verify_s(tokens=1) == pytest.approx(verify_s(tokens=6), rel=0.1)  # little context: bound by the weights
    assert verify_s(rows=256) > 3 * verify_s(rows=4)
    assert verify_s(dtype="float8") < 0.7 * verify_s()
    assert 0.5 * verify_s() < verify_s(tensor_parallel=2) < verify_s()
    assert verify_s(graphs=False) == pytest.approx(36 * 0.704e-3 + 1.705e-3)  # the host is slower than the device
    assert verify_s(device="b200") < verify_s(device="h200") < verify_s() < verify_s(device="l40s")
    few, many = (cost_of(target="qwen3-30b-a3b").line("verify", rows, 1)[512] for rows in (1, 64))
    assert many > 2.5 * few  # more tokens meet more experts
    for draft in ("qwen3-0.6b", "qwen3-30b-a3b"):  # points without a chunk feed the draft nothing
        assert 0 < cost_of(draft=draft, device="h200").point("draft_chunk", 4, 0, 64) < 2e-3


def test_launches_are_those_that_were_counted():
    """Of layers with norms of queries and keys, and without."""
    for row in json.loads((RESULTS / "launches.json").read_text())["rows"]:
        for name in set(LAYERS) & set(row):
            norms = LAYERS[name].key_norms * (row["kind"] == "qwen3")
            assert [count + norms for count in LAYERS[name].launches] == row[name], (row["kind"], name)
    seconds = [verify_s(layers=name) for name in ("transformers", "lean", "compiled", "kernels")]
    assert seconds == sorted(seconds, reverse=True)
    more = verify_s(layers="transformers") - verify_s(layers="compiled")
    launches = 36 * (3 * LARGE_KERNEL_S + (58 - 12 - 3) * SMALL_KERNEL_S) + (38 - 8) * SMALL_KERNEL_S
    assert more == pytest.approx(launches)


def stage_errors():
    """Relative errors of the stages of a round at each batch size, of an H200 to which two constants were fitted."""
    data = json.loads((RESULTS / "bench-gpu-length3.json").read_text())
    meta, k = data["meta"], data["meta"]["settings"]["num_speculative_tokens"]
    width = meta["prompt_tokens"]["median"] + meta["settings"]["max_new_tokens"] / 2
    settings = PAIR | {"device": "h200", "layers": "transformers", "dtype": meta["dtype"]}
    cost = RooflineCost(Spec.of("roofline", **settings), None)
    # engine → stages of its rounds, and the tokens of a row in each
    stages = {"inplace": [("draft", k), ("verify", k + 1)], "autoregressive_batched": [("verify", 1)]}
    for row in data["rows"]:
        for stage, tokens in stages.get(row["engine"], ()):
            seconds = cost.seconds(stage, row["batch_size"], tokens, np.array([width]), False)[0]
            yield seconds / (row[f"ms_{stage}"] / 1000) - 1


def test_stages_of_a_round_are_computed_as_they_were_measured_on_an_h200():
    errors = [*stage_errors()]
    assert len(errors) == 18
    worst = f"within {np.ceil(100 * np.abs(errors).max()):.0f} % of every stage"
    assert worst in (RESULTS.parent / "results.md").read_text()


def test_a_draft_that_never_runs_costs_its_weights_alone():
    """As in the engine: neither passes nor K/V, and the room that is left is that beside its weights."""
    none = {"engine.num_speculative_tokens": 0, "engine.layout": "paged"}
    loaded = Scenario(study={"num_requests": 8}, cost={"kind": "roofline", **PAIR}, noise=False).but(none)
    alone = loaded.but({"cost.draft": ""})
    first, second = (simulate(each, 1) for each in (loaded, alone))
    assert first.metrics.equals(second.metrics)
    with_draft, without = (Simulation(each).cost for each in (loaded, alone))
    weights = 2 * load_architecture(PAIR["draft"]).weights
    assert with_draft.kv_capacity_bytes == pytest.approx(without.kv_capacity_bytes - weights)
    measured = loaded.but(cost={"kind": "table", "calibration": "nvidia-h200/vicuna"})
    assert Simulation(measured).cost.kv_bytes_per_token == 524288


def test_a_model_of_one_s_own_is_one_file(tmp_path):
    text = hardware_file("devices", "h100").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("3.35e12", "6.70e12"))
    (tmp_path / "scenario.yaml").write_text(
        "cost: {kind: roofline, device: mine.yaml, target: qwen3-8b, draft: qwen3-0.6b}\n"
    )
    mine = read_scenario(tmp_path / "scenario.yaml", None)
    assert set(input_files(mine)) == {"device", "target", "draft", "operator table"}
    assert verify_s(device=mine.cost["device"]) < 0.7 * verify_s()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "h1000"}, "no device 'h1000': give a YAML file, or one of: a100-80, b200"),
        ({"target": "llama-3-405b"}, "GB of weights do not fit into 72 GB"),
        ({"target": "BROKEN"}, "broken.yaml: vocabulary is missing"),
        ({"target": "WILD"}, "wild.yaml: layers must be an integer"),
        ({"target": "DENSE"}, "dense.yaml: experts.dense_layers 28 is more than layers 27"),
        ({"target": "TURNED"}, "turned.yaml: latent.rope_dim 192 must be less than head_dim 192"),
        ({"tensor_parallel": 3}, "cost.tensor_parallel 3 does not divide the 32 heads of Qwen3 8B"),
    ],
)
def test_bad_facts_are_one_line(tmp_path, change, message):
    text = hardware_file("architectures", "qwen3-8b").read_text()
    (tmp_path / "broken.yaml").write_text(text.replace("vocabulary: 151936\n", ""))
    (tmp_path / "wild.yaml").write_text(text.replace("layers: 36", "layers: many"))
    latent = hardware_file("architectures", "deepseek-v2-lite").read_text()
    (tmp_path / "dense.yaml").write_text(latent.replace("dense_layers: 1 ", "dense_layers: 28 "))
    (tmp_path / "turned.yaml").write_text(latent.replace("rope_dim: 64", "rope_dim: 192"))
    paths = {name.upper(): str(tmp_path / f"{name}.yaml") for name in ("broken", "wild", "dense", "turned")}
    with pytest.raises(InputError) as error:
        cost_of(**{name: paths.get(value, value) for name, value in change.items()})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_replications_draw_the_constants_unless_noise_is_off():
    scenario = Scenario(study={"num_requests": 8}, cost={"kind": "roofline", **PAIR})
    drawn = simulate(scenario, 4, keep_frames=False)
    assert drawn.metrics["verify_share"].nunique() == 4
    still = Simulation(scenario.but(noise=False)).cost, Simulation(scenario.but(noise=False), 1).cost
    assert still[0].line("verify", 4, 6)[512] == still[1].line("verify", 4, 6)[512] == verify_s()


def test_memory_of_the_device_is_the_room_for_the_cache():
    scenario = Scenario(engine="paged", cost={"kind": "roofline", **PAIR | {"device": "rtx-4090"}})
    cost = Simulation(scenario).cost
    expected = 0.9 * 24e9 - 2 * sum(load_architecture(PAIR[name]).weights for name in ("target", "draft"))
    assert cost.kv_capacity_bytes == pytest.approx(expected)
    blocks = Simulation(scenario).replicas[0].scheduler.allocator.num_blocks
    assert blocks == int(expected // (256 * 1024)) // 16
    own = scenario.but({"service.kv_capacity_bytes": 1e9})
    assert Simulation(own).replicas[0].scheduler.allocator.num_blocks == int(1e9 // (256 * 1024)) // 16


@pytest.mark.parametrize(
    ("target", "devices", "heads"),
    [("qwen3-8b", 2, 4 / 8), ("qwen3-8b", 16, 1 / 8), ("glm-4-9b", 8, 1 / 2), ("deepseek-v2-lite", 4, 1)],
)
def test_room_is_that_of_the_device_with_the_draft(target, devices, heads):
    """It has its share of the target, at least one head of the K/V, and all of the draft."""
    cost = cost_of(target=target, tensor_parallel=devices)
    target, draft = load_architecture(target), load_architecture(PAIR["draft"])
    assert cost.kv_bytes_per_token == target.kv_bytes_per_token * heads + draft.kv_bytes_per_token
    assert cost.kv_capacity_bytes == pytest.approx(0.9 * 80e9 - 2 * (target.weights / devices + draft.weights))
    moved = cost.seconds("realign", 4, 0, np.array([1000]), False)[0]
    assert moved == pytest.approx(SMALL_KERNEL_S + 2 * 4000 * cost.kv_bytes_per_token / cost.machine.bandwidth)


def test_prompts_look_at_what_was_found_before_them():
    """The last 64 tokens of a long prompt cost more than 64 tokens alone; so they do in a scenario that shares."""
    cost = cost_of()
    assert cost.point("prefill", 8, 64, 16384) > 1.5 * cost.point("prefill", 8, 64)
    assert cost.line("prefill", 1, 64)[16384] > cost.line("prefill", 1, 64)[0]
    lengths = {"prompt_tokens": {"kind": "fixed", "tokens": 4160}, "output_tokens": {"kind": "fixed", "tokens": 1}}
    shared = Scenario(
        workload=lengths | {"common": {"kind": "system_prompt", "tokens": 4096}},
        engine={"method": "paged+fifo", "batch_size": 1, "num_blocks": 4096},
        cost={"kind": "roofline", **PAIR},
        study={"num_requests": 2},
        noise=False,
    )
    second_s = simulate(shared, 1).frame("rounds")["prefill_s"][1]
    assert second_s == pytest.approx(cost.point("prefill", 1, 63, 4096))
    assert second_s > 1.02 * cost.point("prefill", 1, 63)


def test_a_pass_without_graphs_costs_what_was_fitted_to_the_log():
    fitted = load_constants()
    defaults = Spec.of("roofline", **PAIR).resolved(COST)
    assert (defaults["eager_pass_s"], defaults["eager_layer_s"]) == (fitted.eager_pass_s, fitted.eager_layer_s)


def test_the_draft_makes_a_pass_of_its_own_for_a_chunk_beside_rows():
    """Launched one by one, as many operations as for one token; the verify pass launches nothing more."""
    cost = cost_of(graphs=False)
    draft_s, more_s = cost.beside(Fed(8, 6, 512), [Fed(1, 16, 0)])
    assert draft_s == cost.point("draft_prefill", 1, 16) > 10e-3
    assert 0 <= more_s < 0.1 * draft_s


@pytest.mark.parametrize("rows", [1, 32, 160])
@pytest.mark.parametrize("cached", [0, 4000])
def test_a_chunk_like_a_row_costs_what_one_row_more_would(rows, cached):
    """Where the verify pass is bound by its weights and where by arithmetic; but no token of a chunk is projected."""
    cost, tokens = cost_of(), 6
    more_s = cost.beside(Fed(rows, tokens, cached), [Fed(1, tokens, cached)])[1]
    one_row_more, alone = (cost.target.pass_s([Fed(n, tokens, cached)], rows * tokens) for n in (rows + 1, rows))
    assert more_s == pytest.approx(one_row_more - alone, rel=1e-6)


@pytest.mark.parametrize("k", [1, 15])
def test_a_round_with_chunks_costs_the_pass_over_all_that_it_feeds(k):
    """Rows with their drafts, and each chunk, look back at their own cached tokens; nothing is copied before."""
    engine = {"method": "paged+continuous", "batch_size": 64, "token_budget": 2048, "num_speculative_tokens": k}
    prompts = {"prompt_tokens": {"kind": "uniform", "low_tokens": 64, "high_tokens": 1024}}
    made = Scenario(workload=prompts, engine=engine, cost={"kind": "roofline", **PAIR}, noise=False)
    log, cost, cached = simulate_once(made, keep_rows=True).log, cost_of(), Counter()
    fed = defaultdict(list)
    for _, index, request, count in log.chunks:
        fed[index].append(Fed(1, count, cached[request]))
        cached[request] += count
    rounds, rows = log.round_frame().loc[list(fed)], log.row_frame()
    for index, drafts, seconds in rounds[rounds["rows"] > 0][["k", "verify_s"]].itertuples():
        decoding = [Fed(1, drafts + 1, own) for own in rows.loc[rows["round"] == index, "seq_len"]]
        pass_s = cost.target.pass_s([*decoding, *fed[index]], len(decoding) * (drafts + 1))
        assert seconds == pytest.approx(pass_s, rel=1e-3)  # the mean of their lengths is rounded
    assert max(map(len, fed.values())) > 1


def test_rows_of_unequal_length_serve_as_many_tokens_as_equal_ones_of_their_mean():
    """A server's kernels read each row's own K/V; this engine's, all rows as wide as the widest, after a copy."""
    engine = {"method": "paged+continuous", "batch_size": 64, "num_speculative_tokens": 2}
    base = Scenario(engine=engine, cost={"kind": "roofline", **PAIR}, study={"num_requests": 192}, noise=False)

    def speed(prompts, attention="own"):
        made = base.but({"workload.prompt_tokens": prompts, "cost.attention": attention})
        results = simulate(made, 1)
        return results["tokens_per_s"], round(results.frame("requests")["prompt_tokens"].mean())

    unequal = {"kind": "lognormal", "median_tokens": 600, "sigma": 1.0, "max_tokens": 8000}
    (ragged, mean), (widest, _) = speed(unequal), speed(unequal, "widest")
    even, _ = speed({"kind": "fixed", "tokens": mean})
    assert ragged == pytest.approx(even, rel=0.1)
    assert widest < 0.5 * ragged


@pytest.mark.parametrize("method", ["paged", "inplace", "inplace+static", "realigned+fifo", "masked+static"])
def test_only_rows_that_stay_where_they_are_have_contexts_of_their_own(method):
    """A rectangle is read whole; elsewhere each round's passes see the mean of what its rows hold."""
    prompts = {"kind": "uniform", "low_tokens": 10, "high_tokens": 4000}
    made = Scenario(engine={"method": method}, cost={"kind": "roofline", **PAIR}, noise=False)
    simulation = simulate_once(made.but({"workload.prompt_tokens": prompts, "study.num_requests": 12}), keep_rows=True)
    rounds, rows, cost = simulation.log.round_frame(), simulation.log.row_frame(), cost_of()
    even = rounds[(rounds["drafted"] == 5 * rounds["rows"]) & (rounds["k"] == 5)]
    for index, size, width, seconds in even[["rows", "width", "verify_s"]].itertuples():
        own = rows.loc[rows["round"] == index, "seq_len"].mean()
        context = width if method.startswith(("realigned", "masked")) else round(own)
        assert seconds == cost.line("verify", size, 6)[context]
    assert len(even) > 10


@pytest.mark.parametrize(
    ("lengths", "cached"),
    [([16000] + [10] * 7, [0] * 8), ([30000, 100, 100, 100], [0] * 4), ([2000, 2000], [0, 30000]), ([64, 0], [0, 64])],
)
def test_prompts_of_one_pass_pay_for_their_own_lengths(lengths, cached):
    """Attention grows with the square of a prompt, so that a pass over unequal ones is not one over their mean."""
    cost, fed = cost_of(), [Fed(1, *each) for each in zip(lengths, cached, strict=True)]
    parts = [part for part in fed if part.tokens]
    alone_s = [each.pass_s(parts, len(parts)) for each in (cost.target, cost.draft)]
    assert cost.prefill_s(fed) == pytest.approx(float(sum(alone_s)))
    assert cost.prefill_s([Fed(1, 500, 0)] * 4) == pytest.approx(cost.point("prefill", 4, 500))
    assert cost.prefill_s(fed, padded=True) == cost.point("prefill", len(fed), max(lengths), sum(cached) // len(fed))


def test_blocks_and_bytes_beyond_the_device_are_refused_alike():
    made = Scenario(engine="paged", cost={"kind": "roofline", **PAIR}, study={"num_requests": 1})
    for beyond in ({"engine.num_blocks": 2**20}, {"service.kv_capacity_bytes": 1e12}):
        with pytest.raises(
            InputError, match=r"(num_blocks 1048576 take .* bytes|bytes is 1e\+12), the device has room for"
        ):
            simulate(made.but(beyond), 1)
