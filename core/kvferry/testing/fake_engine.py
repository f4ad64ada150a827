"""A transfer engine in plain Python with the interface of `kvferry.transfer.Engine`, for tests.

Engines of one `FakeNetwork` reach each other by endpoint, copy memory when a transfer is submitted, and
deliver control messages into each other's queues. The network has the switches that tests need: hold
transfers back, fail them, stop an engine from answering, let one die.
"""

from __future__ import annotations

import ctypes
import itertools
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvferry.errors import (
    CancelledError,
    DeadlineExceededError,
    IdentityMismatchError,
    InvalidArgumentError,
    KVFerryError,
    NotFoundError,
    OutOfRangeError,
    PeerLostError,
    UnavailableError,
)


class FakeMessage(NamedTuple):
    """A control message; `peer` is the handle to answer to."""

    peer: int
    body: bytes


class FakeRegion(NamedTuple):
    """Registered memory; also what a peer learns of it."""

    id: int
    generation: int
    name: str
    length_bytes: int
    access: str


class FakePlan(NamedTuple):
    """Pieces to move between an engine and a peer: uint64 [n, 5] as for `Engine.prepare`."""

    peer: FakePeer
    pieces: npt.NDArray[np.uint64]
    op: str


class FakeNetwork:
    """The wire between fake engines, with its faults.

    `hold`: transfers wait until `run_held` or a cancel. `before_transfer`: called with each transfer before
    its bytes move; a KVFerryError that it raises fails the transfer.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.hold = False
        self.before_transfer: Callable[[FakeTransfer], None] | None = None
        self.held: list[FakeTransfer] = []
        self._ports = itertools.count(40001)
        self._engines: dict[str, FakeEngine] = {}
        self._lock = threading.Lock()

    def engine(self, metadata: bytes = b"", *, endpoint: str | None = None) -> FakeEngine:
        """Start an engine, at a new endpoint or at one whose engine is gone (a restart)."""
        with self._lock:
            where = endpoint or f"127.0.0.1:{next(self._ports)}"
            if where in self._engines and not self._engines[where].closed:
                raise InvalidArgumentError(f"{where} is in use")
            engine = FakeEngine(self, where, metadata)
            self._engines[where] = engine
            return engine

    def find(self, endpoint: str) -> FakeEngine | None:
        """Return the engine that listens there."""
        with self._lock:
            engine = self._engines.get(endpoint)
        return None if engine is None or engine.closed else engine

    def run_held(self, count: int | None = None) -> int:
        """Let held transfers move their bytes, oldest first; return how many there were."""
        with self._lock:
            ready = self.held[:count]
            del self.held[: len(ready)]
        for transfer in ready:
            transfer.run()
        return len(ready)


class FakeEngine:
    """One engine. `stopped`: its process is suspended, its memory still readable. `close()` also plays death.

    With `on_message` set, messages are handled in the sender's thread, so that a test needs no threads.
    """

    def __init__(self, network: FakeNetwork, endpoint: str, metadata: bytes) -> None:
        self.network = network
        self.endpoint = endpoint
        self.node_id = secrets.token_hex(16)
        self.metadata = metadata
        self.closed = False
        self.stopped = False
        self.on_message: Callable[[FakeMessage], None] | None = None
        self._handles = itertools.count(1)
        self._region_ids = itertools.count(1)
        self._regions: dict[int, tuple[FakeRegion, memoryview]] = {}
        self._peers: dict[int, FakePeer] = {}
        self._inbox: queue.Queue[FakeMessage] = queue.Queue()
        self._lock = threading.Lock()

    def register(self, buffer: Any, name: str = "", access: str = "r") -> FakeRegion:
        """Register a writable C-contiguous buffer, or an object with `data_ptr()` and `nbytes`."""
        view = _bytes_of(buffer)
        with self._lock:
            region = FakeRegion(next(self._region_ids), 1, name, view.nbytes, access)
            self._regions[region.id] = (region, view)
        return region

    def set_metadata(self, metadata: bytes) -> None:
        """Replace what peers get at hello."""
        self.metadata = metadata

    def connect(self, endpoint: object, expected: str | None = None, timeout_s: float = 5.0) -> FakePeer:
        """Return a peer.

        Raises UnavailableError, IdentityMismatchError, DeadlineExceededError (a stopped engine).
        """
        other = self.network.find(str(endpoint))
        if other is None:
            raise UnavailableError(f"connection to {endpoint} refused")
        if other.stopped:
            raise DeadlineExceededError(f"no hello from {endpoint} within {timeout_s:.1f} s")
        if expected is not None and other.node_id != expected:
            raise IdentityMismatchError(
                f"address {endpoint} is held by node {other.node_id}, expected {expected}"
            )
        here, there = FakePeer(self, other), FakePeer(other, self)
        here.other_end, there.other_end = there, here
        return here

    def prepare(self, peer: FakePeer, pieces: npt.NDArray[np.uint64], op: str = "read") -> FakePlan:
        """Check ranges. Raises InvalidArgumentError, NotFoundError, OutOfRangeError."""
        if pieces.dtype != np.uint64 or pieces.ndim != 2 or pieces.shape[1] != 5:
            raise InvalidArgumentError(f"pieces must be uint64 [n, 5], got {pieces.dtype} {pieces.shape}")
        for local, remote, local_offset, remote_offset, length in pieces.tolist():
            self.slice_of(local, local_offset, length)
            peer.remote.slice_of(remote, remote_offset, length)
        return FakePlan(peer, pieces, op)

    def submit(self, plan: FakePlan, timeout_s: float | None = None, notify: bytes = b"") -> FakeTransfer:
        """Start a transfer; done at once unless the network holds transfers."""
        transfer = FakeTransfer(self, plan, notify)
        if self.network.hold:
            self.network.held.append(transfer)
        else:
            transfer.run()
        return transfer

    def send(self, peer: FakePeer | int, body: bytes, timeout_s: float = 5.0) -> None:
        """Send a control message. Raises PeerLostError."""
        handle = peer if isinstance(peer, int) else peer.handle
        known = self._peers.get(handle)
        if known is None or not known.alive:
            raise PeerLostError(f"peer {handle} is gone")
        known.remote.deliver(FakeMessage(known.other_end.handle, body))

    def deliver(self, message: FakeMessage) -> None:
        """Take a message that came by the network."""
        if self.on_message is not None and not self.stopped:
            self.on_message(message)
        else:
            self._inbox.put(message)

    def next_message(self, timeout_s: float = 0.0) -> FakeMessage | None:
        """Return the next control message, or None after `timeout_s`."""
        if self.stopped or self.closed:
            time.sleep(min(timeout_s, 0.01))
            return None
        try:
            return self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return None

    def peer(self, handle: int) -> FakePeer | None:
        """Return a peer by handle."""
        return self._peers.get(handle)

    def peers(self) -> list[FakePeer]:
        """Return all peers, of either direction."""
        return list(self._peers.values())

    def counters(self) -> dict[str, int]:
        """Return nothing: a fake counts nothing."""
        return {}

    def close(self) -> None:
        """End: connections break, memory is out of reach. Idempotent."""
        self.closed = True

    def slice_of(self, region_id: int, offset: int, length: int) -> memoryview:
        """Return registered memory. Raises NotFoundError, OutOfRangeError."""
        found = self._regions.get(region_id)
        if found is None:
            raise NotFoundError(f"no region {region_id}")
        region, view = found
        if offset + length > region.length_bytes:
            raise OutOfRangeError(
                f"[{offset}, {offset + length}) leaves region {region_id} of {region.length_bytes} bytes"
            )
        return view[offset : offset + length]

    def regions(self) -> list[FakeRegion]:
        """Return what is registered."""
        return [region for region, _ in self._regions.values()]

    def add_peer(self, peer: FakePeer) -> int:
        """Take in a new connection's end; return its handle."""
        with self._lock:
            handle = next(self._handles)
            self._peers[handle] = peer
            return handle


