"""Hypothesis profiles: ``default`` for work at the desk, ``ci`` the same every time, ``nightly`` for long searches.

Choose with the environment variable ``HYPOTHESIS_PROFILE``.
"""

import os

from hypothesis import HealthCheck, Phase, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def register_profiles() -> None:
    """Make the three profiles known and load the one that the environment names (``ci`` by default)."""
    settings.register_profile("default", max_examples=50, deadline=None, suppress_health_check=_SLOW)
    settings.register_profile(
        "ci", max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=_SLOW
    )
    settings.register_profile(
        "nightly", max_examples=1000, deadline=None, suppress_health_check=_SLOW, phases=list(Phase)
    )
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
