"""Planted errors can be planted, each survivor of mutation has a reason, and mutants are changed where they say."""

import ast
import builtins
import json
import re
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import mutant_runs
import mutants
import mutate
import mutation_report
import planted

DATA, REASONS = mutation_report.read_report(), mutation_report.read_reasons()
TESTS = mutants.ROOT / "tests"


def test_the_page_is_that_of_the_data():
    assert mutation_report.PAGE.read_text() == mutation_report.as_markdown(DATA, REASONS)


def test_every_survivor_has_a_reason_and_nothing_else_has():
    assert {*mutation_report.survivors(DATA)} == {*REASONS}
    assert {kind for kind, _ in REASONS.values()} <= {*mutation_report.KINDS}


def test_files_that_were_judged_exist_and_so_do_the_tests():
    assert {*DATA["files"]} <= {*mutate.FILES}
    assert [file for file in mutate.FILES if not (mutants.ROOT / file).exists()] == []
    assert [test for test in mutate.TESTS if not (TESTS / test).exists()] == []


def test_nine_of_ten_mutants_are_killed():
    assert mutation_report.share_killed(DATA) >= 0.9


def test_a_report_keeps_what_was_said_of_a_file_until_all_its_mutants_are_judged(made, tmp_path, monkeypatch):
    first, second = made("x = a + 1")
    monkeypatch.setattr(mutation_report, "ROOT", tmp_path)
    page = tmp_path / "page"
    page.write_text(mutation_report.PAGE.read_text())
    monkeypatch.setattr(mutation_report, "PAGE", page)
    monkeypatch.setattr(mutation_report, "DATA", tmp_path / "data")
    old = {"commit": "then", "digest": "", "mutants": 3, "survivors": {}}
    mutation_report.DATA.write_text(json.dumps({"files": dict.fromkeys(("code.py", "other.py", "gone.py"), old)}))

    def reported(fates):
        mutation_report.write_report(["code.py", "other.py"], [first, second], fates, DATA["meta"] | {"commit": "now"})
        return mutation_report.read_report()["files"]

    assert reported({first.key: "killed"}) == {"code.py": old, "other.py": old}
    left = {second.key.removeprefix("code.py:"): "x = a + 1"}
    new = {"commit": "now", "digest": mutants.digest("code.py"), "mutants": 2, "survivors": left}
    assert reported({first.key: "killed", second.key: "survived"}) == {"code.py": new, "other.py": old}


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


ERRORS = planted.read_planted()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.name)
def test_an_error_can_be_planted_and_somebody_must_see_it(error):
    """`python tools/planted.py` asks them; here, its place must be there, and they."""
    assert unknown_names(error.altered().source) == set(), "it would fail for another reason"
    assert error.tests or error.seen_by
    assert {*error.seen_by} <= {*planted.STAGES}
    for test in error.tests:
        file, name = re.split(r"::|\[", test)[:2]
        assert re.search(rf"^(def )?{name}\b", (TESTS / file).read_text(), re.MULTILINE)


def test_names_of_errors_are_distinct():
    assert len({error.name for error in ERRORS}) == len(ERRORS)


def test_a_text_that_is_gone_or_there_twice_is_not_planted():
    for old in ("the moon is round", "return"):
        with pytest.raises(ValueError, match=rf"^moon: '{old}' is in refimpl/core/kernels.py \d+ times, not once"):
            planted.Planted("refimpl/core/kernels.py", "moon", old, "").altered()


def test_an_altered_file_is_imported_instead_and_one_that_was_imported_before_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(mutant_runs, "ROOT", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "altered_toy.py").write_text("answer = 42")
    altered, late = (mutant_runs.AlteredFile("altered_toy.py", f"answer = {n}") for n in (43, 44))
    with patch.object(sys, "meta_path", [*sys.meta_path]), patch.dict(sys.modules):
        altered.plant()
        late.plant()
        assert sys.modules["altered_toy"].answer == 43
        assert (altered.loaded(), late.loaded()) == (True, False)
