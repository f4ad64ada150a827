from __future__ import annotations

from collections.abc import Iterator

import pytest

from engines.harness import Fleet, make_fleet, running_fleet, show_logs

SIZES = {"smollm2": {"prefill": 1, "decode": 1}, "tiny": {"prefill": 2, "decode": 2}}


@pytest.fixture(scope="session", params=list(SIZES))
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A running fleet: one pair with real weights, then two and two with a tiny model."""
    servers = make_fleet(request.param, tmp_path_factory.mktemp(request.param), **SIZES[request.param])
    with running_fleet(servers):
        yield servers


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the ends of the servers' logs to the report of a failed test."""
    report = yield
    servers = getattr(item, "funcargs", {}).get("fleet") if hasattr(item, "funcargs") else None
    if report.failed and isinstance(servers, Fleet):
        report.sections.append(("servers", show_logs(servers.servers)))
    return report
