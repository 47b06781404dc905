"""What a caller may import: it exists, is quick to load, and its types reach editors and type checkers."""

import ast
import importlib
import re
from pathlib import Path
from typing import get_type_hints

import pytest
from mypy import api

import refimpl
from refimpl.core.keywords import Settings, VerifySettings

ROOT = Path(__file__).parents[3]
PACKAGES = ["refimpl", "simulator"]

TYPED = """
from refimpl import DecodeConfig, TokenEvent, generate, load_pair, stream, verify
from simulator import Scenario, compare, find_capacity, metric_names, plots, simulate

pair, scenario = load_pair(), Scenario()
reveal_type(pair)
reveal_type(generate(pair, ["a"], method="exspec", top_p=0.9))
reveal_type(generate(pair, ["a"]).sequences[0])
reveal_type(next(iter(stream(pair, ["a"]))))
reveal_type(verify(pair, ["a"], batch_sizes=[2]))
reveal_type(DecodeConfig().checks)
reveal_type(simulate(scenario))
reveal_type(compare(scenario, scenario))
reveal_type(find_capacity(scenario).rate_per_s)
reveal_type(metric_names())
plots.waterfall
"""
TYPES = [
    "Pair", "Result", "GeneratedSequence", "TokenEvent", "VerifyReport",
    "Literal['off'] | Literal['host'] | Literal['device'] | Literal['oracle'] | None",
    "Results", "Comparison", "float", "tuple[str, ...]",
]  # fmt: skip
WRONG = """
from simulator import simulat

generate(load_pair(), ["a"], metod="exspec")
generate(load_pair(), ["a"], top_k="many")
verify(load_pair(), ["a"], method="exspec")
plots.waterfal
"""


def test_types_reach_the_caller_and_slips_are_seen(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    file = tmp_path / "snippet.py"
    file.write_text(TYPED + WRONG)
    output, problems, _ = api.run(["--config-file", str(ROOT / "pyproject.toml"), str(file)])
    assert not problems
    lines = output.splitlines()
    wrong = [TYPED.count("\n") + i for i, line in enumerate(WRONG.splitlines(), 1) if line]
    assert [int(line.split(":")[1]) for line in lines if ": error:" in line] == wrong
    found = [re.search(r'Revealed type is "(.*)"', line) for line in lines]
    plain = [re.sub(r"\b(\w+\.)+(?=\w)", "", match[1]) for match in found if match]
    assert plain == TYPES


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there(package):
    module = importlib.import_module(package)
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert set(dir(module)) >= set(module.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = module.nonsense


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_names_that_are_loaded(package):
    tree = ast.parse((ROOT / package / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {(node.module, alias.asname or alias.name) for node in block.body for alias in node.names}
    module = importlib.import_module(package)
    loaded = {(home, name) for name, home in module._HOMES.items()}
    assert seen - {("simulator", "plots")} == loaded
    assert {name for _, name in seen} == set(module.__all__)


def test_documented_names_are_public():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    imports = re.findall(r"^from (refimpl|simulator) import (.+)$", text, re.M)
    names = {(package, name.strip()) for package, line in imports for name in line.split(",")}
    names |= set(re.findall(r"^(?:\w+ = )?(refimpl|simulator)\.(\w+)\(", text, re.M))
    assert {name for _, name in names} >= {"load_pair", "generate"}
    assert all(name in importlib.import_module(package).__all__ for package, name in names)


def test_settings_are_those_of_the_configuration():
    parts = (refimpl.DecodeConfig, refimpl.SamplingConfig)
    assert get_type_hints(Settings) == {name: hint for part in parts for name, hint in get_type_hints(part).items()}
    assert Settings.__optional_keys__ == set(get_type_hints(Settings))
    assert get_type_hints(VerifySettings).keys() ^ get_type_hints(Settings) == {
        "method",
        "batch_size",
        "max_prompt_tokens",
    }
