"""Case 5.2: the interpreter lock is held through native calls or set-up."""

from __future__ import annotations

import inspect
import operator
import threading
import time

import numpy as np
import pytest

from _engines import Child, engine_pair, options, pieces
from kvferry import _native
from kvferry.errors import KVFerryError
from kvferry.transfer import Engine

# Bindings that look something up, set a flag or copy a little: none waits for a lock that is held during I/O.
NEVER_BLOCK = {
    "BlockList.__init__",
    "BufferRuns.find",
    "ChainIndex.__init__", "KeyChain.__init__", "KeySpace.__init__",
    "Endpoint.__init__", "Endpoint.with_port",
    "Engine.counters", "Engine.file_note", "Engine.peer", "Engine.peers", "Engine.self",
    "Engine.set_metadata",
    "EngineOptions.__init__",
    "Member.__init__",
    "Nic.distance",
    "Node.error", "Node.on_heard", "Node.on_suspect",
    "NodeOptions.__init__", "NodeOptions.set_policy", "NodeOptions.set_ssd_policy",
    "NodeOptions.set_ssd_sync", "NodeOptions.set_ssd_write",
    "LogQueue.__init__", "LogQueue.close", "LogQueue.install", "LogQueue.push",
    "Peer.error", "Peer.stats",
    "PutArguments.__init__",
    "Store.counters", "Store.in_place", "Store.members",
    "StoreOptions.__init__", "StoreOptions.find_node",
    "View.pieces",
    "Transfer.cancel", "Transfer.error", "Transfer.event_fd", "Transfer.piece_errors",
    "buffer_address", "set_log_level", "tls_library",
}  # fmt: skip
_OF_VALUES = {"__eq__", "__hash__", "__repr__", "__str__"}  # of what Python holds already
_OF_PYBIND11 = {"__new__", "__init__", "_pybind11_conduit_v1_"}


def constructible(cls: type) -> bool:
    """pybind11 gives classes without a constructor an __init__ that raises TypeError."""
    return "No constructor defined" not in error_of(cls)


def error_of(cls: type) -> str:
    try:
        cls()
    except TypeError as error:
        return str(error)
    return ""


def bindings() -> set[str]:
    """Everything in the module that can be called, by qualified name."""
    found = set()
    for name in _native.__all__:
        thing = getattr(_native, name)
        if inspect.isclass(thing):
            methods = {method for method, value in vars(thing).items() if callable(value)}
            methods -= _OF_PYBIND11 | _OF_VALUES
            methods |= {"__init__"} if constructible(thing) else set()
            found |= {f"{name}.{method}" for method in methods}
        elif callable(thing):
            found.add(name)
    return found


def test_every_binding_is_known_to_block_or_not():
    known = bindings()
    assert known >= {"Engine.connect", "Transfer.wait"}
    assert known - set(_native.BLOCKING) - NEVER_BLOCK == set(), (
        "a new binding must release the lock (Blocking::def) or be listed here with a reason"
    )
    assert NEVER_BLOCK - known == set(), "listed, but gone"


def test_blocking_bindings_exist():
    for qualified in _native.BLOCKING:
        assert callable(operator.attrgetter(qualified)(_native))


class Counter:
    """Another thread that must keep running; records the longest time between two of its steps."""

    def __init__(self) -> None:
        self.steps = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.steps += 1
            time.sleep(0.001)

    def __enter__(self) -> Counter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def waits() -> dict[str, object]:
    """A call for each binding that can be made to wait, by name."""
    return {
        "Transfer.wait": lambda engine, _peer, transfer: transfer._native.wait(0.5),
        "Engine.next_message": lambda engine, _peer, _transfer: engine._native.next_message(0.5),
        "Peer.refresh": lambda _engine, peer, _transfer: peer._native.refresh(0.5),
        "Engine.connect": lambda engine, peer, _transfer: engine._native.connect(peer.endpoint, "", 0.5),
        "LogQueue.drain": lambda _engine, _peer, _transfer: _native.LogQueue(4).drain(0.5),
    }


@pytest.mark.parametrize("name", sorted(waits()))
def test_other_threads_run_while_a_binding_waits(name):
    import signal

    with (
        Child([{"name": "m", "length": 4096}], transports=["tcp"]) as child,
        Engine(options("tcp")) as engine,
    ):
        here = engine.register(bytearray(4096), name="h")
        peer = engine.connect(child.endpoint)
        plan = engine.prepare(peer, pieces((here.id, peer.region("m").id, 0, 0, 4096)), "read")
        child.process.send_signal(signal.SIGSTOP)
        try:
            transfer = engine.submit(plan, timeout_s=5.0)
            with Counter() as counter:
                before, started = counter.steps, time.monotonic()
                try:
                    waits()[name](engine, peer, transfer)
                except KVFerryError:
                    assert name in ("Peer.refresh", "Engine.connect")
                assert time.monotonic() - started >= 0.4, "the call did not wait, so that it shows nothing"
                # One or two if the lock were held; no more than that is asked of a loaded machine.
                assert counter.steps - before >= 5
        finally:
            child.process.send_signal(signal.SIGCONT)


def test_other_threads_run_while_a_large_region_is_made_and_moved():
    with engine_pair("shm") as pair, Counter() as counter:
        far = pair.server.allocate(256 << 20, name="m")
        near = pair.client.allocate(256 << 20, name="m")
        pair.peer.refresh()
        before = counter.steps
        transfer = pair.client.submit(
            pair.client.prepare(pair.peer, pieces((near.id, far.id, 0, 0, 256 << 20)), "read")
        )
        assert transfer.wait()
        assert transfer.error is None
        assert counter.steps > before
        assert not np.frombuffer(near.memory, dtype=np.uint8)[:: 1 << 16].any()
