from dataclasses import replace

import numpy as np
import pytest
import yaml

from refimpl.core.config import NAMED_METHODS, DecodeConfig
from refimpl.core.errors import InputError
from simulator.settings.fields import Spec, as_spec
from simulator.settings.kinds import KINDS
from simulator.settings.scenario import (
    Engine,
    Scenario,
    Service,
    Study,
    Switches,
    Workload,
    from_data,
    load_scenario,
)


def save(tmp_path, data):
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def test_yaml_round_trip_is_exact(tmp_path):
    scenario = Scenario(
        name="ragged",
        study=Study(kind="open", duration_s=3.5, arrivals=Spec.of("gamma", rate_per_s=2.0, cv=3.0)),
        engine=Engine(draft_budget="by_load:4=2,8=1"),
        switches=Switches(refill=False),
        acceptance=Spec.of("profile", probabilities=[0.9, 0.5]),
    )
    scenario.save(tmp_path / "s.yaml")
    assert load_scenario(tmp_path / "s.yaml") == scenario


PINNED = {  # sweeps find what they have finished by these: a change of a hash throws results away
    "defaults": (Scenario(), "7c43c2699a2c281f"),
    "closed": (
        Scenario(study=Study("closed", clients=3, duration_s=2.5), engine={"draft_budget": "confidence"}),
        "8b7c121b938e5db3",
    ),
    "parameters": (Scenario(acceptance=Spec.of("profile", probabilities=[0.9, 0.5]), seed=7), "3d3004c6a4efde9a"),
}


@pytest.mark.parametrize(("scenario", "digits"), PINNED.values(), ids=PINNED)
def test_hashes_stay_as_they_are(scenario, digits):
    assert scenario.content_hash == digits


MAPPED = [
    (
        lambda: Scenario(engine={"method": "exspec"}),
        lambda: Scenario(engine=Engine(layout="realigned", scheduler="grouped")),
    ),
    (lambda: Scenario(engine="masked+fifo"), lambda: Scenario(engine=Engine(layout="masked"))),
    (
        lambda: Scenario(engine={"method": "speculative", "num_speculative_tokens": 3}),
        lambda: Scenario(engine=Engine(batch_size=1, num_speculative_tokens=3)),
    ),
    (
        lambda: Scenario(acceptance={"kind": "beta", "a": 4, "b": 2}),
        lambda: Scenario(acceptance=Spec.of("beta", a=4, b=2)),
    ),
    (lambda: Scenario(study={"num_requests": 9}), lambda: Scenario(study=Study(num_requests=9))),
    (
        lambda: Study("open", num_requests=9, arrivals={"kind": "fixed", "interval_s": 2}),
        lambda: Study("open", num_requests=9, arrivals=Spec.of("fixed", interval_s=2)),
    ),
    (lambda: Scenario().but(engine=Engine(layout="masked")), lambda: Scenario(engine=Engine(layout="masked"))),
    (lambda: Scenario().but(engine={"method": "exspec"}), lambda: Scenario().but(method="exspec")),
    (lambda: Scenario().but({"engine.batch_size": 2}, seed=1), lambda: Scenario(engine=Engine(batch_size=2), seed=1)),
    (lambda: Spec.of("values", tokens=np.array([3, 4])), lambda: Spec.of("values", tokens=range(3, 5))),
]


