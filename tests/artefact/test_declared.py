"""A setting is declared once: what follows from its declaration is fresh."""

import importlib
from dataclasses import fields
from pathlib import Path

import pytest

from refimpl import DecodeConfig, InputError, SamplingConfig
from refimpl.core.config import make_config
from simulator.settings.parts import Engine

ROOT = Path(__file__).parents[2]


def test_what_follows_from_the_declarations_is_fresh(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    for path, text in importlib.import_module("settings").FILES.items():
        assert path.read_text() == text(), "run python tools/settings.py"


def test_every_setting_says_in_a_sentence_what_it_sets():
    declared = [item for cls in (DecodeConfig, SamplingConfig, Engine) for item in fields(cls)]
    assert [item.name for item in declared if not item.metadata.get("help", "").endswith(".")] == []


def test_an_unknown_setting_names_all_that_there_are():
    with pytest.raises(InputError, match=r"unknown setting bach_size: choose among .*batch_size, .*temperature"):
        make_config(bach_size=3)
    with pytest.raises(InputError, match="give either `sampling` or its fields, not both"):
        make_config(sampling=SamplingConfig(), seed=3)
