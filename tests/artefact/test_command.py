"""The command `raggedspec`: quick to answer, everything in one place, options that group and complete."""

import json
import re
import sys
import tomllib
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, get_args

import pytest
import typer
from typer.testing import CliRunner

import raggedspec.__main__
import refimpl
import refimpl.cli
import simulator.cli
from raggedspec.cli import app, main
from refimpl import prompts
from refimpl.bench.forced import iid_lengths
from refimpl.commands import measure, options
from refimpl.commands.measure import RepeatOptions, WorkOptions
from refimpl.commands.options import (
    DecodingOptions,
    DraftingOptions,
    EngineOptions,
    MethodOptions,
    ModelOptions,
    RunOptions,
)
from refimpl.core.config import DecodeConfig, SamplingConfig, forced, make_config
from refimpl.core.console import run_application
from refimpl.core.option_groups import command, option
from refimpl.core.provenance import command_line
from refimpl.pairs.names import DTYPES, PRESETS
from tests.commands import RUN, run

ROOT = Path(__file__).parent.parent.parent
HEAVY = ("torch", "transformers", "pandas", "numpy", "scipy", "matplotlib")


@pytest.mark.parametrize("words", ["--help", "sim --help", "generate --help", "sim run --help", "--version"])
def test_help_loads_nothing_heavy(words):
    code = f"{RUN}; sys.argv[1:] = {words.split()}\ntry: main()\nfinally: print(set({HEAVY}) & set(sys.modules))"
    found = run(code)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "set()"


def test_it_is_installed_as_a_script():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert EntryPoint("raggedspec", scripts["raggedspec"], "console_scripts").load() is raggedspec.__main__.main


def names(application):
    """Commands of a typer application and of those that it takes in without a name."""
    own = {command.name or command.callback.__name__.replace("_", "-") for command in application.registered_commands}
    return own.union(*(names(group.typer_instance) for group in application.registered_groups if not group.name))


def test_it_has_every_command_of_engine_and_simulator():
    assert names(app) == names(refimpl.cli.app) >= {"generate", "verify", "tie-or-bug", "conformance"}
    groups = {group.name: group.typer_instance for group in app.registered_groups if group.name}
    assert groups == {"sim": simulator.cli.app}
    assert names(simulator.cli.app) >= {"run", "compare", "sweep", "plan"}


def test_version():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"raggedspec {refimpl.__version__}\n"


@pytest.mark.parametrize(("words", "code"), [("sim run -s method=exspec", 2), ("generate --help", 0)])
def test_without_the_simulators_libraries_the_engine_still_runs(words, code):
    found = run(f"import sys; sys.modules['yaml'] = None; {RUN}; sys.argv[1:] = {words.split()}; main()")
    assert found.returncode == code, found.stderr
    assert found.stderr == ("error: yaml is not installed: pip install 'raggedspec[simulator]'\n" if code else "")


def help_of(*words, columns=160):
    return CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": str(columns), "TERM": "dumb"}).stdout


@pytest.mark.parametrize("command", sorted(names(refimpl.cli.app)))
def test_every_option_stands_in_a_panel_and_every_command_has_an_example(command):
    panels = re.findall(r"^╭─ (\w+) ─", help_of(command), re.M)
    order = ["Options", "Models", "Prompts", "Sampling", "Engine", "Output"]
    assert sorted(panels, key=order.index) == sorted(set(panels), key=order.index)
    required = {"Options", "Engine", "Output"}
    assert required <= set(panels) <= set(order)
    outside = help_of(command).partition("╭─ Options")[2].partition("╭─ ")[0]
    assert re.findall(r"--[a-z-]+", outside) == ["--help"]
    assert f"raggedspec {command} --" in help_of(command)


def test_help_shows_choices_and_what_no_value_means():
    shown = help_of("generate")
    assert "Run-time checks. One of off, host, device, oracle." in shown
    assert "[default: (device on a CPU, else host)]" in shown
    assert re.search(r"--checks .*\[default: off\]", help_of("bench"))
    assert "module:make:argument" in help_of("conformance"), "rich turns some words between colons into pictures"


@pytest.mark.parametrize("command", sorted(names(refimpl.cli.app)))
def test_help_of_eighty_columns_has_every_name_of_an_option_whole(command):
    parameters = typer.main.get_command(app).commands[command].params
    shown = help_of(command, columns=80)
    assert max(map(len, shown.splitlines())) == 80
    wanted = {name for each in parameters for name in (*each.opts, *each.secondary_opts)}
    assert len(wanted) > 1
    assert wanted - set(re.findall(r"(?<![\w-])--?[a-z][\w-]*(?![\w-]|…)", shown)) == set()


