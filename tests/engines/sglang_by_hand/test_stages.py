"""A server of two pipeline stages with the pool as HiCache's third level: by hand, as `test_ranks.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.harness import running, until
from engines.sglang.environment import BY_HAND, sglang_python
from engines.sglang.hicache_server import PROMPT_TOKENS, SETTINGS, ask, flush, hicache_server, make_model
from kvferry.testing.nodes import NodeChild

READY_S = 300.0
POOL = ("--hicache-storage-backend", "kvferry", "--hicache-storage-backend-extra-config", SETTINGS)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500), BY_HAND]


def test_each_stage_keeps_its_layers(tmp_path: Path) -> None:
    sglang_python()
    cluster = tmp_path / "cluster"
    cluster.mkdir(mode=0o700)
    # Without a bind both stages want the machine's only NUMA node.
    env = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "KVFERRY_POOL_NODE": "attach"}
    env["KVFERRY_CLUSTER_DIRECTORY"] = str(cluster)
    model, logs = make_model(tmp_path / "model"), tmp_path / "logs"
    server = hicache_server("stages", model, logs, "--pp-size", "2", *POOL, env=env)
    with NodeChild(cluster, "--dram", "64MiB"), running([server], READY_S):
        first = ask(server, 1)
        assert first.from_storage == 0

        def whole() -> bool:
            until(lambda: flush(server), "the server is idle", 120)
            told = ask(server, 1)
            assert told.tokens == first.tokens
            return told.from_storage == PROMPT_TOKENS - 1

        until(whole, "all whole pages come from the pool", 180)
        server.kill()  # SGLang takes its time to end by itself
