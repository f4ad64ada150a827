"""Case 3.8: a writer dies between the begin and the end of its put; the key and its space stay usable."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.store.values import content, variant_of

from kvferry.testing.nodes import NodeChild
from kvferry.testing.waiting import wait_until

KEY = f"writer/dies/{12 << 20}"
POOL = 64 << 20


def writer(node: NodeChild, history: Path) -> subprocess.Popen[bytes]:
    """A process that puts and removes the key without end."""
    config = {"store": {"node": node.advert.endpoint}, "cluster": {"directory": node.cluster.directory}}
    command = [sys.executable, "-m", "tests.faults.store.client", json.dumps(config), str(history)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b'"ready"\n'
    process.stdin.write(json.dumps(["hammer", KEY]).encode() + b"\n")
    process.stdin.flush()
    return process


def test_nothing_of_it_is_seen_and_all_of_it_comes_back(tmp_path: Path, extent) -> None:
    rng = random.Random(38)
    with NodeChild(tmp_path, "--dram", "64MiB") as node, node.open() as store:
        for round_ in range(extent.times(3, 100)):
            with writer(node, tmp_path / f"history-{round_}") as dying:
                time.sleep(0.05 + rng.random() * 0.1)
                dying.kill()
                dying.wait(60)
                assert dying.stdin is not None
                dying.stdin.close()
            found = store.get(KEY)
            assert found is None or variant_of(KEY, found) == 0
            assert store.put(KEY, content(KEY)).error is None
            assert store.get(KEY) == content(KEY)
            store.remove(KEY)
            assert store.get(KEY) is None
        # What the dead ones had reserved is free: the pool can be filled again without evicting anything.
        wait_until(lambda: store.node_stats().dram_used == 0, 60)
        for number in range(4):
            store.put(f"large {number}", bytes(15 << 20))
        assert [store.exists(f"large {number}") for number in range(4)] == [True] * 4
        assert store.node_stats().dram_bytes == POOL