class FakePeer:
    """One end of a connection: what `local` knows of `remote`."""

    def __init__(self, local: FakeEngine, remote: FakeEngine) -> None:
        self.local, self.remote = local, remote
        self.other_end: FakePeer = self
        self.node_id, self.endpoint = remote.node_id, remote.endpoint
        self.metadata, self.regions = remote.metadata, remote.regions()
        self.same_host, self.transport_note = True, ""
        self.closed = False
        self.handle = local.add_peer(self)

    @property
    def alive(self) -> bool:
        """Whether both ends are there."""
        return not (self.closed or self.other_end.closed or self.local.closed or self.remote.closed)

    def refresh(self, timeout_s: float = 5.0) -> None:
        """Fetch metadata and regions anew. Raises PeerLostError, DeadlineExceededError (a stopped engine)."""
        if not self.alive:
            raise PeerLostError(f"peer {self.handle} is gone")
        if self.remote.stopped:
            raise DeadlineExceededError(f"no answer from {self.endpoint} within {timeout_s:.1f} s")
        self.metadata, self.regions = self.remote.metadata, self.remote.regions()

    def close(self) -> None:
        """Close the connection."""
        self.closed = True


class FakeTransfer:
    """One submission."""

    def __init__(self, engine: FakeEngine, plan: FakePlan, notify: bytes) -> None:
        self.engine, self.plan, self.notify = engine, plan, notify
        self.transport = "fake"
        self.error: KVFerryError | None = None
        self.bytes = 0
        self.seconds = 0.0
        self._settled = threading.Event()
        self._started_at = engine.network.clock()

    @property
    def settled(self) -> bool:
        """Whether no thread touches local memory any more."""
        return self._settled.is_set()

    @property
    def piece_errors(self) -> Sequence[KVFerryError | None]:
        """The outcome of each piece: all alike."""
        return [self.error] * len(self.plan.pieces)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until settled; True when it is."""
        return self._settled.wait(timeout_s)

    def cancel(self) -> None:
        """Settle now, unless settled."""
        self._settle(CancelledError("transfer was cancelled"))

    def raise_if_failed(self) -> None:
        """Raise the error, if any."""
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        """Move the bytes, or fail; called by the network."""
        if self.settled:
            return
        try:
            if self.engine.network.before_transfer is not None:
                self.engine.network.before_transfer(self)
            if not self.plan.peer.alive:
                raise PeerLostError(f"peer at {self.plan.peer.endpoint} was lost")
            self._copy()
        except KVFerryError as error:
            self._settle(error)
            return
        self._settle(None)
        if self.notify:
            self.engine.send(self.plan.peer, self.notify)

    def _copy(self) -> None:
        remote_engine = self.plan.peer.remote
        for local, remote, local_offset, remote_offset, length in self.plan.pieces.tolist():
            ours = self.engine.slice_of(local, local_offset, length)
            theirs = remote_engine.slice_of(remote, remote_offset, length)
            if self.plan.op == "read":
                ours[:] = theirs
            else:
                theirs[:] = ours
        self.bytes = int(self.plan.pieces[:, 4].sum())

    def _settle(self, error: KVFerryError | None) -> None:
        if self._settled.is_set():
            return
        self.error = error
        self.seconds = self.engine.network.clock() - self._started_at
        self._settled.set()


def _bytes_of(buffer: Any) -> memoryview:
    if not hasattr(buffer, "data_ptr"):
        return memoryview(buffer).cast("B")
    array = (ctypes.c_char * int(buffer.nbytes)).from_address(buffer.data_ptr())
    array._keep_alive = buffer  # type: ignore[attr-defined]
    return memoryview(array).cast("B")
