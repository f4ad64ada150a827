"""Case 5.5: small requests wait behind a big one.

A small transfer has to settle before the last of the big ones that were submitted before it. Not how long it
takes is asserted, and not when this thread, which the machine may let wait, gets to know of it.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from _engines import engine_pair, pieces, sparse

BIG, SMALL, BIGS, SMALLS = 512 << 20, 64 << 10, 4, 200


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_small_transfers_settle_while_big_ones_are_under_way(transport):
    with engine_pair(transport) as pair:
        source, target = sparse(BIG), np.zeros(64 << 20, dtype=np.uint8)
        there = pair.server.register(source, name="m")
        here = pair.client.register(target, name="m")
        pair.peer.refresh()
        folded = pieces(*((here.id, there.id, 0, at, 64 << 20) for at in range(0, BIG, 64 << 20)))
        big = pair.client.prepare(pair.peer, folded, "read")
        small = pair.client.prepare(pair.peer, pieces((here.id, there.id, 0, 0, SMALL)), "read")
        started = time.monotonic()  # not after any of the big ones
        bigs = [pair.client.submit(big) for _ in range(BIGS)]
        smalls = [(pair.client.submit(small), time.monotonic()) for _ in range(SMALLS)]  # not before it
        assert all(transfer.wait() for transfer in (*bigs, *(transfer for transfer, _ in smalls)))
        assert {transfer.error for transfer in (*bigs, *(transfer for transfer, _ in smalls))} == {None}
        last = started + max(transfer.seconds for transfer in bigs)
        assert sum(at + transfer.seconds < last for transfer, at in smalls) >= SMALLS // 2