@pytest.mark.parametrize("case", range(len(MAPPED)))
def test_mappings_and_methods_stand_for_what_they_describe(case):
    given, meant = (make() for make in MAPPED[case])
    assert given == meant
    assert hash(given) == hash(meant)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scenario(engine={"method": "exspecc"}), "unknown method .*exspec.*: choose autoregressive"),
        (
            lambda: Scenario(engine={"method": "speculative", "batch_size": 4}),
            r"engine\.batch_size: method speculative has 1",
        ),
        (
            lambda: Scenario(study={"kind": "open", "num_requests": 5, "arrivals": {"kind": "x"}}),
            r"study\.arrivals\.kind",
        ),
        (lambda: Scenario(engine=Switches()), "engine must be a mapping, not Switches"),
        (lambda: Scenario().but({"engine.size": 4}), r"engine\.size: no such setting; allowed: .*layout.*, method"),
        (
            lambda: Scenario().but(engine__batch_size=4),
            "engine__batch_size: no such setting; allowed: name, seed.*, method",
        ),
        (lambda: Scenario().but({"engine.batchsize": 4}), r"no such setting; .* \(did you mean batch_size\?\)"),
        (lambda: Scenario(cost={"kind": "linear", "noise": 1}), r"unknown key noise; .* \(did you mean noise_cv\?\)"),
        (lambda: Scenario(cost={"kind": "linear", "cls": 1}), "cost: unknown key cls; allowed: verify_base_s"),
        (lambda: Scenario(engin="exspec"), r"^Scenario: unknown key engin; .* \(did you mean engine\?\)$"),
        (lambda: Engine(batchsize=4), r"^Engine: unknown key batchsize; .* \(did you mean batch_size\?\)$"),
        (lambda: Workload(prompt_token=4), r"^Workload: unknown key .* \(did you mean prompt_tokens\?\)$"),
        (lambda: Study(num_request=4), r"^Study: unknown key .* \(did you mean num_requests\?\)$"),
        (lambda: Service(replica=4), r"^Service: unknown key .* \(did you mean replicas\?\)$"),
        (lambda: Switches(refil=False), r"^Switches: unknown key .* \(did you mean refill\?\)$"),
        (lambda: replace(Scenario(), sed=1), r"^Scenario: unknown key sed; .* \(did you mean seed\?\)$"),
    ],
)
def test_mappings_are_refused_by_their_path(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("path", KINDS)
def test_every_default_may_be_given(path):
    for kind, rules in KINDS[path].items():
        optional = {kind: {name: rule for name, rule in rules.items() if isinstance(rule, tuple)}}
        defaults = {name: default for name, (_, default) in optional[kind].items()}
        assert as_spec(Spec.of(kind, **defaults), optional, path).resolved(optional) == defaults


def test_what_equals_a_default_and_is_of_another_type_is_refused():
    with pytest.raises(InputError, match=r"workload\.common\.prompts must be an integer"):
        Scenario().but({"workload.common": {"kind": "system_prompt", "tokens": 3, "prompts": True}})


def test_the_hash_ignores_the_name_and_sees_everything_else():
    assert Scenario(name="a").content_hash == Scenario(name="b").content_hash
    assert Scenario().content_hash != Scenario(seed=1).content_hash


@pytest.mark.parametrize("name", sorted(set(NAMED_METHODS) - {"autoregressive"}))
def test_named_methods_are_those_of_the_engine(name):
    config, engine = DecodeConfig(method=name), from_data({"engine": {"method": name}}).engine
    assert (engine.layout, engine.scheduler) == (config.resolved_method.layout, config.resolved_method.scheduler)
    assert (engine.batch_size, engine.resolved_window_size) == (config.resolved_batch_size, config.resolved_window_size)


def test_the_oracle_is_one_row_without_drafts():
    engine = from_data({"engine": {"method": "autoregressive"}}).engine
    assert (engine.batch_size, engine.num_speculative_tokens, engine.scheduler) == (1, 0, "fifo")


def test_layout_plus_scheduler():
    assert from_data({"engine": {"method": "masked+grouped", "batch_size": 3}}).engine == Engine(
        layout="masked", scheduler="grouped", batch_size=3
    )


H100 = {"kind": "roofline", "device": "h100", "target": "qwen3-8b"}
BAD = [
    ({"enginee": {}}, "unknown key enginee; allowed: name, seed"),
    ({"engine": {"batchsize": 4}}, "engine: unknown key batchsize; allowed: batch_size"),
    ({"engine": {"batch_size": 0}}, r"engine.batch_size must be an integer in \[1, 4096\], not 0"),
    ({"engine": {"scheduler": "grouped", "batch_size": 8, "window_size": 4}}, "engine.window_size 4 is smaller than"),
    ({"engine": {"method": "exspecc"}}, "unknown method .*exspec.*: choose autoregressive"),
    ({"study": {"kind": "open", "num_requests": 5, "arrivals": {"kind": "poisson", "rate": 1}}},
     "study.arrivals: unknown key rate; allowed: rate_per_s"),
    ({"study": {"kind": "open"}}, "study.num_requests or duration_s is missing"),
    ({"study": {"kind": "offline", "num_requests": 5, "warmup": "mser5"}}, "offline study has no steady state"),
    ({"study": {"kind": "closed", "clients": 2}}, "study.duration_s is missing"),
    ({"study": {"num_requests": 5, "duration_s": 2.0}}, "study.duration_s has no effect in a study of kind offline"),
    ({"study": {"num_requests": 5, "clients": 2}}, "study.clients has no effect in a study of kind offline"),
    ({"study": {"num_requests": 5, "arrivals": {"kind": "poisson", "rate_per_s": 2.0}}},
     "study.arrivals has no effect in a study of kind offline: leave it out"),
    ({"study": {"kind": "open", "num_requests": 5, "clients": 2}}, "study.clients has no effect in a study of kind o"),
    ({"study": {"kind": "closed", "clients": 2, "duration_s": 2.0, "num_requests": 5}},
     "study.num_requests has no effect in a study of kind closed"),
    ({"cost": {"kind": "linear", "verify_base": 0.02}}, "cost: unknown key verify_base; allowed: verify_base_s"),
    ({"cost": {"kind": "table", "outside": "refuse"}}, "cost.calibration is missing: table needs calibration$"),
    ({"engine": {"draft_budget": "by_load"}}, "engine.draft_budget must look like by_load:1=7,4=5,16=2, not 'by_load'"),
    ({"engine": {"drafter": "ngram", "draft_budget": "confidence"}}, "reads the draft's probabilities.*choose drafter"),
    ({"engine": {"draft_budget": "confidence"}, "switches": {"keep_bonus": False}}, "switches.keep_bonus needs engine"),
    ({"engine": {"drafter": "hybrid"}, "switches": {"k_policy": "batch_min"}}, "switches.k_policy needs engine"),
    ({"engine": {"drafter": "ngram"}, "cost": {**H100, "draft": "qwen3-0.6b"}}, "runs no draft: leave out cost.draft"),
    ({"service": {"kv_capacity_bytes": 1}}, "has no effect while cost.kv_bytes_per_token is 0: give the bytes of"),
    ({"switches": {"serve_first": "newest"}}, "switches.serve_first has no effect without engine.scheduler grouped"),
    ({"engine": {"window_size": 9}}, "engine.window_size has no effect without engine.scheduler grouped: leave it out"),
    ({"engine": {"method": "paged", "block_size": 8}},
     r"block_size has no effect without engine.num_blocks or service.kv_capacity_bytes or cost.kind roofline: leave"),
    ({"switches": {"wait_for_rows": 4}}, r"wait_for_rows has no effect without study.kind open\|closed: leave it out"),
    ({"workload": {"output_tokens": {"kind": "uniform", "low_tokens": 9, "high_tokens": 1}}},
     "workload.output_tokens.low_tokens 9 is larger than high_tokens 1"),
    ({"engine": {"draft_budget": "confidence"}, "acceptance": {"kind": "profile", "probabilities": [0.9, 0.5]}},
     "engine.draft_budget 'confidence' reads probabilities, which acceptance.kind profile lacks: choose another"),
    ({"engine": {"drafter": "hybrid"}, "acceptance": {"kind": "profile", "probabilities": [0.9, 0.5]}},
     "engine.drafter 'hybrid' drafts behind what it has found, at places that acceptance.kind profile lacks"),
    ({"cost": H100}, "engine.drafter 'model' runs a draft, and cost has none: give cost.draft, or set engine.num_spec"),
    ({"cost": H100, "engine": {"drafter": "hybrid"}}, "engine.drafter 'hybrid' runs a draft, and cost has none"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "message"), BAD)
def test_bad_input_is_one_line_that_names_file_and_field(tmp_path, data, message):
    path = save(tmp_path, data)
    with pytest.raises(InputError, match=message) as error:
        load_scenario(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"acceptance": {"kind": "profile", "probabilities": [0.9, 0.9]}},
        {"engine": {"draft_budget": "by_load:1=2"}},
        {"confidence": {"kind": "trace", "path": "run.ndjson"}},
    ],
)
def test_a_profile_goes_with_budgets_that_read_no_drawn_probabilities_or_the_same_of_all_drafts(changes):
    made = {"engine": {"draft_budget": "confidence"}, "acceptance": {"kind": "profile", "probabilities": [0.9, 0.5]}}
    assert Scenario(**made | changes).acceptance == Spec.of(**(made | changes)["acceptance"])


