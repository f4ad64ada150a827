"""Moving buffers by naming source and destination: the engine for scripts and first steps."""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from kvferry._native import Endpoint, Message
from kvferry.config import TransferOptions, load_config
from kvferry.errors import DeadlineExceededError, InvalidArgumentError, NotFoundError
from kvferry.transfer._buffers import Memory, memory_of
from kvferry.transfer.engine import Access, Engine, Op
from kvferry.transfer.handle import Transfer
from kvferry.transfer.peer import Peer
from kvferry.transfer.region import Region

Protocol = Literal["auto", "shm", "tcp"]


class Remote(NamedTuple):
    """A place in a peer's memory: what `TransferEngine.remote` returns and transfers take."""

    peer: Peer
    region: str
    region_id: int
    offset: int  # bytes
    length_bytes: int  # from the offset to the region's end

    def at(self, offset: int) -> Remote:
        """Return the place `offset` bytes further on. `InvalidArgumentError` outside of the region."""
        if not 0 <= offset <= self.length_bytes:
            raise InvalidArgumentError(
                f"offset {offset} leaves region {self.region!r}: {self.length_bytes} bytes follow"
            )
        return self._replace(offset=self.offset + offset, length_bytes=self.length_bytes - offset)


@dataclasses.dataclass
class _Registered:
    """Memory that transfers may name, and how many `register_memory` of it were not taken back."""

    memory: Memory
    region: Region
    count: int = 1

    def is_same(self, memory: Memory, name: str, access: Access) -> bool:
        region = self.region
        same = self.memory._replace(owner=None) == memory._replace(owner=None)
        return same and (region.name, region.access) == (name, access) and region.registered


class _Move(NamedTuple):
    """One contiguous run, resolved to regions."""

    peer: Peer
    op: Op
    piece: tuple[int, int, int, int, int]  # local region, remote region, local offset, remote offset, length


