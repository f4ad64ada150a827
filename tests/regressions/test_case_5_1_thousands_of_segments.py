"""Case 5.1: with thousands of small segments the call that posts them takes longer than the transfer.

Counts instead of times: submit must not depend on the number of pieces; contiguous pieces are merged.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

from _engines import engine_pair, options
from _relay import Relay
from kvferry.transfer import Engine

COUNT, BLOCK = 15_000, 64 << 10


@pytest.fixture(scope="module")
def big():
    """A pair whose regions are 15,000 blocks long; the memory is sparse, no block is ever touched."""
    import mmap

    length = COUNT * BLOCK * 2
    with engine_pair("tcp") as pair:
        near, far = (np.frombuffer(mmap.mmap(-1, length), dtype=np.uint8) for _ in range(2))
        here = pair.client.register(near, name="m")
        there = pair.server.register(far, name="m")
        pair.peer.refresh()
        yield pair, here.id, there.id


def rows(big, local_blocks: np.ndarray, remote_blocks: np.ndarray) -> np.ndarray:
    _pair, here, there = big
    table = np.empty((COUNT, 5), dtype=np.uint64)
    table[:, 0], table[:, 1], table[:, 4] = here, there, BLOCK
    table[:, 2], table[:, 3] = local_blocks * BLOCK, remote_blocks * BLOCK
    return table


def test_contiguous_pieces_become_one_run(big):
    pair, *_ = big
    order = np.arange(COUNT)
    plan = pair.client.prepare(pair.peer, rows(big, order, order), "read")
    assert (plan.pieces, plan.bytes) == (COUNT, COUNT * BLOCK)
    assert plan.runs <= COUNT * BLOCK // (1 << 30) + 1


def test_contiguous_pieces_given_in_any_order_are_merged_too(big):
    pair, *_ = big
    order = np.random.default_rng(3).permutation(COUNT)
    assert pair.client.prepare(pair.peer, rows(big, order, order), "read").runs < 10


def test_scattered_pieces_stay_one_run_each(big):
    pair, *_ = big
    order = np.arange(COUNT)
    plan = pair.client.prepare(pair.peer, rows(big, order * 2, order[::-1] * 2), "read")
    assert plan.runs == COUNT


def test_submit_does_the_same_work_for_one_piece_and_for_15000(big):
    pair, *_ = big
    order = np.arange(COUNT)
    table = rows(big, order * 2, order * 2)
    plans = [pair.client.prepare(pair.peer, part, "read") for part in (table[:1].copy(), table)]
    counts = []
    for plan in plans:
        allocated = sys.getallocatedblocks()
        transfer = pair.client.submit(plan)
        counts.append(sys.getallocatedblocks() - allocated)
        transfer.cancel()
        assert transfer.wait(30.0)
    assert abs(counts[1] - counts[0]) < 100


def test_descriptors_take_at_most_24_bytes_for_each_segment():
    """Counted on the wire: what the reader sends for 15,000 scattered segments, frames and all.

    The second time they go by the numbers of their lists.
    """
    size = 64
    with Relay() as relay:
        chosen = options("tcp", bind=relay.target_endpoint, advertise=relay.endpoint)
        with Engine(chosen) as server, Engine(options("tcp", tcp_streams=1)) as client:
            far, near = (np.zeros(2 * COUNT * size, dtype=np.uint8) for _ in range(2))
            far[:] = np.arange(len(far)) % 251
            there = server.register(far, name="m")
            here = client.register(near, name="m")
            peer = client.connect(relay.endpoint, expected=server.node_id)
            table = np.empty((COUNT, 5), dtype=np.uint64)
            table[:, 0], table[:, 1], table[:, 4] = here.id, there.id, size
            table[:, 2] = table[:, 3] = np.arange(COUNT) * 2 * size
            plan = client.prepare(peer, table, "read")
            assert plan.runs == COUNT
            sent = []
            for _ in range(2):
                before = relay.forward
                transfer = client.submit(plan)
                assert transfer.wait()
                assert transfer.error is None
                sent.append(relay.forward - before)
            assert sent[0] <= COUNT * 24 + (16 << 10)
            assert sent[1] <= COUNT * 4, "what the owner knows is sent by value again"
            np.testing.assert_array_equal(near.reshape(-1, size)[::2], far.reshape(-1, size)[::2])


@pytest.mark.slow
def test_submit_of_a_prepared_plan_takes_less_than_5_ms(big, extent):
    """At full length only: a time says little on a loaded machine."""
    if not extent.long:
        pytest.skip("times are measured with --long")
    pair, *_ = big
    order = np.arange(COUNT)
    plan = pair.client.prepare(pair.peer, rows(big, order * 2, order[::-1] * 2), "read")
    times = []
    for _ in range(50):
        started = time.perf_counter()
        transfer = pair.client.submit(plan)
        times.append(time.perf_counter() - started)
        transfer.cancel()
        assert transfer.wait(30.0)
    assert sorted(times)[25] < 0.005
