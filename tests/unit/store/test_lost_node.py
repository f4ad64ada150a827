"""Calls of a store whose node is lost end by their own deadlines."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvferry.errors import KVFerryError
from kvferry.testing.nodes import NodeChild

AGAIN_S = 0.3  # a node that was not there is tried again after 0.2 s


def seconds_of(call: Callable[[], object]) -> float:
    """How long a call takes that must fail."""
    time.sleep(AGAIN_S)
    begin = time.monotonic()
    with pytest.raises(KVFerryError):
        call()
    return time.monotonic() - begin


def test_a_prefetch_waits_for_its_node_no_longer_than_it_is_of_use(tmp_path: Path) -> None:
    """In the node's place something listens that never answers."""
    with NodeChild(tmp_path, "--dram", "16MiB") as node, node.open() as store:
        store.put("key", b"value")
        node.kill()
        host, _, port = node.advert.endpoint.rpartition(":")
        with socket.create_server((host, int(port))):
            quickest = min(seconds_of(lambda: store.prefetch(["key"], within_s=0.1)) for _ in range(3))
            assert quickest < seconds_of(lambda: store.put("other", b"value", timeout_s=20))
