"""Get and put sessions: parts of objects, read or written by several calls."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from kvferry.errors import KVFerryError, NotFoundError, UnsupportedError
from kvferry.store import Store
from kvferry.transfer import view_of
from kvferry_mooncake.codes import OBJECT_ALREADY_EXISTS, OK, refused, store_code

Ranges = tuple[Sequence[int], Sequence[int], Sequence[int]]  # addresses, sizes, offsets in the object
LEAST_ADDRESS, BEYOND_ADDRESSES = 4096, 1 << 63  # memory of a process lies in between


class GetSessions:
    """Objects that are read range by range; pinned from start to end, on this host. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._open: dict[str, np.ndarray] = {}

    def start(self, key: str) -> int:
        """Begin; 0, or -704 if the object is absent."""
        try:
            data = self._bytes_of(key)
        except KVFerryError as error:
            return store_code(error, "get session")
        with self._lock:
            self._open[key] = data
        return OK

    def _bytes_of(self, key: str) -> np.ndarray:
        try:
            with self._store.view(key) as view:
                return np.frombuffer(view.data, np.uint8)  # which holds the pin
        except UnsupportedError:  # the node is on another host: read it once
            found = self._store.get(key)
            if found is None:
                raise NotFoundError(f"there is no object {key!r}") from None
            return np.frombuffer(found, np.uint8)

    def read(self, key: str, ranges: Ranges) -> int:
        """Copy ranges of the object to addresses; return how many bytes, -600 without a session or outside of
        the object."""
        with self._lock:
            data = self._open.get(key)
        if data is None or not _fit(ranges, data.size):
            return _no_such_ranges(key, None if data is None else data.size)
        for address, size, offset in zip(*ranges, strict=True):
            if size:
                np.copyto(np.frombuffer(view_of(address, size), np.uint8), data[offset : offset + size])
        return sum(ranges[1])

    def end(self, key: str) -> None:
        """Let the object go; fine if there is no session."""
        with self._lock:
            self._open.pop(key, None)

    def clear(self) -> None:
        """Let all go."""
        with self._lock:
            self._open.clear()


class PutSessions:
    """Objects that are written range by range and can be read only once they are complete. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._open: dict[str, tuple[np.ndarray, int]] = {}

    def start(self, key: str, size: int, replicas: int) -> int:
        """Begin an object of `size` bytes; 0, -705 if there is one, -600 without such memory."""
        try:
            if self._store.exists(key):
                return OBJECT_ALREADY_EXISTS
        except KVFerryError as error:
            return store_code(error, "put session")
        try:
            data = np.zeros(size, np.uint8)
        except (MemoryError, ValueError, OverflowError):
            return refused("session size", "there is no memory for an object of %d bytes", size)
        with self._lock:
            if key in self._open:
                return OBJECT_ALREADY_EXISTS
            self._open[key] = (data, replicas)
        return OK

    def write(self, key: str, ranges: Ranges) -> int:
        """Copy from addresses to ranges of the object; return how many bytes, -600 as `GetSessions.read`."""
        with self._lock:
            found = self._open.get(key)
        if found is None or not _fit(ranges, found[0].size):
            return _no_such_ranges(key, None if found is None else found[0].size)
        for address, size, offset in zip(*ranges, strict=True):
            if size:
                np.copyto(found[0][offset : offset + size], np.frombuffer(view_of(address, size), np.uint8))
        return sum(ranges[1])

    def end(self, key: str) -> int:
        """Make the object readable; 0, or -600 without a session."""
        with self._lock:
            found = self._open.pop(key, None)
        if found is None:
            return _no_such_ranges(key, None)
        data, replicas = found
        try:
            self._store.put(key, data, replicas=replicas)
        except KVFerryError as error:
            return store_code(error, "put session")
        return OK

    def revoke(self, key: str) -> int:
        """Give up; 0, or -600 without a session."""
        with self._lock:
            return OK if self._open.pop(key, None) is not None else _no_such_ranges(key, None)

    def clear(self) -> None:
        """Give all up."""
        with self._lock:
            self._open.clear()


def can_be(address: int, size: int) -> bool:
    """Say whether bytes of a process can lie there. The first page of memory is nobody's: whoever names it
    adds to an address that is not set.
    """
    return size == 0 or (0 < size < BEYOND_ADDRESSES and LEAST_ADDRESS <= address < BEYOND_ADDRESSES)


def _fit(ranges: Ranges, size: int) -> bool:
    """Say whether the three lists are alike and all ranges lie within the object."""
    addresses, sizes, offsets = ranges
    if not len(addresses) == len(sizes) == len(offsets):
        return False
    return all(
        can_be(address, length) and offset >= 0 and offset + length <= size
        for address, length, offset in zip(addresses, sizes, offsets, strict=True)
    )


def _no_such_ranges(key: str, size: int | None) -> int:
    if size is None:
        return refused("no session", "there is no session of %r", key)
    return refused(
        "ranges", "ranges of %r: uneven lists, addresses that cannot be, or more than its %d bytes", key, size
    )
