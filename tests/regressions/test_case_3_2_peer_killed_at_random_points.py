"""Case 3.2: stale state of a peer that was killed or restarted crashes the survivor.

Under sanitizers, and with stopped and restarted peers: tests/faults/campaign.py.
"""

from __future__ import annotations

import os
import random
import time

import numpy as np
import pytest

from _engines import Child, options, pieces, wait_until
from kvferry.transfer import Engine

SIZE = 16 << 20
REGION = {"name": "m", "length": SIZE, "seed": 4}


def resources() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def settled_resources() -> tuple[int, int]:
    """The same, once the threads of a lost peer had time to end."""
    time.sleep(1.0)
    return resources()


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_killing_the_peer_at_random_points_leaves_nothing_behind(transport, extent):
    rng = random.Random(31)
    chosen = {"transports": [transport], "allow_fallback": False}
    with Engine(options(transport)) as survivor:
        near = np.zeros(SIZE, dtype=np.uint8)
        here = survivor.register(near, name="near")
        before = None
        for _round in range(extent.times(6, 200)):
            with Child([REGION], **chosen) as child:
                peer = survivor.connect(child.endpoint, expected=child.node_id)
                rows = pieces(*((here.id, peer.region("m").id, n << 20, n << 20, 1 << 20) for n in range(16)))
                plan = survivor.prepare(peer, rows, "read")
                near[:] = 0
                transfers = [survivor.submit(plan, timeout_s=10.0) for _ in range(4)]
                transfers[0].wait(rng.random() * 0.02)
                child.kill()
                assert all(transfer.wait(30.0) for transfer in transfers)
                for transfer in transfers:
                    done = [error is None for error in transfer.piece_errors]
                    assert all(done) == (transfer.error is None)
                wait_until(lambda peer=peer: not peer.alive, what="loss of the peer")
            del peer, plan, transfers, transfer
            wait_until(lambda: not survivor.peers(), what="an empty list of peers")
            before = before or settled_resources()
        wait_until(
            lambda: all(now <= then for now, then in zip(resources(), before, strict=True)),
            what=f"return to {before} descriptors and threads",
        )