DEFAULTS = {  # where a command's differ from those of generate
    "verify": {"max_new_tokens": 50},
    "tie-or-bug": {"max_new_tokens": 50, "batch_sizes": "8", "dtype": "bfloat16"},
    "bench": {
        "max_new_tokens": 48, "batch_sizes": "1,8", "checks": "off", "acceptance": "natural",
        "num_speculative_tokens": "5",
    },
    "anatomy": {
        "batch_sizes": "1,2,4,8", "methods": "eqspec,exspec,masked,rollback,inplace", "acceptance": "rate:0.228",
    },
    "calibrate": {},
    "demo": {"max_new_tokens": 24, "limit": 16, "checks": "host"},
}  # fmt: skip


@pytest.mark.parametrize("command", DEFAULTS)
def test_defaults_are_those_of_generate_and_verify_but_for_these(command):
    commands = typer.main.get_command(app).commands
    usual = {p.name: p.default for name in ("verify", "generate") for p in commands[name].params}
    own = {p.name: p.default for p in commands[command].params if p.name in usual}
    usual["json_"] = False
    assert own == {name: usual[name] for name in own} | DEFAULTS[command]


def test_an_option_of_the_engine_is_one_of_every_command_that_decodes():
    commands = typer.main.get_command(app).commands
    for name in ("generate", "verify", "tie-or-bug", "bench"):
        assert {field.name for field in fields(EngineOptions)} <= {p.name for p in commands[name].params}
    engine = DraftingOptions.but(set_=["kv_memory_gib=2.0", "window_size=9"], checks="host")
    settings = measure.bench_settings(ModelOptions(), WorkOptions(), RunOptions(), engine, RepeatOptions())
    config = settings.config("exspec", 2)
    assert (config.kv_memory_gib, config.window_size, config.checks) == (2.0, 9, "host")
    assert settings.cuda_graphs is False


@pytest.mark.parametrize(
    ("given", "drafters", "recorded"),
    [
        ({}, None, True),
        ({"checks": "device"}, None, False),
        ({"drafter": "ngram"}, None, False),
        ({"draft_budget": "confidence"}, None, False),
        ({"set_": ["execution=overlapped"]}, None, False),
        ({}, "model,ngram", False),
    ],
)
def test_a_benchmark_on_a_gpu_records_rounds_where_it_can(given, drafters, recorded):
    engine, repeat = DraftingOptions.but(**{"checks": "off", **given}), RepeatOptions(drafters=drafters)
    settings = measure.bench_settings(ModelOptions(device="cuda"), WorkOptions(), RunOptions(), engine, repeat)
    assert settings.cuda_graphs is recorded
    settings.config("inplace", 2)


def test_a_benchmark_has_a_row_for_every_drafter_number_of_drafts_and_acceptance():
    """Named after what there are several of; the same forced acceptance is another distribution for another k."""
    engine, work = DraftingOptions.but(num_speculative_tokens="2,3"), WorkOptions(acceptance="natural,iid:0.5")
    drafters = RepeatOptions(drafters="ngram")
    settings = measure.bench_settings(ModelOptions(), work, RunOptions(), engine, drafters)
    rules = {k: forced(iid_lengths(0.5, k)) for k in (2, 3)}
    assert settings.num_speculative_tokens == 2
    assert settings.variants == tuple(
        (f"ngram k={k} {name}", {"num_speculative_tokens": k, "drafter": "ngram", **more})
        for k in (2, 3)
        for name, more in (("natural", {}), ("iid:0.5", {"acceptance": rules[k]}))
    )
    alone = measure.bench_settings(ModelOptions(), WorkOptions(), RunOptions(), DraftingOptions(), RepeatOptions())
    assert alone.variants == (("", {"num_speculative_tokens": 5}),)


@pytest.mark.parametrize(("random", "given", "count"), [(True, None, 4), (False, None, 0), (True, 2, 2), (True, 0, 0)])
def test_a_benchmark_on_random_weights_keeps_rows_full(random, given, count):
    models, work = ModelOptions(random_weights=random), WorkOptions(prompts_per_row=given)
    settings = measure.bench_settings(models, work, RunOptions(), DraftingOptions(), RepeatOptions())
    assert settings.prompts_per_row == count


def test_every_setting_can_be_given_on_the_command_line():
    """Those that have no option of their own by --set, whose values are JSON, or text."""
    groups = (EngineOptions, DecodingOptions, MethodOptions)
    options = {field.name for group in groups for field in fields(group)}
    others = {field.name for field in fields(DecodeConfig)} - options - {"sampling"}
    assert others >= {"block_size", "execution", "stop_token_ids"}
    usual = {name: json.dumps(getattr(DecodeConfig(), name)) for name in others}
    given = EngineOptions.but(set_=[f"{name}={value}" for name, value in usual.items()]).settings()
    assert make_config(**given) == DecodeConfig()
    assert options >= {field.name for field in fields(SamplingConfig)}


def test_choices_are_those_of_the_engine():
    """Options name them anew, since help loads no tensors."""
    assert get_args(options.Dtype) == tuple(DTYPES)
    assert ("tiny", *PRESETS) == options.PAIRS
    assert options.Turns == prompts.Turns


