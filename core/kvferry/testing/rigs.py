"""What the transport conformance suite runs on: an engine, a peer, and memory at both ends.

`ProcessRig` is what most transports need: the memory that is read and written belongs to an engine of
another process. A transport whose far end is no process (a file, a device) has a rig of its own.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from kvferry.errors import UnavailableError
from kvferry.testing.engines import Bytes, Child, pattern, pieces, sparse
from kvferry.testing.waiting import wait_until
from kvferry.transfer import Engine, Peer, Region, TransferOptions
from kvferry.transfer.engine import Access


class Far(abc.ABC):
    """Memory at the far end: looked at and changed by its owner, not by the transport under test."""

    id: int  # of its region, as pieces name it

    @abc.abstractmethod
    def content(self, offset: int, length: int) -> bytes:
        """What it holds there."""

    @abc.abstractmethod
    def put(self, offset: int, data: bytes) -> None:
        """Change it."""

    def clear(self, length: int) -> None:
        """Make its first `length` bytes zero."""
        self.put(0, bytes(length))

    @abc.abstractmethod
    def unregister(self) -> None:
        """Take it back; blocks until no transfer touches it.

        Ordinary memory can still be looked at and changed, until the next is taken back.
        """

    def digest(self, offset: int, length: int) -> str:
        """SHA-256 of what it holds there, in hex."""
        return hashlib.sha256(self.content(offset, length)).hexdigest()


class Near(NamedTuple):
    """Memory of the engine under test."""

    region: Region
    bytes: Bytes


class Scene(NamedTuple):
    """Memory at both ends, and what the far end held at the start."""

    near: Near
    far: Far
    held: Bytes

    def row(self, near_offset: int, far_offset: int, length: int) -> tuple[int, ...]:
        """One piece between the two."""
        return (self.near.region.id, self.far.id, near_offset, far_offset, length)

    def rows(self, *parts: tuple[int, int, int]) -> Any:
        """Pieces as `Engine.prepare` takes them, each (near offset, far offset, length)."""
        return pieces(*(self.row(*part) for part in parts))


class Rig(abc.ABC):
    """An engine, the peer that transfers go to, and a maker of memory at both ends. Not thread-safe."""

    engine: Engine
    peer: Peer

    def near(self, length: int, *, allocate: bool = False) -> Near:
        """Zeroed memory of the engine under test."""
        if allocate:
            region = self.engine.allocate(length, name="near", access="rw")
            return Near(region, np.frombuffer(region.memory, dtype=np.uint8))
        return self.near_of(np.zeros(length, dtype=np.uint8))

    def near_of(self, memory: Bytes) -> Near:
        """Register memory of the caller with the engine under test."""
        return Near(self.engine.register(memory, name="near", access="rw"), memory)

    @abc.abstractmethod
    def far(
        self, name: str, length: int, *, seed: int = 0, access: Access = "rw", empty: bool = False
    ) -> Far:
        """Memory that holds `pattern(length, seed)`, or zeros of which no page exists (`empty`)."""

    @abc.abstractmethod
    def close(self) -> None:
        """End everything."""

    @contextlib.contextmanager
    def scene(self, length: int, *, seed: int = 3, allocate: bool = False) -> Iterator[Scene]:
        """Memory of `length` bytes at both ends; `allocate`: our end is the engine's own memory."""
        near, far = self.near(length, allocate=allocate), self.far("scene", length, seed=seed)
        try:
            yield Scene(near, far, pattern(length, seed))
        finally:
            far.unregister()
            near.region.unregister(10.0)

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _OfChild(Far):
    def __init__(self, child: Child, name: str, wanted: dict[str, Any]) -> None:
        self._child = child
        self._name = name
        self.id = child.ask("register", name=name, **wanted)["id"]

    def content(self, offset: int, length: int) -> bytes:
        return bytes.fromhex(self._child.ask("bytes", name=self._name, offset=offset, length=length))

    def digest(self, offset: int, length: int) -> str:
        return str(self._child.ask("digest", name=self._name, offset=offset, length=length))

    def put(self, offset: int, data: bytes) -> None:
        self._child.ask("put", name=self._name, offset=offset, data=data.hex())

    def clear(self, length: int) -> None:
        self._child.ask("clear", name=self._name, length=length)

    def unregister(self) -> None:
        self._child.ask("unregister", name=self._name)


