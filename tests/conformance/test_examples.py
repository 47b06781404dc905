"""Adapters of other engines compile, vLLM's speaks the protocol with a stand-in, and the job for pull requests runs."""

import importlib.util
import json
import os
import py_compile
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from refimpl.conformance.command_engine import CommandEngine
from refimpl.conformance.kit import check_engine
from refimpl.conformance.limits import Limits
from refimpl.pairs.names import TINY

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
SPEC = importlib.util.spec_from_file_location("engine_runs", ROOT / "tools" / "engines" / "run.py")
engine_runs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(engine_runs)
ASKED = (
    "equals_reference", "stop_is_exact", "settings_are_of_the_row", "logprobs_equal_reference",
    "given_drafts_change_nothing", "acceptance_follows_the_drafts",
)  # fmt: skip
# Each token is the sum of the row so far; FAULT is added after a round in which a row had no drafts.
STAND_IN = """
from types import SimpleNamespace as Some
import numpy as np
import given

SamplingParams = Some
FAULT = {fault}

class LLM:
    def __init__(self, target, speculative_config, **_):
        self.llm_engine = Some(model_config=Some(get_vocab_size=lambda: 61))
        self.drafts = speculative_config and given.GivenDrafts(Some(speculative_config=Some(**speculative_config)))
        self.metrics = [Some(name=f"vllm:spec_decode_num_{{name}}", value=0)
                        for name in ("draft_tokens", "accepted_tokens", "drafts")]

    def get_metrics(self):
        return self.metrics

    def generate(self, prompts, params, use_tqdm):
        return [self.decode(list(row["prompt_token_ids"]), own) for row, own in zip(prompts, params, strict=True)]

    def decode(self, row, own):
        begin, drafts = len(row), None
        row.append(sum(row) % 61)
        while not (ids := ended(row[begin:], own)):
            if self.drafts:
                (drafts,) = self.drafts.propose([row[-1:]], [len(row)], np.array([row]))
            left = own.max_tokens - len(row) + begin
            right = min(left, self.verify(row, drafts or []))
            row.append((sum(row) + FAULT * (drafts == [])) % 61)
            for metric, more in zip(self.metrics, (len(drafts or []), right, 1)):
                metric.value += more
        return Some(outputs=[Some(token_ids=ids, logprobs=[{{token: Some(logprob=0.0)}} for token in ids])])

    def verify(self, row, drafts):
        for right, draft in enumerate(drafts):
            if draft != sum(row) % 61:
                return right
            row.append(draft)
        return len(drafts)

def ended(tokens, own):
    for at, token in enumerate(tokens[: own.max_tokens], 1):
        if at == own.max_tokens or token in own.stop_token_ids:
            return tokens[:at]
"""


def test_examples_compile(tmp_path: Path) -> None:
    assert len(EXAMPLES) > 4
    for path in EXAMPLES:
        py_compile.compile(str(path), cfile=str(tmp_path / "compiled"), doraise=True)


@pytest.mark.parametrize("fault", [0, 1])
def test_given_drafts_show_what_is_wrong_without_drafts(
    fault: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm.py").write_text(STAND_IN.format(fault=fault))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    engine = CommandEngine(f"{sys.executable} {ROOT}/examples/vllm/server.py TARGET --drafts given --k 3")
    try:
        report = check_engine(engine, properties=ASKED, max_examples=3, shrink=False, limits=Limits(k=3))
    finally:
        engine.close()
    failed = {verdict.property for verdict in report.verdicts if verdict.status != "pass"}
    assert ("given_drafts_change_nothing" in failed) if fault else not failed, report


@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "draft", "most"), [("generate", "", None), ("assisted", "draft", 1)])
def test_transformers_conforms_where_it_can(mode: str, draft: str, most: int | None) -> None:
    """At a stop token assisted generation ends one token early, and it takes one prompt at a time."""
    wanted = ["equals_reference", "rows_are_independent"] + ["stop_is_exact"] * (not draft)
    command = f"{ROOT}/examples/transformers/server.py {TINY}/target {mode} {TINY / draft if draft else ''}"
    with closing(CommandEngine(f"{sys.executable} {command}")) as engine:
        limits = Limits(max_batch=most, prompt_tokens=40, new_tokens=20)
        report = check_engine(engine, properties=wanted, max_examples=2, limits=limits)
    assert [verdict.status for verdict in report.verdicts] == ["pass"] * len(wanted), report


def test_the_job_for_pull_requests_runs_the_kit(tmp_path: Path) -> None:
    job = yaml.safe_load((ROOT / "docs" / "engines.md").read_text().partition("```yaml\n")[2].partition("```")[0])
    (command,) = [step["run"] for step in job["jobs"]["kit"]["steps"] if "conformance --" in step.get("run", "")]
    command = command.replace("kit/bin/raggedspec", f"{sys.executable} -m raggedspec")
    command = command.replace("--max-examples 5", "--max-examples 1")
    command = command.replace("tests/kit_adapter.py", str(ROOT / "refimpl" / "conformance" / "example_server.py"))
    run = subprocess.run(
        shlex.split(command), cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=False
    )
    assert run.returncode == 0, run.stdout
    assert (tmp_path / "report.json").exists()


@pytest.mark.parametrize("name", engine_runs.ENGINES)
def test_reports_are_of_the_runs_that_are_declared(name: str) -> None:
    text = (ROOT / "docs" / "results" / "engines" / f"{name}.json").read_text()
    recorded = {run["name"]: run["command"] for run in json.loads(text)}
    engine, work = engine_runs.ENGINES[name], Path(".work") / "engines" / name
    declared = {
        run["name"]: shlex.join(
            ["raggedspec", "conformance", *engine_runs.words(f"{run['kit']} {engine['options']}", work)]
        )
        for run in engine["runs"]
    }
    assert recorded == declared
    assert engine_runs.without_paths(text, work) == text, "no folders of a machine"
