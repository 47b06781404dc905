"""Write refimpl/core/keywords.py, the declared settings as keyword types, and docs/settings.md.

python tools/settings.py
"""

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Collection, Iterator
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pages import filled, markdown_table

from refimpl.core.config import DecodeConfig, SamplingConfig
from refimpl.core.declared import Range, hints_of
from refimpl.core.engine_settings import EngineSettings
from refimpl.core.processing import Processing
from simulator.settings.parts import Engine

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "settings.md"
COLUMNS = ("setting", "default", "values", "what it sets")
OF_RUN = ("method", "batch_size")  # which `verify` has lists of
HEAD = '''"""The keyword settings of `generate`, `stream` and `verify`, written by tools/settings.py.

Meaning, default and range of each stand in docs/settings.md, and at `DecodeConfig` and `SamplingConfig`.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict

from refimpl.core.config import SamplingConfig


class _Common(TypedDict, total=False):
'''
TAIL = '''

class Settings(_Common, total=False):
    """Fields of `DecodeConfig`; those of its `SamplingConfig` can be given in place of `sampling`."""

    method: str
    batch_size: int


class VerifySettings(_Common, total=False):
    """`Settings` that all methods and batch sizes of a `verify` share."""

    max_prompt_tokens: int | None
'''


def source_of(hint: Any) -> str:
    """A type as it is written."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " | ".join(map(source_of, parts))
    if origin is Literal:
        return f"Literal[{', '.join(map(json.dumps, parts))}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join('...' if part is ... else source_of(part) for part in parts)}]"
    return "None" if hint is NoneType else hint.__name__


def keywords() -> Iterator[str]:
    """Name and type of every setting that `generate` and `verify` share."""
    for settings in (DecodeConfig, SamplingConfig):
        hints = hints_of(settings)
        yield from (f"    {f.name}: {source_of(hints[f.name])}" for f in fields(settings) if f.name not in OF_RUN)


def table(settings: Any, leave_out: Collection[str] = ()) -> str:
    """The declared settings of a dataclass."""
    hints = hints_of(settings)
    lines = [
        (f"`{item.name}`", shown_default(item), values_of(item, hints[item.name]), item.metadata["help"])
        for item in fields(settings)
        if "help" in item.metadata and item.name not in leave_out and hints[item.name] is not SamplingConfig
    ]
    return markdown_table(COLUMNS, lines, texts=COLUMNS)


def shown_default(item: Any) -> str:
    """The default of a setting, or what None stands for."""
    return item.metadata["none"] or f"`{item.default}`"


def values_of(item: Any, hint: Any) -> str:
    """What a setting may be: a range, its choices, or its type."""
    limits = item.metadata["range"]
    if isinstance(limits, Range):
        return str(limits)
    choices = limits or next((get_args(part) for part in (hint, *get_args(hint)) if get_origin(part) is Literal), ())
    choices = (True, False) if hint is bool else choices
    return ", ".join(f"`{choice}`" for choice in choices) or source_of(hint).replace(" | None", "").replace("|", "\\|")


def page() -> str:
    """The page of all settings."""
    shared = {item.name for item in fields(EngineSettings)}
    tables = {
        "shared": table(EngineSettings),
        "engine": table(DecodeConfig, shared),
        "sampling": table(SamplingConfig),
        "request": table(Processing),
        "simulator": table(Engine, shared),
    }
    return filled(PAGE.read_text(), "settings", tables)


FILES = {
    ROOT / "refimpl" / "core" / "keywords.py": lambda: HEAD + "\n".join(keywords()) + "\n" + TAIL,
    PAGE: page,
}

if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    for path, text in FILES.items():
        path.write_text(text())
