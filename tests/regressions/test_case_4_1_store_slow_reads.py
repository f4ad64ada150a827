"""Case 4.1, the store's side: a large read takes seconds while others evict and refill."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.faults.store.values import content, variant_of

from _relay import Relay
from kvferry.config import load_config
from kvferry.errors import KVFerryError
from kvferry.store import Store, open_store
from kvferry.testing.nodes import NodeChild

MIB = 1 << 20
RATE = 32 * MIB  # a second; of a node that is slower than 20 MB/s, readers think that it stands still


@contextmanager
def node_behind(relay: Relay, directory: Path, dram: int, lease_s: float) -> Iterator[NodeChild]:
    environ = {
        "KVFERRY_STORE_PIN_LEASE_S": str(lease_s),
        "KVFERRY_TRANSFER_BIND": relay.target_endpoint,
        "KVFERRY_TRANSFER_ADVERTISE": relay.endpoint,
    }
    with NodeChild(directory, "--dram", str(dram), environ=environ) as node:
        yield node


@contextmanager
def refilled(store: Store, size: int) -> Iterator[list[int]]:
    """Others put and put: what is not pinned is evicted, and its memory written again. Counts the puts."""
    stop, puts = threading.Event(), [0]
    keys = (f"refill/{number}/{size}" for number in range(1 << 30))

    def fill() -> None:
        while not stop.is_set():
            key = next(keys)
            puts[0] += store.put_many([key], [content(key)], timeout_s=5)[0].error is None

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield puts
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("lease_s", [60.0, 0.3])
def test_a_slow_read_is_right_or_absent(tmp_path: Path, extent, lease_s: float) -> None:
    """With a lease that is too short for it, it may fail, but never return what was written over it."""
    size = extent.times(32, 64) * MIB
    rng = random.Random(41)
    ends: dict[str, int] = {}
    with Relay() as relay, node_behind(relay, tmp_path, 3 * size, lease_s) as node:
        near = load_config(node.settings(node=relay.target_endpoint), environ={})
        far = load_config({**node.settings(), "transfer": {"transports": ["tcp"]}}, environ={})
        with open_store(near) as writer, open_store(far) as reader:
            for round_ in range(extent.times(1, 50)):
                key = f"slow/{round_}/{size}"
                writer.put(key, content(key))
                relay.backward_bytes_per_s = RATE
                target = bytearray(size)
                with refilled(writer, size // 16 + rng.randrange(4096)) as puts:
                    try:
                        got = reader.get_into(key, target, timeout_s=20)
                    except KVFerryError as error:
                        ends[error.code] = ends.get(error.code, 0) + 1
                    else:
                        assert got == size
                        assert variant_of(key, bytes(target)) == 0
                        ends["right"] = ends.get("right", 0) + 1
                    assert puts[0] > 0  # the pressure was there, and the pinned object did not stop the puts
                relay.backward_bytes_per_s = 0
        assert relay.backward > size // 4
    print(ends)
    assert set(ends) <= {"right", "not_found", "deadline_exceeded"}
    if extent.long and lease_s > 10:
        assert set(ends) == {"right"}
