"""Make notebooks/*.ipynb from notebooks/*.py: run them, keep figures and answers, and render the table of the README.

``python tools/notebooks.py`` makes all of them, ``python tools/notebooks.py NAME …`` some. People edit the .py file, a
script with a ``# %%`` line above each cell (jupytext's percent format); the .ipynb beside it is what browsers show.
"""

import argparse
import os
import re
import resource
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from pages import filled, markdown_table

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "notebooks"
README = FOLDER / "README.md"
TIMEOUT_S = 300
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
PAIRED = {"formats": "ipynb,py:percent"}
PICTURE, ANSWER = "image/png", "text/markdown"


def names() -> list[str]:
    """Every notebook, by the name of its files."""
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def read_source(name: str) -> Any:
    """The cells of the .py file, without outputs."""
    notebook = jupytext.read(FOLDER / f"{name}.py")
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "jupytext": PAIRED})
    for i, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{i:02}", nbformat.from_dict({})
    return notebook


def read_made(name: str) -> Any:
    """The committed .ipynb file."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def run(notebook: Any) -> Any:
    """Run all cells in a fresh kernel with the working tree as the package; keep pictures, and the last cell's answer.

    What differs from run to run is dropped: counters, metadata, and every other output. Warnings are refused, as nobody
    would see them.
    """
    os.environ["PYTHONPATH"] = str(ROOT)
    where = {"metadata": {"path": str(FOLDER)}}
    settings = {"timeout": TIMEOUT_S, "extra_arguments": ["--log-level=40"], "store_widget_state": False}
    NotebookClient(notebook, resources=where, **settings).execute()
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            if warned := "".join(output.text for output in cell.outputs if output.get("name") == "stderr"):
                raise ValueError(f"a cell writes to stderr: {warned}")
            cell.execution_count = None
            kinds = (PICTURE, ANSWER) if cell is notebook.cells[-1] else (PICTURE,)
            cell.outputs = [_kept(output) for output in cell.outputs if set(kinds) & set(output.get("data", {}))]
    return notebook


def _kept(output: Any) -> Any:
    """A picture with its sentence, or an answer."""
    kinds = (PICTURE, "text/plain") if PICTURE in output.data else (ANSWER,)
    return nbformat.v4.new_output("display_data", {kind: output.data[kind] for kind in kinds})


def question(notebook: Any) -> str:
    """The title."""
    return str(notebook.cells[0].source.splitlines()[0].removeprefix("# "))


def inputs(notebook: Any) -> str:
    """What the first cell says after ``Inputs:``."""
    found = re.search(r"^Inputs: (.*?)$", notebook.cells[0].source, re.MULTILINE)
    return found[1] if found else ""


def answer(notebook: Any) -> str:
    """What the last cell says."""
    return "\n".join(output.data[ANSWER] for output in notebook.cells[-1].outputs if ANSWER in output.data)


def sentences(notebook: Any) -> list[str]:
    """What each figure shows, in order."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [output.data["text/plain"] for output in outputs if PICTURE in output.get("data", {})]


def page(made: dict[str, Any]) -> str:
    """The README with its table: every notebook and its answer."""
    lines = [
        (f"[{question(each)}]({name}.ipynb)", inputs(each), str(each.metadata["cpu_s"]), answer(each).splitlines()[0])
        for name, each in made.items()
    ]
    table = markdown_table(("question", "inputs", "CPU seconds", "answer"), lines, texts=("inputs", "answer"))
    return filled(README.read_text(), "notebooks", {"answers": table})


def cpu_s() -> float:
    """CPU seconds of the processes that have ended, which other work on the machine changes little."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Make the chosen notebooks, then the README's table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a notebook, without its suffix; all by default")
    chosen = parser.parse_args().names or names()
    if unknown := sorted(set(chosen) - set(names())):
        parser.error(f"no notebook {', '.join(unknown)}; there are: {', '.join(names())}")
    for name in chosen:
        before = cpu_s()
        notebook = run(read_source(name))
        notebook.metadata["cpu_s"] = round(cpu_s() - before)
        nbformat.write(notebook, FOLDER / f"{name}.ipynb")
        print(f"{name}, {notebook.metadata['cpu_s']} s: {answer(notebook).splitlines()[0]}")
    README.write_text(page({name: read_made(name) for name in names()}))


if __name__ == "__main__":
    main()
