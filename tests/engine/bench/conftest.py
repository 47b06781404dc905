"""Probes of the machine are small: what a test asks of its rates is that there are some."""

import pytest

from refimpl.bench import probe


@pytest.fixture(autouse=True, scope="package")
def small_probes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(probe.MATRIX_SIZE, "cpu", 64)
        patch.setitem(probe.COPY_BYTES, "cpu", 2**20)
        yield
