from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

from _engines import engine_pair, move, pattern, pieces, wired_pair
from kvferry.errors import CancelledError, DeadlineExceededError, NotFoundError, StaleError

SIZE = 1 << 20


@pytest.fixture(params=["tcp", "shm"])
def wired(request):
    """A pair with one region at each end: (pair, local array, remote array, one whole piece)."""
    with wired_pair(request.param, SIZE) as parts:
        yield parts


@pytest.fixture
def hanging():
    """A transfer that no data ever reaches."""
    with engine_pair("tcp", fault_plan="tcp:hang") as pair:
        there = pair.server.register(bytearray(SIZE), name="m")
        here = pair.client.register(bytearray(SIZE), name="m")
        pair.peer.refresh()
        plan = pair.client.prepare(pair.peer, pieces((here.id, there.id, 0, 0, SIZE)), "read")
        yield lambda timeout_s=30.0: pair.client.submit(plan, timeout_s=timeout_s)


def test_read_brings_the_bytes_and_says_how(wired):
    pair, near, far, rows = wired
    transfer = move(pair.client, pair.peer, rows)
    assert transfer.error is None
    transfer.raise_if_failed()
    assert transfer.piece_errors == [None]
    np.testing.assert_array_equal(near, far)
    assert transfer.bytes == SIZE
    assert transfer.seconds > 0
    assert transfer.transport in ("tcp", "shm")
    stats = pair.peer.stats()
    assert (stats.bytes_read, stats.bytes_written) == (SIZE, 0)
    assert stats.transport == transfer.transport


def test_write_then_notify_arrives_after_the_data(wired):
    pair, near, far, rows = wired
    near[:] = pattern(SIZE, 2)
    transfer = move(pair.client, pair.peer, rows, "write", notify=b"done")
    assert transfer.error is None
    message = pair.server.next_message(5.0)
    assert message.body == b"done"
    np.testing.assert_array_equal(far, near)


def test_a_plan_may_be_submitted_many_times_from_many_threads(wired):
    pair, near, far, rows = wired
    plan = pair.client.prepare(pair.peer, rows, "read")
    transfers = []
    threads = [
        threading.Thread(target=lambda: transfers.extend(pair.client.submit(plan) for _ in range(10)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(transfer.wait() for transfer in transfers)
    assert [transfer.error for transfer in transfers] == [None] * 40
    np.testing.assert_array_equal(near, far)


def test_piece_errors_are_in_the_order_given(wired):
    pair, near, far, _rows = wired
    gone = pair.server.register(bytearray(4096), name="gone")
    pair.peer.refresh()
    here, there = pair.client, pair.peer.region("m").id
    local = here.register(near, name="again")
    plan = here.prepare(
        pair.peer,
        pieces(
            (local.id, there, 8192, 0, 4096),
            (local.id, gone.id, 0, 0, 4096),
            (local.id, there, 4096, 4096, 4096),
        ),
        "read",
    )
    gone.unregister()
    transfer = here.submit(plan)
    assert transfer.wait()
    first, second, third = transfer.piece_errors
    assert first is None
    assert third is None
    assert second is not None
    assert second.code in ("stale", "not_found")
    assert transfer.error is not None
    np.testing.assert_array_equal(near[8192:12288], far[:4096])
    np.testing.assert_array_equal(near[4096:8192], far[4096:8192])


def test_a_region_registered_anew_under_the_same_id_is_not_read_by_an_old_plan(wired):
    pair, near, _far, rows = wired
    old = pair.server.register(pattern(4096, 5), name="old")
    pair.peer.refresh()
    local = int(rows[0, 0])
    plan = pair.client.prepare(pair.peer, pieces((local, old.id, 0, 0, 4096)), "read")
    old.unregister()
    registered = [pair.server.register(pattern(4096, 6), name=f"new {n}") for n in range(20)]
    assert all((region.id, region.generation) != (old.id, old.generation) for region in registered)
    transfer = pair.client.submit(plan)
    assert transfer.wait()
    assert isinstance(transfer.error, (StaleError, NotFoundError))
    assert not near[:4096].any()


async def test_await_returns_the_transfer(wired):
    pair, near, far, rows = wired
    plan = pair.client.prepare(pair.peer, rows, "read")
    transfer = pair.client.submit(plan)
    assert await transfer is transfer
    assert await transfer is transfer
    np.testing.assert_array_equal(near, far)


async def test_many_tasks_await_many_transfers(wired):
    pair, _near, _far, rows = wired
    plan = pair.client.prepare(pair.peer, rows, "read")
    transfers = [pair.client.submit(plan) for _ in range(50)]
    done = await asyncio.gather(*transfers, *(transfer.wait_async() for transfer in transfers))
    assert done == [*transfers, *[True] * 50]


async def test_await_lets_the_loop_run_and_raises_what_failed(hanging):
    transfer = hanging()
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            if ticks == 10:
                transfer.cancel()
            await asyncio.sleep(0.01)

    ticker = asyncio.create_task(tick())
    with pytest.raises(CancelledError):
        await transfer
    assert ticks >= 10
    ticker.cancel()


async def test_await_does_not_pass_for_success_while_the_transfer_goes_on(hanging, monkeypatch):
    monkeypatch.setattr("kvferry.transfer.handle._SETTLE_MARGIN_S", -29.9)  # of 30 s
    transfer = hanging()
    with pytest.raises(DeadlineExceededError, match="goes on"):
        await transfer
    transfer.cancel()
    assert transfer.wait(25.0)


async def test_wait_async_gives_up_after_its_timeout(hanging):
    transfer = hanging()
    assert await transfer.wait_async(0.05) is False
    assert not transfer.settled
    transfer.cancel()
    assert await transfer.wait_async(25.0) is True


async def test_cancelling_the_waiting_task_leaves_the_transfer_alone(hanging):
    transfer = hanging()
    task = asyncio.create_task(transfer.wait_async())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not transfer.settled
    transfer.cancel()
    assert transfer.wait(25.0)


def test_wait_gives_up_after_its_timeout(hanging):
    transfer = hanging()
    started = time.monotonic()
    assert transfer.wait(0.3) is False
    assert 0.3 <= time.monotonic() - started < 30.0
    transfer.cancel()
    assert transfer.wait(30.0)
    assert isinstance(transfer.error, CancelledError)
    with pytest.raises(CancelledError):
        transfer.raise_if_failed()


def test_a_transfer_fails_at_its_deadline(hanging):
    started = time.monotonic()
    transfer = hanging(0.3)
    assert transfer.wait()
    assert time.monotonic() - started < 29.0
    assert isinstance(transfer.error, DeadlineExceededError)
