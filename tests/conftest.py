"""Settings that all tests share."""

from __future__ import annotations

import hypothesis

# A loaded machine makes generation and examples slow; that says nothing about the code.
hypothesis.settings.register_profile(
    "kvferry", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("kvferry")
