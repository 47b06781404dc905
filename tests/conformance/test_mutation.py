"""The page on mutation testing is that of its data, each survivor has a reason, and the driver changes what it says."""

import ast
import builtins
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import mutants
import mutate
import mutation_report
import planted

DATA = json.loads(mutation_report.DATA.read_text())


def test_the_page_is_that_of_the_data():
    assert mutation_report.PAGE.read_text() == mutation_report.as_markdown(DATA, mutation_report.read_reasons())


def test_every_survivor_has_a_reason_and_nothing_else_has():
    reasons = mutation_report.read_reasons()
    assert {row["mutant"] for row in mutation_report.survivors(DATA)} == set(reasons)
    assert all(reason["kind"] in mutation_report.KINDS and reason["reason"] for reason in reasons.values())


def test_files_that_were_judged_exist():
    files = {row["mutant"].partition(":")[0] for row in DATA["outcomes"]} | set(DATA["mutants"])
    assert files <= set(mutate.FILES)
    assert [file for file in mutate.FILES if not (mutants.ROOT / file).exists()] == []


def test_nine_of_ten_mutants_are_killed_and_of_those_in_files_as_they_are():
    told, stale = mutation_report.told_stale(DATA), mutation_report.stale(DATA)
    as_they_are = {"outcomes": [row for row in DATA["outcomes"] if row not in stale]}
    assert mutation_report.share_killed(DATA) >= 0.9, told
    assert as_they_are["outcomes"], told
    assert mutation_report.share_killed(as_they_are) >= 0.9, told


def test_outcomes_of_a_file_that_has_changed_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    for name in ("new", "old"):
        (tmp_path / name).write_text(name)
    rows = [{"mutant": f"{name}:1 1 → 2 #1", "file": mutants.digest("old")} for name in ("new", "old")]
    data = {"mutants": {"new": 1, "old": 1}, "outcomes": rows}
    assert mutation_report.stale(data) == rows[:1]
    told = "1 of 2 mutants were judged in files that have changed since: new"
    assert mutation_report.told_stale(data) == told


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "ROOT", tmp_path)

    def make(text: str) -> list[mutants.Mutant]:
        (tmp_path / "code.py").write_text(text)
        return list(mutants.mutants_of("code.py"))

    return make


@pytest.mark.parametrize(
    ("text", "change", "wanted"),
    [
        ("x = a < b", "Lt → LtE", "x = a <= b"),
        ("x = a + 1", "1 → 2", "x = a + 2"),
        ("x = not a", "Not dropped", "x = not not a"),
        ("x = True", "True → False", "x = False"),
        ("x = min(a, b)", "min → max", "x = max(a, b)"),
        ("x = a if b else c", "condition negated", "x = a if not b else c"),
        ("f(a)", "call dropped", "None"),
    ],
)
def test_a_mutant_changes_one_place(made, text, change, wanted):
    sources = {mutant.change: mutant.source for mutant in made(text)}
    assert ast.dump(ast.parse(sources[change])) == ast.dump(ast.parse(wanted))


def test_annotations_decorators_errors_and_assertions_stay(made):
    text = "y = zip(a, b, strict=True)\n"
    text += "@dataclass(frozen=True)\nclass A:\n    x: Literal[1]\n    def f(self) -> Literal[2]:\n        raise E(3)\n"
    assert made(text) == []


def test_a_mutant_knows_the_lines_that_execute_it(made):
    text = "def f(a, b=1):\n    if (\n        a > 2\n    ):\n        return 3\n    return lambda: 4\n"
    found = {mutant.change: (mutant.lines, mutant.at_import) for mutant in made(text)}
    assert found["1 → 2"] == ((1, 1), True)
    assert found["Gt → GtE"] == found["2 → 3"] == ((2, 4), False)
    assert found["3 → 4"] == ((5, 5), False)
    assert found["4 → 5"] == ((6, 6), False)


def test_equal_changes_on_one_line_have_names_of_their_own(made):
    assert [mutant.key for mutant in made("x = 1, 1")] == ["code.py:1 1 → 2 #1", "code.py:1 1 → 2 #2"]


def unknown_names(source):
    """Names that a module reads and nowhere binds."""
    nodes = list(ast.walk(ast.parse(source)))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler)}
    bound |= {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)} | {*vars(builtins), "__file__"}
    return {node.id for node in nodes if isinstance(node, ast.Name)} - bound


def test_an_unknown_name_is_seen():
    assert unknown_names("import a.b\ndef f(x): return [len(y) + a.z(q) for y in x]") == {"q"}


@pytest.mark.parametrize("error", planted.read_planted(), ids=lambda error: error.name)
def test_a_planted_error_can_still_be_planted(error):
    """`python tools/planted.py` sees that it is rejected; here, that its place and its tests are there."""
    assert unknown_names(error.mutant().source) == set(), "it would fail for another reason"
    for file, _, test in (name.partition("::") for name in error.tests):
        assert f"\ndef {test}(" in (mutants.ROOT / "tests" / file).read_text()
