"""Cases 3.1 and 3.2: a peer restarts behind the same address; the survivor keeps stale state, or crashes."""

from __future__ import annotations

import os
import random
import time

import numpy as np
import pytest

from _engines import Child, options, pattern, pieces, wait_until
from kvferry.errors import IdentityMismatchError, KVFerryError, UnavailableError
from kvferry.transfer import Engine, Plan

SIZE = 16 << 20
REGION = {"name": "m", "length": SIZE, "seed": 4}


def connect_when_up(engine: Engine, endpoint: str, **arguments):
    found = []

    def attempt() -> bool:
        try:
            found.append(engine.connect(endpoint, **arguments))
        except UnavailableError:
            return False
        return True

    wait_until(attempt, what=f"connection to {endpoint}")
    return found[0]


def submit_and_wait(engine: Engine, plan: Plan) -> None:
    transfer = engine.submit(plan)
    assert transfer.wait()
    transfer.raise_if_failed()


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_restarted_peer_is_another_peer(transport):
    chosen = {"transports": [transport], "allow_fallback": False}
    with Engine(options(transport)) as survivor:
        near = np.zeros(SIZE, dtype=np.uint8)
        here = survivor.register(near, name="near")
        with Child([REGION], **chosen) as first:
            old = survivor.connect(first.endpoint, expected=first.node_id)
            plan = survivor.prepare(old, pieces((here.id, old.region("m").id, 0, 0, SIZE)), "read")
            first.kill()
        with Child([{**REGION, "seed": 5}], bind=first.endpoint, **chosen) as second:
            assert second.endpoint == first.endpoint
            assert second.node_id != first.node_id
            with pytest.raises(IdentityMismatchError):
                connect_when_up(survivor, second.endpoint, expected=first.node_id)
            wait_until(lambda: not old.alive, what="loss of the old peer")
            with pytest.raises(KVFerryError):
                submit_and_wait(survivor, plan)
            assert not near.any(), "an old plan must never bring bytes of the new process"
            new = connect_when_up(survivor, second.endpoint, expected=second.node_id)
            transfer = survivor.submit(
                survivor.prepare(new, pieces((here.id, new.region("m").id, 0, 0, SIZE)), "read")
            )
            assert transfer.wait()
            assert transfer.error is None
            np.testing.assert_array_equal(near, pattern(SIZE, 5))


def resources() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def settled_resources() -> tuple[int, int]:
    """The same, once the threads of a lost peer had time to end."""
    time.sleep(1.0)
    return resources()


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_killing_the_peer_at_random_points_leaves_nothing_behind(transport):
    rng = random.Random(31)
    chosen = {"transports": [transport], "allow_fallback": False}
    with Engine(options(transport)) as survivor:
        near = np.zeros(SIZE, dtype=np.uint8)
        here = survivor.register(near, name="near")
        before = None
        for _round in range(8):
            with Child([REGION], **chosen) as child:
                peer = survivor.connect(child.endpoint, expected=child.node_id)
                rows = pieces(*((here.id, peer.region("m").id, n << 20, n << 20, 1 << 20) for n in range(16)))
                plan = survivor.prepare(peer, rows, "read")
                near[:] = 0
                transfers = [survivor.submit(plan, timeout_s=10.0) for _ in range(4)]
                transfers[0].wait(rng.random() * 0.02)
                child.kill()
                assert all(transfer.wait(12.0) for transfer in transfers)
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
