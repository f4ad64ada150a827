from __future__ import annotations

from collections.abc import Iterator

import pytest

from engines.harness import running, show_logs
from engines.sglang.environment import sglang_python
from engines.sglang_pd.servers import (
    READY_S,
    Pair,
    bootstrap,
    decode_server,
    free_port,
    make_model,
    prefill_server,
)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Running servers, for all tests: starting one takes three imports of SGLang."""
    sglang_python()
    folder = tmp_path_factory.mktemp("sglang-pd")
    model, logs, port = folder / "model", folder / "logs", free_port()
    answers = make_model(model)
    injector = {"SGLANG_TEST_DISAGG_FAILURE_PROB": "0.002", "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    made = Pair(
        prefill=prefill_server("prefill", model, logs, *bootstrap(port)),
        decode=decode_server("decode", model, logs),
        other=decode_server("decode-of-two", model, logs, "--tp-size", "2", env=injector),
        ports={"prefill": port},
        answers=answers,
    )
    with running(made.servers, READY_S), made.pool:
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
