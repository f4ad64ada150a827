"""SGLang's own test of its Mooncake backend, unchanged, with the module `mooncake` that runs on KVFerry."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from engines.sglang.environment import cpu_environment, sglang_python
from kvferry.testing.nodes import NodeChild

DROP_IN = Path(__file__).resolve().parents[3] / "connectors/mooncake"
TEST = "sglang.srt.mem_cache.storage.mooncake_store.test_mooncake_store"
TIMEOUT_S = 280.0

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


def run(directory: Path, master: str) -> str:
    """What the test said, which must have passed."""
    directory.chmod(0o700)
    environment = cpu_environment(
        KVFERRY_CLUSTER_DIRECTORY=str(directory),
        MOONCAKE_MASTER=master,
        MOONCAKE_GLOBAL_SEGMENT_SIZE=str(64 << 20),
        MOONCAKE_LOCAL_HOSTNAME="127.0.0.1",
        MOONCAKE_PROTOCOL="tcp",
    )
    environment["PYTHONPATH"] += f"{os.pathsep}{DROP_IN}"
    done = subprocess.run(
        [sglang_python(), "-m", TEST], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_it_passes_on_a_node(tmp_path: Path) -> None:
    with NodeChild(tmp_path, "--dram", "64MiB") as node:
        said = run(tmp_path, node.advert.endpoint)
        assert said.count("operation passed") == 5
        assert "All tests passed" in said
        with node.open(tenant="mooncake") as store:  # it was KVFerry that kept the pages
            assert sum(1 for _ in store.scan()) > 5 * 13
