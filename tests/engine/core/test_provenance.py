"""Where a number comes from."""

import os
import platform

import pytest

from refimpl.core import provenance


def test_code_inside_of_another_projects_checkout_has_no_commit(monkeypatch):
    """As where it is installed in an environment in the checkout of whoever uses it."""
    monkeypatch.setattr(provenance, "ROOT", provenance.ROOT / "refimpl")
    assert provenance.commit.__wrapped__() == "unknown"


@pytest.mark.parametrize(("lines", "told"), [
    ("model name\t: Fast\n\nmodel name\t: Fast\n", "Fast, 2 cores"),
    ("processor\t: 0\nCPU part\t: 0xd0c\n", "aarch64, 6 cores"),  # as on ARM
    (None, "aarch64, 6 cores"),  # as on a Mac
])  # fmt: skip
def test_cores_are_counted_where_the_system_names_no_model(monkeypatch, tmp_path, lines, told):
    file = tmp_path / "cpuinfo"
    if lines:
        file.write_text(lines)
    monkeypatch.setattr(provenance, "Path", lambda _: file)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert provenance.processor() == told
