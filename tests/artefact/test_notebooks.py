"""Notebooks: a question and its answer, source and notebook equal, and the cells still compute what is committed."""

import ast
import re
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import notebooks as tool  # noqa: E402

NAMES = tool.names()
MAX_LINES = 10
MOST_SECONDS, BY_DAY_S = 60, 20  # of a run on the machine where it was made


def code_of(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_is_its_source(name):
    source, made = tool.read_source(name), tool.read_made(name)
    assert [(c.cell_type, c.source) for c in made.cells] == [(c.cell_type, c.source) for c in source.cells]
    assert made.metadata["jupytext"] == tool.PAIRED


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_asks_and_answers_in_short_cells_without_functions(name):
    notebook = tool.read_source(name)
    assert tool.question(notebook).endswith("?")
    assert tool.inputs(notebook)
    for source in code_of(notebook):
        assert len(source.splitlines()) <= MAX_LINES, source
        assert not any(
            isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef) for node in ast.walk(ast.parse(source))
        )
    assert sum("change this cell" in source for source in code_of(notebook)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_only_figures_and_the_answer_are_kept(name):
    made = tool.read_made(name)
    assert set(made.metadata) == {"cpu_s", "jupytext", "kernelspec", "language_info"}
    for cell in made.cells[:-1]:
        for output in cell.get("outputs", []):
            assert set(output.data) == {tool.PICTURE, "text/plain"}
    assert tool.answer(made).splitlines()[0].endswith(".")
    assert made.metadata["cpu_s"] < MOST_SECONDS
    for sentence in tool.sentences(made):
        assert re.search(r"\d", sentence), "a figure's sentence holds the numbers that it shows"
        assert sentence.endswith(".")


def by_day(name):
    """Those that take long are run by night."""
    return pytest.param(name, marks=[pytest.mark.nightly] * (tool.read_made(name).metadata["cpu_s"] > BY_DAY_S))


@pytest.mark.slow
@pytest.mark.parametrize("name", [by_day(name) for name in NAMES])
def test_a_run_computes_what_is_committed(name):
    """Answers and the sentences of figures; pictures may differ by the version of a library."""
    made, found = tool.read_made(name), tool.run(tool.read_source(name))
    assert tool.answer(found) == tool.answer(made)
    assert tool.sentences(found) == tool.sentences(made)


CALIBRATION, HELD_OUT = (ROOT / "simulator" / "data" / name / "cpu" / "tiny" for name in ("calibration", "validation"))
TABLE = f'"kind": "table", "calibration": "{CALIBRATION}"'
OWN = {  # notebook -> text of the cell that is to be changed, and what a user might write there
    "acceptance_spread": {'BATCH, REPLICATIONS = "cpu/tiny", 8, 10': f'BATCH, REPLICATIONS = "{CALIBRATION}", 4, 4'},
    "correctness": {'"import os", ': ""},
    "draft_length": {'"h100", "qwen3-8b"': '"l40s", "qwen3-4b"', "0.7": "0.1"},
    "exspec_pool": {
        '"kind": "linear", "verify_base_s": 0.025': TABLE,
        ', "draft_base_s": 0.003, "concat_base_s": 0.001, "realign_base_s": 0.001': "",
    },
    "my_gpu": {
        '"kind": "roofline", "device": "h100"': TABLE,
        ', "target": "qwen3-8b", "draft": "qwen3-0.6b"': "",
        "12.0, 192": "2.0, 24",
        '"low_tokens": 100, "high_tokens": 500': '"low_tokens": 8, "high_tokens": 120',
        '"mean_tokens": 150': '"mean_tokens": 30',
        "MAX_NEW_TOKENS = 512": "MAX_NEW_TOKENS = 128",
        "[8, 16, 32, 64]": "[2, 4, 8]",
    },
    "realignment": {'CALIBRATION, TRACE = "cpu/tiny"': f'CALIBRATION, TRACE = "{CALIBRATION}"', "= 8, 256": "= 8, 64"},
    "token_price": {
        '{"h100": 2.50, "l40s": 0.90}': '{"h200": 3.00, "a100-80": 1.20}',
        "[0.5, 0.7, 0.85]": "[0.4, 0.6]",
    },
    "trust": {'"cpu/tiny", "cpu/tiny"': f'"{CALIBRATION}", "{HELD_OUT}"'},
    "under_load": {
        '"kind": "roofline", "device": "h100"': f'{TABLE}, "outside": "extrapolate"',
        ', "target": "qwen3-8b", "draft": "qwen3-0.6b"': "",
        "[8, 20, 32, 40, 48]": "[1, 2, 3, 4, 5]",
        "2.50, 64, 4": "2.50, 8, 2",
        "= 60, 0.95": "= 1, 0.95",
        "= 0.5, 0.020": "= 9, 9",
    },
    "what_if": {'{"kind": "table", "calibration": "cpu/tiny"}': '{"kind": "linear", "verify_base_s": 0.03}'},
}
QUICK = ("trust",)
SAYS = {  # what the answer or a figure then says, so that no words of the committed run are left where they are wrong
    "correctness": ["EXSPEC decodes 6 prompts"],
    "draft_length": ["take no drafts at batch 1 and no drafts at batch 64; 3 drafts pay at no batch size"],
    "realignment": ["6 % fused, most of it to start operations"],
    "under_load": ["one of 9000 ms needs 1 and 1"],
}


def test_every_notebook_is_tried_with_other_data():
    assert sorted(OWN) == NAMES


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in NAMES]
)
def test_a_notebook_runs_on_data_of_one_s_own_by_changing_one_cell(name):
    source = tool.read_source(name)
    (cell,) = [cell for cell in source.cells if "change this cell" in cell.source]
    for old, new in OWN[name].items():
        assert old in cell.source
        cell.source = cell.source.replace(old, new)
    made, found = tool.read_made(name), tool.run(source)
    assert len(tool.sentences(found)) == len(tool.sentences(made))
    assert tool.answer(found)
    said = "\n".join([tool.answer(found), *tool.sentences(found)])
    assert not [words for words in SAYS.get(name, []) if words not in said]
    assert name in QUICK or tool.answer(found) != tool.answer(made), "the answer is of the data that were given"


def test_the_readme_has_every_question_answer_and_figure():
    assert tool.README.read_text() == tool.page({name: tool.read_made(name) for name in NAMES})


def test_a_run_that_warns_is_refused():
    """Its figure may be wrong: a division by zero left a box without a single guess."""
    source = "import numpy as np\nnp.zeros(1) / 0"
    with pytest.raises(ValueError, match=r"a cell writes to stderr: .*invalid value"):
        tool.run(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]))


FIGURE = """
from refimpl.viz.style import captioned, new_axes
captioned(new_axes(), "It shows 1 thing.")
"""


def test_a_run_keeps_figures_and_the_answer_alone():
    cells = ["1", FIGURE, "from IPython.display import Markdown\nMarkdown('It is no.')", "Markdown('It is 2.')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Is it?\n\nInputs: none")])
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in cells]
    made = tool.run(notebook)
    assert (tool.question(made), tool.inputs(made)) == ("Is it?", "none")
    assert [len(cell.get("outputs", [])) for cell in made.cells] == [0, 0, 1, 0, 1]
    assert tool.sentences(made) == ["It shows 1 thing."]
    assert tool.answer(made) == "It is 2."