def test_a_head_can_be_given_where_a_drafter_can():
    for name, known in typer.main.get_command(app).commands.items():
        names = {parameter.name for parameter in known.params}
        assert ("head" in names) == (names >= {"pair", "drafter"}), name


WRONG = [
    ("frobnicate", "no such command 'frobnicate': choose generate, verify, "),
    ("--bogus", "no such option: --bogus"),
    ("generate --chekcs off", "no such option: --chekcs. Did you mean --checks?"),
    ("generate --checks some", "--checks: 'some' is not one of 'off', 'host', 'device', 'oracle'"),
    ("generate --limit 0", "--limit"),
    ("generate --limit", "option '--limit' requires an argument"),
    ("generate extra", "unexpected extra argument"),
    ("generate --method eqspce", "unknown method 'eqspce' (did you mean eqspec?): choose autoregressive"),
    ("verify --method inplace,paged+fifp", "unknown method 'paged+fifp' (did you mean paged+fifo?): choose"),
    ("generate --prompt a --prompts b.txt", "--prompt and --prompts exclude each other: give texts or a file"),
    ("generate --set stop_token_ids", "--set must look like NAME=VALUE, not 'stop_token_ids'"),
    ("sim rum", "no such command 'rum'"),
    ("sim run no-such.yaml", "no-such.yaml"),
    ("sim run --bogus", "no such option: --bogus"),
    ("sim sweep a.yaml", "missing option '--out'"),
    ("sim study budgets --duration 0", "--duration"),
]


def quoted(message):
    """What newer versions of click say of an unknown option, beside older ones of typer."""
    return re.sub(r"(no such option|Did you mean):? (--\w+)", r"\1 '\2'", message)


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_a_wrong_command_line_is_one_line_and_code_2(words, said, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["raggedspec", *words.split()])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    assert (end.value.code, printed.out) == (2, "")
    assert printed.err.startswith("error: ")
    assert any(each in printed.err for each in (said, quoted(said)))
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("module", ["refimpl", "simulator", "raggedspec"])
def test_every_module_that_runs_says_so_in_one_line(module):
    found = run(f"import runpy, sys; sys.argv = ['x', '--bogus']; runpy.run_module('{module}', run_name='__main__')")
    said = "error: no such option: --bogus\n"
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr in (said, quoted(said))


def test_without_a_command_there_is_help(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["raggedspec"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code in (0, 2)  # old versions of typer and new ones
    assert "generate" in capsys.readouterr().out


def test_a_bug_keeps_its_traceback():
    def broken(*_, **__):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_application(broken)


@pytest.mark.parametrize(
    ("argv", "spec", "recorded"),
    [
        (["/usr/bin/raggedspec", "demo"], None, "raggedspec demo"),
        (["/x/refimpl/__main__.py", "demo"], ("refimpl.__main__", "/x/refimpl/__main__.py"), "python -m refimpl demo"),
        (["/x/a/b.py", "demo"], ("a.b", "/x/a/b.py"), "python -m a.b demo"),
        ([str(ROOT / "tools" / "gpu.py"), "a b"], None, "python tools/gpu.py 'a b'"),
        (["/elsewhere/launch.py"], None, "python launch.py"),
        (["refimpl", "demo"], ("pytest.__main__", "/x/pytest/__main__.py"), "refimpl demo"),
    ],
)
def test_provenance_records_what_was_run(monkeypatch, argv, spec, recorded):
    monkeypatch.setattr("sys.argv", argv)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec and SimpleNamespace(name=spec[0], origin=spec[1]))
    assert command_line() == recorded


def test_groups_become_options_and_are_built_again():
    @dataclass(frozen=True, kw_only=True)
    class Group:
        size: Annotated[int, option("Engine", "Size.", none="all")] = 1
        name: Annotated[str, option("Engine", "Name.")]

    @dataclass(frozen=True, kw_only=True)
    class More(Group):
        deep: Annotated[bool, option("Output", "Deep.", "--deep")] = False

    called, application = [], typer.Typer()

    @command(application, "some")
    def some(*, group: More = More(size=3, name="a"), own: Annotated[int, option("Output", "Own.")] = 4) -> None:
        called.append((group, own))

    assert (
        run_application(application, []) == run_application(application, ["--deep", "--size", "5", "--own", "6"]) == 0
    )
    assert called == [(More(size=3, name="a"), 4), (More(size=5, name="a", deep=True), 6)]

    @command(other := typer.Typer(), "other")
    def another(*, group: Group) -> None:
        pytest.fail("a name is required")

    assert run_application(other, []) == 2
    with pytest.raises(ValueError, match="duplicate parameter name"):

        @command(typer.Typer(), "twice")
        def twice(*, group: Group, more: More) -> None:
            pass
