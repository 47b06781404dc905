"""Where a number comes from."""

from refimpl.core import provenance


def test_code_inside_of_another_projects_checkout_has_no_commit(monkeypatch):
    """As where it is installed in an environment in the checkout of whoever uses it."""
    monkeypatch.setattr(provenance, "ROOT", provenance.ROOT / "refimpl")
    assert provenance.commit.__wrapped__() == "unknown"
