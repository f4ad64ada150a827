"""Case 3.3: the peer stops answering (SIGSTOP) and the reader waits for ever."""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest

from _engines import Child, options, pattern, pieces
from kvferry.errors import DeadlineExceededError, KVFerryError
from kvferry.testing.waiting import stop_process
from kvferry.transfer import Engine, may_still_land

SIZE = 1 << 20


def test_every_wait_on_a_stopped_peer_has_a_deadline():
    with (
        Child([{"name": "m", "length": SIZE}], transports=["tcp"], allow_fallback=False) as child,
        Engine(options("tcp")) as engine,
    ):
        near = np.zeros(SIZE, dtype=np.uint8)
        here = engine.register(near, name="near")
        peer = engine.connect(child.endpoint)
        plan = engine.prepare(peer, pieces((here.id, peer.region("m").id, 0, 0, SIZE)), "read")
        child.process.send_signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            transfers = [engine.submit(plan, timeout_s=1.0) for _ in range(20)]
            with pytest.raises(KVFerryError):
                peer.refresh(timeout_s=1.0)
            with pytest.raises(KVFerryError):
                engine.connect(child.endpoint, timeout_s=1.0)
            assert all(transfer.wait() for transfer in transfers)
            assert time.monotonic() - started < 20.0
            assert {type(transfer.error) for transfer in transfers} == {DeadlineExceededError}
            here.unregister(timeout_s=1.0)  # nothing holds the memory any more
        finally:
            child.process.send_signal(signal.SIGCONT)
        again = engine.register(near, name="again")
        peer = engine.connect(child.endpoint)
        transfer = engine.submit(
            engine.prepare(peer, pieces((again.id, peer.region("m").id, 0, 0, SIZE)), "read")
        )
        assert transfer.wait()
        assert transfer.error is None
        np.testing.assert_array_equal(near, pattern(SIZE, 0))


def test_a_write_that_nobody_confirmed_is_known_by_its_error() -> None:
    near = np.zeros(SIZE, dtype=np.uint8)
    with (
        Child([{"name": "m", "length": SIZE}], transports=["tcp"], allow_fallback=False) as child,
        Engine(options("tcp")) as engine,
    ):
        here = engine.register(near, name="near")
        peer = engine.connect(child.endpoint)
        plan = engine.prepare(peer, pieces((here.id, peer.region("m").id, 0, 0, SIZE)), "write")
        first = engine.submit(plan)
        assert first.wait()
        first.raise_if_failed()
        stop_process(child.process)  # a signal alone may come after the write
        try:
            transfer = engine.submit(plan, timeout_s=3.0)
            assert transfer.wait()
        finally:
            child.process.send_signal(signal.SIGCONT)
        assert transfer.error is not None
        assert may_still_land(transfer.error)
    assert not may_still_land(DeadlineExceededError("the peer could not be connected in time"))


def test_a_silent_peer_is_lost_after_three_missed_probes():
    with Child(transports=["tcp"]) as child, Engine(options("tcp", idle_probe_s=0.3)) as engine:
        peer = engine.connect(child.endpoint)
        stop_process(child.process)
        try:
            started = time.monotonic()
            while peer.alive:
                assert time.monotonic() - started < 14.0  # by default it would be 15 s
                time.sleep(0.02)
            assert time.monotonic() - started >= 0.6
            assert child.endpoint in str(peer.error) or child.node_id in str(peer.error)
        finally:
            child.process.send_signal(signal.SIGCONT)
