"""Settings that all tests share."""

from __future__ import annotations

from typing import NamedTuple

import hypothesis
import pytest

# A loaded machine makes generation and examples slow; that says nothing about the code.
hypothesis.settings.register_profile(
    "kvferry", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("kvferry")


class Extent(NamedTuple):
    """How much of a campaign to run."""

    long: bool

    def times(self, short: int, long: int) -> int:
        """A count for CI, or the whole one."""
        return long if self.long else short


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="run campaigns at full length (field reports: tests/regressions)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """At full length every test may take an hour."""
    if config.getoption("--long"):
        for item in items:
            item.add_marker(pytest.mark.timeout(3600), append=False)


@pytest.fixture(scope="session")
def extent(request: pytest.FixtureRequest) -> Extent:
    """Whether campaigns run at full length (`--long`)."""
    return Extent(request.config.getoption("--long"))
