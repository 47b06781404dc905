"""Every claim about the kernels, file by file."""

from types import ModuleType

from proofs.z3 import blocks, choices, layouts, verification
from proofs.z3.obligation import Obligation

FILES = (layouts, blocks, choices, verification)


def obligations(kernels: ModuleType) -> list[Obligation]:
    """What must hold of a module with these formulas."""
    return [claim for file in FILES for claim in file.obligations(kernels)]
