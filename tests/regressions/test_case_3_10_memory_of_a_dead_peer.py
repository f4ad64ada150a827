"""Case 3.10: the mapped memory of a dead peer stays, and blocks its successor."""

from __future__ import annotations

import os

import numpy as np
import pytest

from _engines import Child, move, options, pattern, pieces, wait_until
from kvferry.transfer import Engine

SIZE = 4 << 20
NAME = "of-a-peer-that-dies"


def mapped() -> int:
    """How many mappings of the peer's memory this process has."""
    with open("/proc/self/maps") as lines:
        return sum(NAME in line for line in lines)


def read_all(engine: Engine, child: Child, near: np.ndarray) -> None:
    here = engine.register(near, name="near")
    peer = engine.connect(child.endpoint, expected=child.node_id)
    move(engine, peer, pieces((here.id, peer.region(NAME).id, 0, 0, SIZE))).raise_if_failed()
    here.unregister()


@pytest.mark.parametrize("ending", ["kill", "close"])
def test_what_a_peer_shared_is_unmapped_although_nobody_else_connects(ending):
    region = {"name": NAME, "length": SIZE, "allocate": True, "seed": 1}
    with Engine(options("shm")) as survivor:
        files = len(os.listdir("/proc/self/fd"))
        near = np.zeros(SIZE, dtype=np.uint8)
        with Child([region], transports=["shm"], allow_fallback=False) as child:
            read_all(survivor, child, near)
            np.testing.assert_array_equal(near, pattern(SIZE, 1))
            assert mapped() > 0
            getattr(child, ending)()
            wait_until(lambda: mapped() == 0, what="unmapping")
        wait_until(lambda: not survivor.peers(), what="an empty list of peers")
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files, what="close of all descriptors")
        assert not [name for name in os.listdir("/dev/shm") if "kvferry" in name]
        with Child([{**region, "seed": 2}], transports=["shm"], allow_fallback=False) as successor:
            read_all(survivor, successor, near)
            np.testing.assert_array_equal(near, pattern(SIZE, 2))
