"""A store in plain Python with the calls of `kvferry.store.Store` that the pool uses, for tests."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvferry.errors import DataCorruptError, KVFerryError, NotFoundError, OutOfRangeError
from kvferry.store import GetResult, PutResult


class FakeObject(NamedTuple):
    """One stored object."""

    data: bytes
    parent: bytes
    tags: tuple[str, ...]


class FakeStore:
    """Objects in a dictionary. `down`: every call raises this. `spoiled`: keys of objects that arrive with
    wrong bytes. Not thread-safe.

    `calls` counts calls by name.
    """

    def __init__(self) -> None:
        self.objects: dict[bytes, FakeObject] = {}
        self.spoiled: set[bytes] = set()
        self.members: list[Any] = [None]
        self.in_place = True
        self.down: KVFerryError | None = None
        self.calls: dict[str, int] = {}
        self.own_endpoint = ""
        self.closed = False

    def match_prefix(self, keys: np.ndarray, *, timeout_s: float | None = None) -> int:
        """As `Store.match_prefix`."""
        self._called("match_prefix")
        found = 0
        for key in _keys(keys):
            if key not in self.objects:
                break
            found += 1
        return found

    def exists_many(self, keys: np.ndarray, *, timeout_s: float | None = None) -> np.ndarray:
        """As `Store.exists_many`."""
        self._called("exists_many")
        return np.array([key in self.objects for key in _keys(keys)], dtype=np.bool_)

    def put_runs(
        self,
        keys: np.ndarray,
        runs: Any,
        *,
        parents: Sequence[bytes],
        tags: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> list[PutResult]:
        """As `Store.put_runs`."""
        self._called("put_runs")
        results = []
        for key, parent, parts in zip(_keys(keys), parents, _values(runs), strict=True):
            data = b"".join(ctypes.string_at(address, length) for address, length in parts)
            known = key in self.objects
            self.objects.setdefault(key, FakeObject(data, parent, tuple(tags)))
            results.append(PutResult(None, not known, 1))
        return results

    def get_runs_into(
        self, keys: np.ndarray, runs: Any, *, timeout_s: float | None = None, verify: bool | None = None
    ) -> list[GetResult]:
        """As `Store.get_runs_into`."""
        self._called("get_runs_into")
        pairs = zip(_keys(keys), _values(runs), strict=True)
        return [self._get(key, parts, bool(verify)) for key, parts in pairs]

    def remove_tag(self, tag: str, *, timeout_s: float | None = None) -> int:
        """As `Store.remove_tag`."""
        self._called("remove_tag")
        gone = [key for key, found in self.objects.items() if tag in found.tags]
        for key in gone:
            del self.objects[key]
        return len(gone)

    def register(self, buffer: Any) -> None:
        """As `Store.register`."""
        self._called("register")

    def close(self) -> None:
        """As `Store.close`."""
        self.closed = True

    def _called(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.down is not None:
            raise self.down

    def _get(self, key: bytes, parts: Sequence[tuple[int, int]], verify: bool) -> GetResult:
        found = self.objects.get(key)
        if found is None:
            return GetResult(NotFoundError("absent"), 0)
        data = found.data if key not in self.spoiled else bytes(byte ^ 1 for byte in found.data)
        if len(data) > sum(length for _, length in parts):
            return GetResult(OutOfRangeError("longer than the target"), len(data))
        offset = 0
        for address, length in parts:
            piece = data[offset : offset + length]
            ctypes.memmove(address, piece, len(piece))
            offset += length
        error = DataCorruptError("wrong digest") if verify and key in self.spoiled else None
        return GetResult(error, len(data))


def _keys(keys: np.ndarray) -> list[bytes]:
    return [row.tobytes() for row in keys]


def _values(runs: Any) -> Iterator[list[tuple[int, int]]]:
    """Yield the runs of each value, as addresses and lengths."""
    first = 0
    for count in runs.counts.tolist():
        cut = slice(first, first + count)
        yield list(zip(runs.addresses[cut].tolist(), runs.lengths[cut].tolist(), strict=True))
        first += count
