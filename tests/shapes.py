"""Shapes of tensors, checked at run time: jaxtyping's annotations, in every module that handles tensors.

The checks cost several times the code they are in: CHECK_SHAPES=1 in the environment turns them on.
"""

import os

from jaxtyping import install_import_hook

CHECKED = bool(os.environ.get("CHECK_SHAPES"))
MODULES = [
    "refimpl.conformance.model_reference",
    "refimpl.decoding.acceptance",
    "refimpl.decoding.cached",
    "refimpl.decoding.drafters",
    "refimpl.decoding.grammars",
    "refimpl.decoding.invariants",
    "refimpl.decoding.passes",
    "refimpl.decoding.prefill",
    "refimpl.decoding.processors",
    "refimpl.decoding.recorded",
    "refimpl.decoding.rounds",
    "refimpl.decoding.sampling",
    "refimpl.faults.rule_law",
    "refimpl.judging.tie_or_bug",
    "refimpl.layouts",
    "refimpl.models",
    "refimpl.pairs.heads",
    "refimpl.viz.watch",
]


def check_shapes() -> None:
    """Check them in every module of the list that is imported from now on, where that is asked for."""
    if CHECKED:
        install_import_hook(MODULES, "beartype.beartype")
