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
    for cell in made.cells[:-1]:
        for output in cell.get("outputs", []):
            assert set(output.data) == {tool.PICTURE, "text/plain"}
    assert tool.answer(made).splitlines()[0].endswith(".")
    for sentence in tool.sentences(made):
        assert re.search(r"\d", sentence), "a figure's sentence holds the numbers that it shows"
        assert sentence.endswith(".")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_run_computes_what_is_committed(name):
    """Answers and the sentences of figures; pictures may differ by the version of a library."""
    made, found = tool.read_made(name), tool.run(tool.read_source(name))
    assert tool.answer(found) == tool.answer(made)
    assert tool.sentences(found) == tool.sentences(made)


def test_the_readme_has_every_question_answer_and_figure():
    text = tool.README.read_text()
    assert text == tool.rendered(text, tool.tables({name: tool.read_made(name) for name in NAMES}))


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