class TransferEngine:
    """Registers buffers and moves bytes between them and peers, without plans.

    A face over `Engine`, which `engine` gives access to and which is the one to use where the same blocks
    move again and again. Buffers are anything with the buffer protocol, numpy arrays and torch tensors. A
    context manager. Thread-safe.

        engine = TransferEngine(protocol="tcp")
        engine.register_memory(buffer, name="weights")
        engine.wait(engine.transfer(engine.remote("10.0.0.1:7000", "weights"), buffer))
    """

    def __init__(self, protocol: Protocol = "auto", *, options: TransferOptions | None = None) -> None:
        """Start listening. `protocol`: the only transport that may be used; "auto": the best that works.

        `options` default to the settings that `kvferry config` shows. Raises what `Engine` raises, and
        `ConfigError`.
        """
        chosen = load_config().transfer if options is None else options
        if protocol != "auto":
            chosen = msgspec.structs.replace(chosen, transports=(protocol,))
        self.engine = Engine(chosen)
        self._lock = threading.Lock()  # guards the two below
        self._registered: list[_Registered] = []
        self._peers: dict[str, Peer] = {}

    @property
    def endpoint(self) -> Endpoint:
        """What peers should connect to."""
        return self.engine.endpoint

    def register_memory(self, buffer: Any, *, name: str = "", access: Access = "rw") -> Region:
        """Make a buffer usable by transfers, and reachable for peers as `access` says; see `Engine.register`.

        The same memory with the same `name` and `access` once more is the same `Region`, without registering
        it again: a program that registers before each transfer pays once. It goes with as many
        `unregister_memory`.
        """
        memory = memory_of(buffer)
        with self._lock:
            for entry in self._registered:
                if entry.count > 0 and entry.is_same(memory, name, access):
                    entry.count += 1
                    return entry.region
        region = self.engine.register(buffer, name=name, access=access)
        with self._lock:
            self._registered.append(_Registered(memory, region))
        return region

    def unregister_memory(self, region: Region, timeout_s: float = 5.0) -> None:
        """End what `register_memory` began; see `Region.unregister`. Call it as often as that."""
        with self._lock:
            entry = next((entry for entry in self._registered if entry.region is region), None)
            if entry is not None:
                entry.count = max(0, entry.count - 1)
                if entry.count > 0:
                    return
        region.unregister(timeout_s)
        with self._lock:
            self._registered = [other for other in self._registered if other is not entry]

    def remote(self, endpoint: str, region: str, *, timeout_s: float | None = None) -> Remote:
        """Return the start of the region that the engine at `endpoint` calls `region`.

        Connects at the first call and after a loss; looks for new regions if the name is not known. Raises
        what `Engine.connect` raises, `NotFoundError`, and `InvalidArgumentError` if several are called so.
        """
        peer = self._connect(endpoint, timeout_s)
        try:
            info = peer.region(region)
        except NotFoundError:
            peer.refresh()
            info = peer.region(region)
        return Remote(peer, region, info.id, 0, info.length_bytes)

    def transfer(
        self, src: Any, dst: Any, size: int | None = None, *, timeout_s: float | None = None
    ) -> Transfer:
        """Start moving `size` bytes (default: as many as the smaller side has) from `src` to `dst`.

        One side is a `Remote`, the other a registered buffer or a view of a part of one. `timeout_s`: when it
        fails (default: the option transfer_timeout_s). Raises `InvalidArgumentError`, `OutOfRangeError`,
        `AccessDeniedError`, `PeerLostError`.
        """
        (started,) = self.batch_transfer([(src, dst, size)], timeout_s=timeout_s)
        return started

    def batch_transfer(
        self, moves: Iterable[tuple[Any, Any, int | None]], *, timeout_s: float | None = None
    ) -> list[Transfer]:
        """Start many moves (src, dst, size), see `transfer`; one transfer for each peer and direction."""
        groups: dict[tuple[Peer, Op], list[tuple[int, int, int, int, int]]] = {}
        for src, dst, size in moves:
            move = self._resolve(src, dst, size)
            groups.setdefault((move.peer, move.op), []).append(move.piece)
        plans = [
            self.engine.prepare(peer, np.array(pieces, np.uint64), op)
            for (peer, op), pieces in groups.items()
        ]
        return [self.engine.submit(plan, timeout_s=timeout_s) for plan in plans]

    def wait(self, transfers: Transfer | Sequence[Transfer], timeout_s: float | None = None) -> None:
        """Block until all are over; raise the first failure.

        `timeout_s` holds for each; default: its deadline. Raises `DeadlineExceededError` if one is not over
        by then.
        """
        for transfer in [transfers] if isinstance(transfers, Transfer) else transfers:
            if not transfer.wait(timeout_s):
                raise DeadlineExceededError(f"{transfer!r} is not over after {timeout_s} s; it goes on")
            transfer.raise_if_failed()

    def send(self, remote: Remote, body: bytes, *, timeout_s: float = 5.0) -> None:
        """Send a message to the peer of `remote`; see `Engine.send`."""
        self.engine.send(remote.peer, body, timeout_s=timeout_s)

    def next_message(self, timeout_s: float) -> Message | None:
        """Wait for a message from any peer; see `Engine.next_message`."""
        return self.engine.next_message(timeout_s)

    def close(self) -> None:
        """End the engine; idempotent."""
        self.engine.close()

    def __enter__(self) -> TransferEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self, endpoint: str, timeout_s: float | None) -> Peer:
        with self._lock:
            peer = self._peers.get(endpoint)
        if peer is not None and peer.alive:
            return peer
        peer = self.engine.connect(endpoint, timeout_s=timeout_s)
        with self._lock:
            self._peers[endpoint] = peer
        return peer

    def _resolve(self, src: Any, dst: Any, size: int | None) -> _Move:
        if isinstance(src, Remote) == isinstance(dst, Remote):
            raise InvalidArgumentError(
                "one side of a transfer must be a Remote (see remote()) and the other a registered buffer"
            )
        op: Op = "read" if isinstance(src, Remote) else "write"
        remote, buffer = (src, dst) if isinstance(src, Remote) else (dst, src)
        memory = memory_of(buffer)
        length = min(remote.length_bytes, memory.length_bytes) if size is None else operator.index(size)
        if not 0 <= length <= memory.length_bytes:
            raise InvalidArgumentError(
                f"size {length} is outside of the buffer, which has {memory.length_bytes} bytes"
            )
        region, offset = self._region_of(memory)
        return _Move(remote.peer, op, (region.id, remote.region_id, offset, remote.offset, length))

    def _region_of(self, memory: Memory) -> tuple[Region, int]:
        end = memory.address + memory.length_bytes
        with self._lock:
            for entry in self._registered:
                whole = entry.memory
                inside = whole.address <= memory.address and end <= whole.address + whole.length_bytes
                if inside and whole.kind == memory.kind and entry.region.registered:
                    return entry.region, memory.address - whole.address
        raise InvalidArgumentError(
            f"the buffer of {memory.length_bytes} bytes at {memory.address:#x} is not part of registered "
            "memory: call register_memory first"
        )
