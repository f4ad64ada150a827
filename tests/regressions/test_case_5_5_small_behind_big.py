"""Case 5.5: small requests wait behind a big one.

No times: a small transfer has to settle while big ones, which were submitted before it, are still under way.
"""

from __future__ import annotations

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
        bigs = [pair.client.submit(big) for _ in range(BIGS)]
        overtaken = 0
        for _ in range(SMALLS // 20):
            batch = [pair.client.submit(small) for _ in range(20)]
            assert all(transfer.wait() for transfer in batch)
            assert {transfer.error for transfer in batch} == {None}
            overtaken += 20 * (not all(transfer.settled for transfer in bigs))
        assert all(transfer.wait() for transfer in bigs)
        assert {transfer.error for transfer in bigs} == {None}
        assert overtaken >= SMALLS // 2