def test_numbers_of_numpy_are_numbers(tmp_path):
    ours = Scenario(
        seed=np.int64(3),
        engine=Engine(
            layout="masked",
            batch_size=np.int32(4),
            compaction_threshold=np.float32(0.5),
            draft_budget="by_load:4=2",
        ),
        acceptance=Spec.of("profile", probabilities=[np.float32(0.5), np.float64(0.25)]),
    )
    assert ours == Scenario(
        seed=3,
        engine=Engine(
            layout="masked", scheduler="fifo", batch_size=4, compaction_threshold=0.5, draft_budget="by_load:4=2"
        ),
        acceptance=Spec.of("profile", probabilities=[0.5, 0.25]),
    )
    ours.save(tmp_path / "s.yaml")
    assert load_scenario(tmp_path / "s.yaml") == ours
    assert ours.content_hash == load_scenario(tmp_path / "s.yaml").content_hash


@pytest.mark.parametrize("value", [np.True_, np.float64(4.0), np.array([4])])
def test_what_is_no_integer_is_refused(value):
    with pytest.raises(InputError, match="batch_size must be an integer"):
        Engine(batch_size=value)


def test_a_relative_path_is_sought_beside_its_file_first(tmp_path, monkeypatch, calibration):
    """Then in the working directory, where what is not found at all is sought as it stands."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, tokens in ((here, 5), (there, 9)):
        folder.mkdir()
        (folder / "both.csv").write_text(f"tokens\n{tokens}\n")
    (here / "one.csv").write_text("tokens\n7\n")
    calibration.rename(there / "mine")
    monkeypatch.chdir(here)

    def loaded(path):
        prompts = {"kind": "file", "path": path, "column": "tokens"}
        cost = {"kind": "table", "calibration": "mine"}
        return load_scenario(save(there, {"workload": {"prompt_tokens": prompts}, "cost": cost}))

    assert loaded("both.csv").workload.prompt_tokens["path"] == str(there / "both.csv")
    assert loaded("one.csv").workload.prompt_tokens["path"] == "one.csv"
    assert loaded(str(here / "both.csv")).workload.prompt_tokens["path"] == str(here / "both.csv")
    assert loaded("one.csv").cost["calibration"] == str(there / "mine")


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load_scenario(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("a: [")
    with pytest.raises(InputError, match="not YAML"):
        load_scenario(tmp_path / "broken.yaml")


def test_numbers_are_read_as_yaml_1_2_writes_them(tmp_path):
    (tmp_path / "s.yaml").write_text("name: '1e-3'\ncost: {kind: linear, verify_base_s: 1e-3, draft_base_s: 2E-4}\n")
    read = load_scenario(tmp_path / "s.yaml")
    assert (read.name, read.cost["verify_base_s"], read.cost["draft_base_s"]) == ("1e-3", 0.001, 0.0002)
    read.save(tmp_path / "again.yaml")
    assert load_scenario(tmp_path / "again.yaml") == read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nname: [a", r"s.yaml: not YAML: while parsing a flow sequence, .*expected .* in line 2$"),
        ("seed: 1\nname: a: b", r"s.yaml: not YAML: mapping values are not allowed here in line 2$"),
        ("name: 2001-99-99", r"s.yaml: not YAML: month must be in 1..12(, not 99)?$"),
    ],
)
def test_what_is_no_yaml_is_named_with_its_line(tmp_path, text, message):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_scenario(tmp_path / "s.yaml")
