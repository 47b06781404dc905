"""What commands write, whom they run, and what they leave out."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest

import refimpl.cli
import simulator.cli
from refimpl import generate, load_pair, verify
from refimpl.core.option_groups import as_file, as_folder
from refimpl.judging.method_runs import runs_to_verify
from tests.commands import run_cli

SHORT = ("--limit", "3", "--max-new-tokens", "6")


def test_generate_writes_its_lines_and_a_trace(monkeypatch, capsys, tmp_path):
    prompts, output, trace = tmp_path / "p.txt", tmp_path / "out.jsonl", tmp_path / "trace.ndjson"
    prompts.write_text("import os\ndef main(\nclass A:\n")
    words = ("--prompts", prompts, "--method", "exspec", "--batch-size", "2", "--output", output, "--trace", trace)
    code, _ = run_cli(monkeypatch, capsys, "generate", *SHORT, *map(str, words))
    assert not code
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2]
    header, *rows = (json.loads(line) for line in trace.read_text().splitlines())
    assert (header["schema"], header["scheduler"]) == ("raggedspec.trace/1", "grouped")
    assert sum(row["kept"] for row in rows) == sum(header["output_lens"])


def test_with_json_stdout_holds_nothing_else(monkeypatch, capsys):
    words = ("--methods", "eqspec,inplace", "--batch-sizes", "2", "--json")
    code, output = run_cli(monkeypatch, capsys, "verify", *SHORT, *words)
    assert not code
    report = json.loads(output.out)
    assert (report["prompts"], bool(report["meta"]["device"])) == (3, True)
    found = [(row["method"], row["exact"], row["violations"]) for row in report["results"]]
    assert found == [("eqspec", 3, []), ("inplace", 3, [])]
    assert "one-at-a-time" in output.err


@pytest.mark.parametrize("application", [refimpl.cli.app, simulator.cli.app])
def test_every_option_of_a_path_says_whether_it_is_a_file(application):
    groups = [application, *(group.typer_instance for group in application.registered_groups)]
    commands = [command.callback for group in groups for command in group.registered_commands]
    hints = [hint for command in commands for hint in get_type_hints(command, include_extras=True).values()]
    declared = [get_args(hint)[:2] for hint in hints if get_origin(hint) is Annotated]
    parsers = [option.parser for kind, option in declared if Path in (kind, *get_args(kind))]
    assert len(parsers) > 10
    assert {*parsers} == {as_file, as_folder}


def test_help_in_a_locale_of_ascii_alone():
    ascii_ = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    arguments = [sys.executable, "-m", "refimpl", "generate", "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, env=os.environ | ascii_, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--help" in done.stdout


@pytest.mark.parametrize(
    ("wish", "layouts"), [({"cuda_graphs": True}, {"inplace"}), ({"bitwise": True}, {"inplace", "paged"})]
)
def test_all_methods_are_those_that_can(llama, wish, layouts):
    report = verify(llama, [[1, 2], [3]], batch_sizes=[2], max_new_tokens=3, checks="host", **wish)
    assert {row.method.partition("+")[0] for row in report.results} == layouts
    assert report.exact


@pytest.mark.parametrize("settings", [{}, {"shape_stable": True}])
def test_all_methods_are_those_that_can_overlap(settings):
    runs = runs_to_verify("all", [2], {"execution": "overlapped", **settings})
    assert runs == [("inplace+fifo", 2), ("paged+fifo", 2)]


def test_processes_share_the_work(llama):
    """Prompts may come one by one."""
    prompts = (tokens for tokens in ([1, 2, 3], [4]))
    report = verify(llama, prompts, methods="inplace,eqspec", batch_sizes=[2], max_new_tokens=4, jobs=8)
    assert [row.method for row in report.results] == ["inplace", "eqspec"]
    assert report.exact


@pytest.mark.filterwarnings("ignore:[0-9]+ tasks which were:UserWarning", "ignore:[0-9]+ tasks have been:UserWarning")
def test_processes_are_let_go_at_an_error(llama):
    def fail(task, *_):
        assert task != "methods", "told too early"

    with pytest.raises(AssertionError, match="told too early") as error:
        verify(llama, [[1, 2, 3]], methods="inplace,eqspec", batch_sizes=[2], max_new_tokens=4, jobs=2, progress=fail)
    (pending,) = [frame.frame.f_locals["pending"] for frame in error.traceback if "pending" in frame.frame.f_locals]
    assert pending.gi_frame is None


def test_cut_prompts_are_counted(llama):
    result = generate(llama, [[1] * 30, [2] * 3], max_prompt_tokens=10, max_new_tokens=2)
    assert [s.num_prompt_tokens_cut for s in result.sequences] == [20, 0]
    assert result.stats.num_prompt_tokens_cut == 20


def test_a_long_prompt_that_is_cut_raises_no_alarm():
    records: list[logging.LogRecord] = []
    handler, logger = logging.Handler(), logging.getLogger("transformers")
    handler.emit = records.append  # type: ignore[method-assign]
    pair = load_pair("tiny")
    logger.addHandler(handler)
    try:
        generate(pair, ["word " * 3000], max_prompt_tokens=20, max_new_tokens=2, method="autoregressive")
    finally:
        logger.removeHandler(handler)
    assert [record.getMessage() for record in records] == []


def test_a_budget_of_tokens_is_for_the_scheduler_that_has_one(llama):
    """As a window is; drafts and budget need not fit for the others."""
    found = [generate(llama, [[1]], max_new_tokens=4, token_budget=budget).sequences for budget in (None, 3)]
    assert found[0] == found[1]
