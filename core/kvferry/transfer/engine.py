"""The engine: one per process is usual, several work."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

import numpy as np

from kvferry import _native
from kvferry._native import BlockList, Endpoint, Message, Plan, RegionInfo
from kvferry.config import TransferOptions
from kvferry.errors import InvalidArgumentError
from kvferry.transfer import _logging
from kvferry.transfer._buffers import Memory, memory_of, view_of
from kvferry.transfer._options import native_options
from kvferry.transfer._waiting import wait_in_slices
from kvferry.transfer.handle import Transfer
from kvferry.transfer.peer import Peer
from kvferry.transfer.region import Region

Access = Literal["r", "w", "rw"]
Op = Literal["read", "write"]
Priority = Literal["high", "normal", "low"]
Direct = Literal["auto", "always", "never"]
Sync = Literal["none", "data", "full"]


class Engine:
    """Registers memory, connects to other engines and moves bytes between registered regions.

    Listens as soon as it is made: `endpoint` says where, `node_id` who. A context manager; `close` is also
    called when it is collected or the interpreter ends. All methods are thread-safe; those that block say for
    how long.
    """

    def __init__(self, options: TransferOptions | None = None, *, metadata: bytes = b"") -> None:
        """Start listening. `metadata`: at most 64 KiB, handed to every peer.

        Raises `InvalidArgumentError` (an option), `UnavailableError` (cannot bind), `ResourceExhaustedError`.
        """
        self._options = TransferOptions() if options is None else options
        _logging.start()
        self._native = _native.Engine(native_options(self._options, metadata))
        # Keeps registered memory alive: for each region, by id and generation, that of each registration.
        self._memory: dict[tuple[int, int], dict[int, Memory | None]] = {}
        self._read_only: dict[int, int] = {}  # regions that may not be read into: id to generation
        self._lock = threading.Lock()  # guards the two above
        self._tickets = itertools.count()
        self._finalizer = weakref.finalize(self, _close, self._native, self._memory)

    @property
    def node_id(self) -> str:
        """128 random bits, new at each start, as 32 hex digits."""
        return self._native.node_id

    @property
    def endpoint(self) -> Endpoint:
        """What peers should connect to."""
        return self._native.endpoint

    @property
    def options(self) -> TransferOptions:
        """The options it was made with."""
        return self._options

    def register(self, buffer: Any, *, name: str = "", access: Access = "r") -> Region:
        """Make a buffer's memory reachable for peers, which may read ("r"), write ("w") or both ("rw").

        `buffer`: contiguous memory: anything with the buffer protocol, a numpy array, a torch tensor or
        storage, a CUDA array. It is kept alive until `Region.unregister`. Blocks only to look at the memory.
        Memory of an accelerator is moved by tcp. `name`: at most 255 bytes. Raises `InvalidArgumentError`
        (no, empty or non-contiguous memory, or read-only memory for access "w"), `UnsupportedError` and
        `UnavailableError` (memory that cannot be reached here, with its kind), `ResourceExhaustedError` (too
        many regions).

        The same memory once more, with the same `name` and `access`, is the same region, at little cost; it
        is unregistered with the last of the `Region` objects. More than 60 registrations of one range within
        a minute are warned of. Names need not differ, but peers cannot look a region up by a name that two
        have.
        """
        memory = memory_of(buffer)
        if memory.read_only and "w" in access:
            raise InvalidArgumentError(
                f"this {type(buffer).__name__} is read-only, so access={access!r} is impossible: use 'r'"
            )
        info = self._native.register_address(memory.address, memory.length_bytes, name, access, memory.kind)
        ticket = self._keep(info, memory)
        return Region(self, info, ticket, read_only=memory.read_only, memory=None)

    def allocate(self, length_bytes: int, *, name: str = "", access: Access = "r") -> Region:
        """Make a zeroed region of our own, which peers on this host map and copy without system calls.

        Its bytes are `Region.memory`, valid until it is unregistered or the engine closed. Raises
        `InvalidArgumentError`, `ResourceExhaustedError`.
        """
        info, address = self._native.allocate(length_bytes, name, access)
        ticket = self._keep(info, None)  # the native engine owns it
        return Region(self, info, ticket, read_only=False, memory=view_of(address, length_bytes))

    def open_file(
        self,
        path: str | os.PathLike[str],
        *,
        length_bytes: int | None = None,
        create: bool = False,
        access: Access = "r",
        direct: Direct = "auto",
        sync: Sync = "none",
    ) -> Region:
        """Open a file (or block device) of this host as a region that only this engine reaches.

        Plans name it as their remote side, with `self_peer` as the peer: "write" stores host memory in the
        file, "read" loads it. `Region.note` tells how. `length_bytes`: of the region; default what the file
        has. `create`: make a missing file, and allocate all of its space now. `access`: what transfers may
        do. `direct`: past the page cache if possible ("auto"), or else fail ("always"), or not at all
        ("never"). `sync`: whether a settled write is on stable storage, with its data ("data", as by
        fdatasync) or all attributes, too ("full"), or with the kernel only ("none").

        Blocks for the file system. Raises `InvalidArgumentError`, `NotFoundError`, `AccessDeniedError`,
        `OutOfRangeError` (shorter than asked for), `ResourceExhaustedError` (no space), `UnsupportedError`
        (direct="always" where it is not possible), each naming the path.
        """
        info = self._native.open_file(os.fsencode(path), length_bytes or 0, create, access, direct, sync)
        return Region(self, info, self._keep(info, None), read_only=False, memory=None)

    @property
    def self_peer(self) -> Peer:
        """This engine as its own peer, with the handle 0: for its files, and for copies between its
        regions."""
        return self._wrap(self._native.self())

    def _file_note(self, region: Region) -> str:
        return self._native.file_note(region.id, region.generation)

    def _keep(self, info: RegionInfo, memory: Memory | None) -> int:
        """Keep a registration's memory alive; returns its ticket."""
        ticket = next(self._tickets)
        with self._lock:
            self._memory.setdefault((info.id, info.generation), {})[ticket] = memory
            self._note_read_only((info.id, info.generation))
        return ticket

    def _is_registered(self, region: Region) -> bool:
        with self._lock:
            return region._ticket in self._memory.get((region.id, region.generation), ())

    def _unregister(self, region: Region, timeout_s: float) -> None:
        if not self._is_registered(region):
            return
        key = (region.id, region.generation)
        self._native.unregister(*key, timeout_s)
        with self._lock:
            held = self._memory.get(key, {})  # empty once the engine was closed
            held.pop(region._ticket, None)
            if not held:
                self._memory.pop(key, None)
            self._note_read_only(key)
        region._forget_memory()

    def _note_read_only(self, key: tuple[int, int]) -> None:
        """Bring `_read_only` up to date; the lock is held. Whoever registers memory as writable may write."""
        held = self._memory.get(key, {}).values()
        region, generation = key
        if held and all(memory is not None and memory.read_only for memory in held):
            self._read_only[region] = generation
        elif self._read_only.get(region) == generation:  # the id may be in use again
            del self._read_only[region]

    def set_metadata(self, metadata: bytes) -> None:
        """Replace what new peers get at first contact and old ones by `Peer.refresh`; at most 64 KiB."""
        self._native.set_metadata(metadata)

    def connect(
        self, endpoint: Endpoint | str, *, expected: str | None = None, timeout_s: float | None = None
    ) -> Peer:
        """Connect to the engine at `endpoint`; blocks up to `timeout_s` (default: the option
        connect_timeout_s).

        `expected`: its node id, if known. Raises `InvalidArgumentError` (no address), `UnavailableError`,
        `DeadlineExceededError`, `IdentityMismatchError` (another node answered), `UnauthenticatedError`,
        `UnsupportedError` (no common version), `ProtocolError`.
        """
        address = Endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        limit_s = self._options.connect_timeout_s if timeout_s is None else timeout_s
        return self._wrap(self._native.connect(address, expected or "", limit_s))

    def prepare(self, peer: Peer, pieces: Any, op: Op) -> Plan:
        """Check and merge the pieces of a transfer; the plan may be submitted many times.

        `pieces`: C-contiguous uint64 [n, 5] (numpy, or any buffer): local region id, remote region id, local
        offset, remote offset, length, in bytes. "read" moves remote to local, "write" local to remote. Does
        not block. Raises `InvalidArgumentError` (the array, or a read into read-only memory),
        `NotFoundError` (no such region), `OutOfRangeError`, `AccessDeniedError`, `PeerLostError`.
        """
        if op == "read" and self._read_only:
            array = np.asarray(pieces)
            if array.ndim == 2:  # else the native side says what is wrong with it
                self._refuse_read_only_targets(set(np.unique(array[:, 0]).tolist()))
        return self._native.prepare(peer._native, pieces, op)

    def prepare_blocks(
        self,
        peer: Peer,
        op: Op,
        *,
        local: BlockList | Sequence[BlockList],
        remote: BlockList | Sequence[BlockList],
        local_index: Any,
        remote_index: Any,
    ) -> Plan:
        """As `prepare`, for blocks named by their index in one list, or in several at once (e.g. layers).

        `local_index`, `remote_index`: dense int32 [n] (numpy, or any buffer). Block `local_index[i]` of each
        local list goes with block `remote_index[i]` of the remote list at the same place. Piece `l * n + i`
        is index i of list l. Does not block. Raises as `prepare`; `OutOfRangeError` also for an index that a
        list does not have, `InvalidArgumentError` for lists that are not pairs of one block size.
        """
        near = [local] if isinstance(local, BlockList) else list(local)
        far = [remote] if isinstance(remote, BlockList) else list(remote)
        if op == "read" and self._read_only:
            self._refuse_read_only_targets({blocks.region for blocks in near})
        return self._native.prepare_blocks(peer._native, op, near, far, local_index, remote_index)

    def _refuse_read_only_targets(self, regions: set[int]) -> None:
        with self._lock:
            targets = self._read_only.keys() & regions
        if targets:
            raise InvalidArgumentError(f"region {min(targets)} is read-only memory and cannot be read into")

    def submit(
        self,
        plan: Plan,
        *,
        timeout_s: float | None = None,
        notify: bytes = b"",
        priority: Priority = "normal",
    ) -> Transfer:
        """Start moving; waits for nobody. A small transfer on this host may be settled on return.

        `timeout_s`: when unfinished pieces fail (default: the option transfer_timeout_s). `notify`: a message
        that the peer gets once all data is visible to it; at most 1 MiB. `priority`: while transfers wait,
        the classes share the bytes 16 : 4 : 1, so that none starves. Raises `PeerLostError`,
        `ResourceExhaustedError`, `StaleError` (a region was unregistered since `prepare`).
        """
        limit_s = self._options.transfer_timeout_s if timeout_s is None else timeout_s
        return Transfer(self._native.submit(plan, limit_s, notify, priority), plan, limit_s)

    def execute(
        self,
        plan: Plan,
        *,
        timeout_s: float | None = None,
        notify: bytes = b"",
        priority: Priority = "normal",
    ) -> Transfer:
        """Do what `submit` does and wait until the transfer is settled; return it.

        The calling thread moves the data itself if nobody else needs the connection, which saves waking other
        threads: the way to the lowest latency. Blocks up to `timeout_s`; other Python threads and signal
        handlers run meanwhile, and a handler that raises (Ctrl-C) cancels the transfer. Raises as `submit`;
        whether the pieces were moved is in the transfer (`raise_if_failed`).
        """
        limit_s = self._options.transfer_timeout_s if timeout_s is None else timeout_s
        return Transfer(self._native.execute(plan, limit_s, notify, priority), plan, limit_s)

    def send(self, peer: Peer | int, body: bytes, *, timeout_s: float = 5.0) -> None:
        """Send a control message of at most 1 MiB to a peer or its handle; blocks up to `timeout_s`.

        Raises `NotFoundError` (unknown handle), `PeerLostError`, `DeadlineExceededError`,
        `InvalidArgumentError`.
        """
        self._native.send(peer.handle if isinstance(peer, Peer) else peer, body, timeout_s)

    def next_message(self, timeout_s: float) -> Message | None:
        """Wait up to `timeout_s` for a message from any peer; None if there was none or the engine was
        closed."""
        return wait_in_slices(self._native.next_message, timeout_s, give_up=lambda: not self._finalizer.alive)

    def peer(self, handle: int) -> Peer | None:
        """Return the peer that a message came from; None once it is gone."""
        native = self._native.peer(handle)
        return None if native is None else self._wrap(native)

    def peers(self) -> list[Peer]:
        """Return all peers, those that connected to us included."""
        return [self._wrap(native) for native in self._native.peers()]

    def counters(self) -> dict[str, int]:
        """Return engine-wide counters; names end in _total or _bytes."""
        return self._native.counters()

    def close(self) -> None:
        """Stop everything: transfers under way fail with `CancelledError`. Blocks to end the threads;
        idempotent."""
        self._finalizer()

    def _wrap(self, native: _native.Peer) -> Peer:
        return Peer(native, self.node_id)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Engine(node_id={self.node_id!r}, endpoint='{self.endpoint}')"


def _close(native: _native.Engine, memory: dict[tuple[int, int], dict[int, Memory | None]]) -> None:
    """Close first, let go of the registered memory after it."""
    native.close()
    memory.clear()
