"""Text that every Python installation contains, as documents to train on and to take prompts from."""

import ast
import hashlib
import re
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

SKIPPED_PARTS = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "ensurepip", "turtledemo",
    "distutils", "tkinter", "encodings", "pydoc_data", "__pycache__",
}  # fmt: skip

SKIPPED_FILES = re.compile(r"^(_sysconfigdata.*|html/entities|config-.*/.*)\.py$")


@dataclass(frozen=True)
class Document:
    """One text with the module it comes from, e.g. `email/message.py`, and whether that module is held out."""

    source: str
    text: str
    held_out: bool = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(self.source.encode()).digest()
        object.__setattr__(self, "held_out", digest[0] % 20 == 0)


def docstrings(source: str) -> list[str]:
    """Docstrings of at least 80 characters of a module, its classes and functions, in source order."""
    nodes = ast.walk(ast.parse(source))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in nodes if isinstance(node, kinds)]
    return [text + "\n" for text in found if text and len(text) >= 80]


def read_corpus() -> list[Document]:
    """Standard-library sources, their docstrings as short documents, and the `pydoc` help topics."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if SKIPPED_PARTS & set(name.split("/")) or SKIPPED_FILES.match(name):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if text.strip():
            documents += [Document(name, text), *(Document(name, doc) for doc in docstrings(text))]
    from pydoc_data.topics import topics

    documents += [Document(f"pydoc_data/topics/{key}", topics[key]) for key in sorted(topics)]
    return documents
