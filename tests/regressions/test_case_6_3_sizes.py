"""Case 6.3: huge, zero-length and odd sizes."""

from __future__ import annotations

import numpy as np
import pytest

from _engines import engine_pair, move, pattern, pieces, sparse
from kvferry.errors import OutOfRangeError

TRANSPORTS = ["tcp", "shm"]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, 4095, (16 << 20) + 1])
def test_odd_sizes_arrive_exactly(transport, size):
    with engine_pair(transport) as pair:
        far, near = pattern(size, 3), np.zeros(size + 2, dtype=np.uint8)
        there = pair.server.register(far, name="m")
        here = pair.client.register(near, name="m")
        pair.peer.refresh()
        assert move(pair.client, pair.peer, pieces((here.id, there.id, 1, 0, size))).error is None
        np.testing.assert_array_equal(near[1:-1], far)
        assert near[0] == near[-1] == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nothing_is_a_transfer_that_settles_at_once(transport):
    with engine_pair(transport) as pair:
        transfer = move(pair.client, pair.peer, pieces())
        assert transfer.error is None
        assert transfer.piece_errors == []
        assert transfer.bytes == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_empty_piece_moves_nothing_and_succeeds(transport):
    with engine_pair(transport) as pair:
        there = pair.server.register(b"right" * 4, name="m")
        near = bytearray(20)
        here = pair.client.register(near, name="m")
        pair.peer.refresh()
        rows = pieces(
            (here.id, there.id, 0, 0, 0), (here.id, there.id, 0, 0, 5), (here.id, there.id, 20, 20, 0)
        )
        transfer = move(pair.client, pair.peer, rows)
        assert transfer.piece_errors == [None] * 3
        assert transfer.bytes == 5
        assert near == b"right" + bytes(15)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_offsets_beyond_4_gib_are_not_cut_to_32_bits(transport):
    length = (5 << 30) + 3
    with engine_pair(transport, advise_huge_pages=False, server={"advise_huge_pages": False}) as pair:
        far, near = sparse(length), sparse(length)
        at = (4 << 30) + 1
        far[at : at + 4096] = pattern(4096, 1)
        far[-3:] = (7, 8, 9)
        there = pair.server.register(far, name="m")
        here = pair.client.register(near, name="m")
        pair.peer.refresh()
        assert pair.peer.region("m").length_bytes == length
        rows = pieces((here.id, there.id, at + 5, at, 4096), (here.id, there.id, length - 3, length - 3, 3))
        assert move(pair.client, pair.peer, rows).error is None
        np.testing.assert_array_equal(near[at + 5 : at + 4101], far[at : at + 4096])
        assert near[-3:].tolist() == [7, 8, 9]
        assert not near[1 : 1 + 8192].any(), "an offset was cut to 32 bits"


@pytest.mark.slow
def test_one_piece_longer_than_2_gib_moves():
    length = (2 << 30) + 1
    with engine_pair("shm", advise_huge_pages=False, server={"advise_huge_pages": False}) as pair:
        far = pair.server.register(sparse(length), name="m")
        target = sparse(length)
        here = pair.client.register(target, name="m")
        pair.peer.refresh()
        plan = pair.client.prepare(pair.peer, pieces((here.id, far.id, 0, 0, length)), "read")
        assert plan.bytes == length
        transfer = pair.client.submit(plan, timeout_s=0.2)
        assert transfer.wait(), "it settles at its deadline, moved or not"
        with pytest.raises(OutOfRangeError):
            pair.client.prepare(pair.peer, pieces((here.id, far.id, 0, 0, length + 1)), "read")
