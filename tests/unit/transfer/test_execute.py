from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from _engines import Child, engine_pair, options, pieces, wired_pair
from kvferry.errors import DeadlineExceededError, InvalidArgumentError, StaleError
from kvferry.transfer import Engine

SIZE = 1 << 20


@pytest.fixture(params=["tcp", "shm"])
def wired(request):
    """(pair, local array, remote array, a plan that reads all of it)"""
    with wired_pair(request.param, SIZE) as (pair, near, far, rows):
        yield pair, near, far, pair.client.prepare(pair.peer, rows, "read")


@pytest.fixture
def hanging():
    """(engine, plan): the rail is open, what goes over it hangs."""
    with engine_pair("tcp", fault_plan="tcp:hang@2") as pair:
        there = pair.server.register(bytearray(4096), name="m")
        here = pair.client.register(bytearray(4096), name="m")
        pair.peer.refresh()
        plan = pair.client.prepare(pair.peer, pieces((here.id, there.id, 0, 0, 4096)), "read")
        pair.client.execute(plan).raise_if_failed()
        yield pair.client, plan


def test_it_returns_the_settled_transfer(wired):
    pair, near, far, plan = wired
    for _ in range(3):
        near[:] = 0
        transfer = pair.client.execute(plan)
        assert transfer.settled
        transfer.raise_if_failed()
        np.testing.assert_array_equal(near, far)


def test_its_message_arrives(wired):
    pair, _near, _far, plan = wired
    pair.client.execute(plan, notify=b"done").raise_if_failed()
    assert pair.server.next_message(5.0).body == b"done"


def test_a_failed_transfer_is_returned_not_raised(hanging):
    engine, plan = hanging
    transfer = engine.execute(plan, timeout_s=0.2)
    assert isinstance(transfer.error, DeadlineExceededError)


def test_other_threads_run_meanwhile(hanging):
    engine, plan = hanging
    seen = []
    other = threading.Thread(target=lambda: seen.append(engine.peers()))
    threading.Timer(0.05, other.start).start()
    engine.execute(plan, timeout_s=1.0)
    assert seen


class Alarm(Exception):
    pass


def to_this_process() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def to_a_thread_that_does_not_wait() -> None:
    """As a signal that comes just before the wait begins: it interrupts nothing."""
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)


@pytest.mark.parametrize("send", [to_this_process, to_a_thread_that_does_not_wait])
def test_a_signal_handler_runs_and_may_end_it(send):
    def ring(*_):
        raise Alarm

    with (
        Child([{"name": "m", "length": 4096}], transports=["tcp"]) as child,
        Engine(options("tcp", idle_probe_s=60.0)) as engine,
    ):
        here = engine.register(bytearray(4096), name="h")
        peer = engine.connect(child.endpoint)
        there = peer.region("m")
        plan = engine.prepare(peer, pieces((here.id, there.id, 0, 0, 4096)), "read")
        engine.execute(plan).raise_if_failed()
        child.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.process.pid, os.WSTOPPED | os.WNOWAIT)
        before = signal.signal(signal.SIGUSR1, ring)
        timer = threading.Timer(0.2, send)
        timer.start()
        begin = time.monotonic()
        try:
            with pytest.raises(Alarm):
                engine.execute(plan, timeout_s=110.0)
        finally:
            timer.join()
            signal.signal(signal.SIGUSR1, before)
            child.process.send_signal(signal.SIGCONT)
        assert time.monotonic() - begin < 30, "only the peer's silence has ended it"


def test_priorities_have_names(wired):
    pair, _near, _far, plan = wired
    for priority in ("high", "normal", "low"):
        transfer = pair.client.submit(plan, priority=priority)
        assert transfer.wait()
        transfer.raise_if_failed()
        pair.client.execute(plan, priority=priority).raise_if_failed()
    with pytest.raises(InvalidArgumentError, match="'urgent'"):
        pair.client.submit(plan, priority="urgent")


def test_the_stages_of_a_transfer_add_up(wired):
    pair, _near, _far, plan = wired
    transfer = pair.client.submit(plan)
    assert transfer.wait()
    stages = transfer.stages
    parts = (stages.submit_s, stages.queue_s, stages.move_s, stages.settle_s)
    assert min(parts) >= 0
    assert stages.move_s > 0
    assert sum(parts) == pytest.approx(transfer.seconds)
    assert stages.wake_s >= 0


def test_statistics_by_transport(wired):
    pair, _near, _far, plan = wired
    for _ in range(5):
        pair.client.execute(plan).raise_if_failed()
    stats = pair.peer.stats()
    assert (stats.unsettled_transfers, stats.queued_slices, stats.rail_switches) == (0, 0, 0)
    (only,) = stats.by_transport
    assert only.transport == stats.transport
    assert (only.bytes_read, only.bytes_written) == (5 * SIZE, 0)
    assert (only.transfers, only.pieces, only.failed_pieces) == (5, 5, {})
    assert (only.rail_failures, only.retried_slices) == (0, 0)
    assert only.rails >= 1
    assert sum(only.latency) == 5
    assert only.latency_sum_s > 0


def test_failures_are_counted_by_kind():
    with engine_pair("tcp") as pair:
        there = pair.server.register(bytearray(4096), name="m")
        here = pair.client.register(bytearray(4096), name="m")
        pair.peer.refresh()
        plan = pair.client.prepare(pair.peer, pieces((here.id, there.id, 0, 0, 4096)), "read")
        there.unregister()
        assert isinstance(pair.client.execute(plan).error, StaleError)
        assert pair.peer.stats().by_transport[0].failed_pieces == {"stale": 1}
