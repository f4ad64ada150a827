from __future__ import annotations

from collections.abc import Iterator

import pytest

from engines.harness import running, show_logs
from engines.sglang.environment import sglang_python
from engines.sglang_pd.servers import (
    READY_S,
    Pair,
    decode_server,
    free_port,
    make_model,
    offloading_server,
    prefill_server,
    switching,
)
from kvferry.testing.nodes import NodeChild


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Running servers, for all tests: starting one takes three imports of SGLang."""
    sglang_python()
    folder = tmp_path_factory.mktemp("sglang-pd")
    model, logs, cluster = folder / "model", folder / "logs", folder / "cluster"
    cluster.mkdir(mode=0o700)
    ports = {name: free_port() for name in ("prefill", "decode")}
    answers = make_model(model)
    pool = {"KVFERRY_CLUSTER_DIRECTORY": str(cluster), "KVFERRY_POOL_NODE": "attach"}
    injector = {"SGLANG_TEST_DISAGG_FAILURE_PROB": "0.002", "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    made = Pair(
        prefill=prefill_server("prefill", model, logs, *switching(ports["prefill"]), env=pool),
        decode=decode_server("decode", model, logs, *switching(ports["decode"])),
        other=offloading_server("decode-of-two", model, logs, "--tp-size", "2", env={**injector, **pool}),
        ports=ports,
        answers=answers,
    )
    with NodeChild(cluster, "--dram", "64MiB"), running(made.servers, READY_S), made.pool:
        yield made
        for server in made.servers:
            server.kill()  # SGLang takes its time to end by itself


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the ends of the servers' logs to the report of a failed test."""
    report = yield
    servers = getattr(item, "funcargs", {}).get("pair") if hasattr(item, "funcargs") else None
    if report.failed and isinstance(servers, Pair):
        report.sections.append(("servers", show_logs(servers.servers)))
    return report
