"""Case 5.5: small requests wait behind a big one.

The big one does not move at all here: its first slice hangs in the only lane until it is cancelled. So a
small one that settles meanwhile has waited for nothing of it, however fast or slow the machine is.
"""

from __future__ import annotations

import numpy as np
import pytest

from _engines import engine_pair, pattern, pieces, wait_until

BIG, SLICE, SMALL, SMALLS = 64 << 20, 4 << 20, 64 << 10, 200


@pytest.mark.parametrize("priority", ["normal", "high"])
@pytest.mark.parametrize("way", ["tcp", "shm", "shm arena"])
def test_small_transfers_settle_while_a_big_one_stands_still(way, priority):
    with engine_pair(way[:3], fault_plan="*:hang@1x1", tcp_streams=1, shm_lanes=1) as pair:
        source = pattern(BIG, 1)
        if way == "shm arena":
            there = pair.server.allocate(BIG, name="m")
            np.frombuffer(there.memory, dtype=np.uint8)[:] = source
        else:
            there = pair.server.register(source, name="m")
        target = np.zeros(BIG, dtype=np.uint8)
        here = pair.client.register(target, name="m")
        pair.peer.refresh()
        whole = pieces((here.id, there.id, 0, 0, BIG))
        big = pair.client.submit(pair.client.prepare(pair.peer, whole, "read"))
        wait_until(lambda: 0 < pair.peer.stats().queued_slices < BIG // SLICE)  # it stands still now
        smalls = [
            pair.client.prepare(pair.peer, pieces((here.id, there.id, at, at, SMALL)), "read")
            for at in range(0, SMALLS * SMALL, SMALL)
        ]
        submitted = [pair.client.submit(plan, priority=priority) for plan in smalls[: SMALLS // 2]]
        for plan in smalls[SMALLS // 2 :]:
            pair.client.execute(plan, priority=priority).raise_if_failed()
        assert all(transfer.wait() for transfer in submitted)
        assert {transfer.error for transfer in submitted} == {None}
        assert not big.settled
        assert np.array_equal(target[: SMALLS * SMALL], source[: SMALLS * SMALL])
        assert not target[SMALLS * SMALL :].any()
        big.cancel()
        assert big.wait()
