from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tools.servers import Server

from engines.harness import running, show_logs
from engines.sglang.environment import sglang_python
from engines.sglang.hicache_server import SETTINGS, hicache_server, make_model
from kvferry.testing.nodes import NodeChild

READY_S = 300.0


class Site(NamedTuple):
    """A server and where its node is to be found."""

    server: Server
    cluster: Path
    model: Path

    def node(self) -> NodeChild:
        """Start a node of 64 MiB."""
        return NodeChild(self.cluster, "--dram", "64MiB")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A running server, for all tests: starting one takes three imports of SGLang. No node runs."""
    sglang_python()
    folder = tmp_path_factory.mktemp("sglang-hicache")
    cluster = folder / "cluster"
    cluster.mkdir(mode=0o700)
    environment = {"KVFERRY_CLUSTER_DIRECTORY": str(cluster), "KVFERRY_POOL_NODE": "attach"}
    model = make_model(folder / "model")
    server = hicache_server(
        "hicache", model, folder / "logs",
        "--hicache-storage-backend", "kvferry", "--hicache-storage-backend-extra-config", SETTINGS,
        env=environment,
    )  # fmt: skip
    with running([server], READY_S):
        yield Site(server, cluster, model)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the end of the server's log to the report of a failed test."""
    report = yield
    site = getattr(item, "funcargs", {}).get("site")
    if report.failed and isinstance(site, Site):
        report.sections.append(("servers", show_logs([site.server])))
    return report
