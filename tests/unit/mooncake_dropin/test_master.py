"""mooncake_master: a node where scripts expect Mooncake's master."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from kvferry.config import ClusterOptions
from kvferry.store import find_nodes
from kvferry.testing.waiting import wait_until
from kvferry_mooncake.master import main
from mooncake.store import MooncakeDistributedStore

ROOT = Path(__file__).resolve().parents[3]


def test_it_is_a_node_that_stores_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("KVFERRY_CLUSTER_DIRECTORY", str(tmp_path))
    path = [str(ROOT / "connectors/mooncake"), *[each for each in sys.path if each]]
    flags = ["--rpc_port=0", "-metrics_port", "0", "--default_kv_lease_ttl=5000"]
    with (tmp_path / "log").open("w+b") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvferry_mooncake.master", *flags], stdout=log, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "KVFERRY_STORE_DRAM": "16MiB"},
        )  # fmt: skip
        try:
            cluster = ClusterOptions(directory=str(tmp_path))
            wait_until(lambda: bool(find_nodes(cluster)) or process.poll() is not None, 100.0)
            [node] = find_nodes(cluster)
            store = MooncakeDistributedStore()
            assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", node.endpoint) == 0
            assert store.put("a", b"x") == 0
            store.close()
            with urllib.request.urlopen(f"{node.admin}/metrics", timeout=60) as answer:
                assert b"kvferry_store" in answer.read()
            process.send_signal(signal.SIGTERM)
            assert process.wait(100) == 0
        finally:
            process.kill()
            process.wait(100)
        log.seek(0)
        assert b"without effect on a node of KVFerry: --default_kv_lease_ttl=5000" in log.read()


def test_what_is_wrong_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rpc_address", "0.0.0.0", "--rpc_port", "0"]) == 1
    assert "cluster_secret" in capsys.readouterr().err
