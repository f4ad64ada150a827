"""Case 4.5: completion is announced before the copy is visible, and the reader gets old bytes.

Every word of a block holds the number of its round, in one byte so that no half of a word shows a third
number: a message, or a settled transfer, of that round means that each word shows it. A delay between the
order and the copy is injected. ThreadSanitizer watches the same in native/tests/transport_conformance.h.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from _engines import engine_pair, pieces

WORDS = 64 << 10  # of 8 bytes: eight slices


@pytest.fixture(params=["tcp", "shm"])
def joined(request):
    late = {"fault_plan": "*:delay=1", "slice_bytes": 64 << 10}
    with engine_pair(request.param, **late) as pair:
        near, far = (np.zeros(WORDS, dtype=np.uint64) for _ in range(2))
        here = pair.client.register(near, name="near", access="rw")
        there = pair.server.register(far, name="far", access="rw")
        pair.peer.refresh()
        yield pair, near, far, pieces((here.id, there.id, 0, 0, near.nbytes))


def rounds(extent) -> Iterator[int]:
    """Numbers from 1 to 255, again and again."""
    return (number % 255 + 1 for number in range(extent.times(60, 2000)))


def test_a_message_comes_after_all_words(joined, extent):
    pair, near, far, rows = joined
    plan = pair.client.prepare(pair.peer, rows, "write")
    for number in rounds(extent):
        near[:] = number
        transfer = pair.client.submit(plan, notify=number.to_bytes(8, "little"))
        message = pair.server.next_message(20.0)
        assert message is not None
        assert int.from_bytes(message.body, "little") == number
        assert (far == number).all(), f"round {number}: {np.unique(far)}"
        assert transfer.wait()
        assert transfer.error is None


def test_settled_comes_after_all_words(joined, extent):
    pair, near, far, rows = joined
    plan = pair.client.prepare(pair.peer, rows, "read")
    for number in rounds(extent):
        before = near[0]
        far[:] = number
        transfer = pair.client.submit(plan, timeout_s=20.0)
        while not transfer.settled:
            seen = near.copy()
            assert np.isin(seen, (before, number)).all()
        assert (near == number).all(), f"round {number}: {np.unique(near)}"
        assert transfer.error is None