class ProcessRig(Rig):
    """The far end is an engine in a child process. `allocate`: its memory is its engine's own."""

    def __init__(
        self, options: Mapping[str, Any], owner_options: Mapping[str, Any], *, allocate: bool = False
    ) -> None:
        self._owner_options = dict(owner_options)
        self._allocate = allocate
        self._names = 0
        self.child = Child(**self._owner_options)
        try:
            self.engine = Engine(TransferOptions(**options))
            self.peer = self.engine.connect(self.child.endpoint, expected=self.child.node_id)
        except BaseException:
            self.close()
            raise

    def far(
        self, name: str, length: int, *, seed: int = 0, access: Access = "rw", empty: bool = False
    ) -> Far:
        """As `Rig.far`; the child registers or allocates it."""
        self._names += 1
        memory = {"sparse": True} if empty else {"seed": seed, "allocate": self._allocate}
        wanted = {"length": length, "access": access, **memory}
        far = _OfChild(self.child, f"{name}-{self._names}", wanted)
        self.peer.refresh()
        return far

    def restart(self) -> Peer:
        """Kill the owner and start another behind its address; the peer as it was before.

        `peer` is the new one then, and memory made before is gone.
        """
        before, endpoint = self.peer, self.child.endpoint
        self.child.kill()
        self.child.close()
        self.child = Child(**{**self._owner_options, "bind": endpoint})
        found: list[Peer] = []

        def connected() -> bool:
            with contextlib.suppress(UnavailableError):
                found.append(self.engine.connect(endpoint, expected=self.child.node_id))
            return bool(found)

        wait_until(connected, what=f"connection to {endpoint}")
        self.peer = found[0]
        return before

    def close(self) -> None:
        """Close our engine, then end the child."""
        if hasattr(self, "engine"):
            self.engine.close()
        self.child.close()


class _OfFile(Far):
    def __init__(self, engine: Engine, path: Path, access: Access) -> None:
        self._path = path
        self._region = engine.open_file(path, access=access)
        self.id = self._region.id

    def content(self, offset: int, length: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def put(self, offset: int, data: bytes) -> None:
        with self._path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def unregister(self) -> None:
        self._region.unregister(10.0)


class FileRig(Rig):
    """The far end is files of a temporary folder, and the peer is the engine itself."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvferry-rig-")
        self._names = 0
        self.engine = Engine(TransferOptions(**options))
        self.peer = self.engine.self_peer

    def far(
        self, name: str, length: int, *, seed: int = 0, access: Access = "rw", empty: bool = False
    ) -> Far:
        """As `Rig.far`: a file, sparse if `empty`."""
        self._names += 1
        path = Path(self._folder.name) / f"{name}-{self._names}"
        path.write_bytes(b"" if empty else pattern(length, seed).tobytes())
        os.truncate(path, length)
        return _OfFile(self.engine, path, access)

    def close(self) -> None:
        """Close the engine, delete the files."""
        self.engine.close()
        self._folder.cleanup()


def aliased(length: int, distinct: tuple[tuple[int, int], ...], chunk: int = 32 << 20) -> Bytes:
    """Address space of `length` bytes whose pages are the same `chunk` bytes over and over.

    So a transfer of many GiB needs little memory. `distinct`: ranges (offset, length) with memory of their
    own, whose content is kept; page-aligned, in order. `chunk`: a multiple of the page size.
    """
    return _AddressSpace(length, chunk, distinct).view()


class _AddressSpace:
    """A reserved range into which one memfd is mapped piece by piece. Never unmapped: for tests."""

    def __init__(self, length: int, chunk: int, distinct: tuple[tuple[int, int], ...]) -> None:
        import mmap

        self._length = length
        self._fd = os.memfd_create("kvferry-aliased")
        os.ftruncate(self._fd, chunk + sum(size for _offset, size in distinct))
        self._base = sparse(-(-length // mmap.PAGESIZE) * mmap.PAGESIZE)
        place, own = 0, chunk
        for offset, size in (*distinct, (length, 0)):
            self._repeat(place, offset, chunk)
            self._map(offset, size, own)
            place, own = offset + size, own + size
        os.close(self._fd)

    def _repeat(self, start: int, end: int, chunk: int) -> None:
        for place in range(start, end, chunk):
            self._map(place, min(chunk, end - place), 0)

    def _map(self, place: int, size: int, file_offset: int) -> None:
        import ctypes
        import mmap

        if size == 0:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        fixed_shared = 0x10 | mmap.MAP_SHARED
        address = self._base.ctypes.data + place
        got = libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, fixed_shared, self._fd, file_offset)
        if got != address:
            raise OSError(ctypes.get_errno(), "cannot map a part of the address space")

    def view(self) -> Bytes:
        return self._base[: self._length]
