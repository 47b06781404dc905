"""What may be loaded when: the schedulers without tensors, the package quickly."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["refimpl", "refimpl.scheduling", "refimpl.core.kernels", "refimpl.core.sequence"])
def test_no_tensor_library_is_loaded(module):
    code = f"import {module}, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
