"""Tensors of a wrong shape are found, in every module that says what shapes it takes."""

import importlib
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

from refimpl.decoding.sampling import RandomSource, RowKeys
from tests.shapes import CHECKED

ROOT = Path(__file__).parents[2]
ANNOTATED = [path for path in (ROOT / "refimpl").rglob("*.py") if "from jaxtyping import" in path.read_text()]

pytestmark = pytest.mark.skipif(not CHECKED, reason="CHECK_SHAPES is not set")


@pytest.mark.parametrize("path", ANNOTATED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_annotated_module_is_checked(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    assert type(importlib.import_module(name).__spec__.loader).__module__.startswith("jaxtyping")


def test_a_wrong_shape_is_found():
    keys = RowKeys(*torch.zeros(2, 4, dtype=torch.int64))
    position = torch.zeros(4, 2, dtype=torch.int64)
    assert RandomSource().accepts(torch.ones(4, 2), torch.ones(4, 2), keys, position).all()
    with pytest.raises(TypeCheckError):
        RandomSource().accepts(torch.ones(4, 2), torch.ones(4, 1), keys, position)  # torch would broadcast it
