"""The store of one machine."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from kvferry.errors import CancelledError, NotFoundError, UnavailableError
from kvferry.meta.embedded.directory import Directory
from kvferry.meta.embedded.lease import EmbeddedLease, is_over
from kvferry.meta.store import Batch, Entry, Lease, Mirror, check_key, check_prefix, check_ttl, check_value

POLL_S = 0.05
# With many processes each looks at the leases less often: what one of them finds, all are told.
SEARCH_S_PER_LEASE = 0.005
_DRAFT = "~"  # no key has it


class EmbeddedStore:
    """A `MetaStore` in `path`, which becomes a directory of ours with mode 0700.

    Changes are noticed by looking at a counter and at the locks of the leases every 50 ms; a killed
    process costs no more than that. Raises AccessDeniedError if the directory is not safe to use.
    """

    def __init__(self, path: Path) -> None:
        self._directory = Directory(path)
        self._leases: tuple[EmbeddedLease, ...] = ()
        self._closed = threading.Event()

    @property
    def name(self) -> str:
        """The directory, for messages."""
        return f"in {self._directory.path}"

    def put(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        """Write a key and return its revision."""
        check_key(key)
        check_value(value)
        with self._changing() as revision:
            self._write(key, value, revision, lease)
            return revision

    def get(self, key: str) -> Entry | None:
        """Return one key, or None."""
        check_key(key)
        with self._reading():
            return self._read(key)

    def list(self, prefix: str) -> tuple[Entry, ...]:
        """Return all keys that start with `prefix`, sorted."""
        check_prefix(prefix)
        with self._reading():
            return self._list(prefix)

    def delete(self, key: str) -> bool:
        """Remove a key; False if there was none."""
        check_key(key)
        with self._changing():
            present = self._read(key) is not None
            self._file(key).unlink(missing_ok=True)
            return present

    def compare_and_swap(
        self, key: str, revision: int, value: bytes, *, lease: Lease | None = None
    ) -> int | None:
        """Write `key` only if it is still at `revision`; None if somebody else was first."""
        check_key(key)
        check_value(value)
        with self._changing() as next_revision:
            present = self._read(key)
            if (present.revision if present else 0) != revision:
                return None
            self._write(key, value, next_revision, lease)
            return next_revision

    def lease(self, ttl_s: float) -> Lease:
        """Return a new lease."""
        self._check_open()
        check_ttl(ttl_s)
        with self._directory.reading():
            lease = EmbeddedLease(self._directory.leases, ttl_s)
        self._leases = (*(held for held in self._leases if not held.ended), lease)
        return lease

    def watch(self, prefix: str) -> EmbeddedWatch:
        """Follow the keys that start with `prefix`."""
        self._check_open()
        return EmbeddedWatch(self, check_prefix(prefix))

    def close(self) -> None:
        """End our leases and watches. Idempotent."""
        self._closed.set()
        for lease in self._leases:
            lease.revoke()
        self._leases = ()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    def revision(self) -> int:
        """Return a number that differs whenever something changed. Raises UnavailableError."""
        return self._directory.revision()

    def look_for_the_dead(self) -> int:
        """Remove what ended, which is a change; returns the number of leases. Raises UnavailableError."""
        leases = self._lease_files()
        if any(is_over(path) for path in leases):
            with self._changing():
                pass
        return len(leases)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise CancelledError(f"the metadata store {self.name} was closed")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        self._check_open()
        with self._directory.reading():
            yield

    @contextlib.contextmanager
    def _changing(self) -> Iterator[int]:
        """Hold the directory alone, without what ended."""
        self._check_open()
        with self._directory.changing() as revision:
            self._remove_what_ended()
            yield revision

    def _lease_files(self) -> tuple[Path, ...]:
        try:
            return tuple(self._directory.leases.iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise UnavailableError(f"the metadata store {self.name} failed: {error}") from error

    def _remove_what_ended(self) -> None:
        over = [path for path in self._lease_files() if is_over(path)]
        if not over:
            return
        names = {path.name for path in over}
        for file in self._directory.keys.iterdir():
            if file.name.endswith(_DRAFT) or self._lease_of(file) in names:
                file.unlink(missing_ok=True)
        for path in over:
            path.unlink(missing_ok=True)

    def _lease_of(self, file: Path) -> str:
        with file.open("rb") as content:
            return content.readline(64).decode("ascii", "replace").rstrip("\n").partition(" ")[2]

    def _file(self, key: str) -> Path:
        return self._directory.keys / _file_name(key)

    def _list(self, prefix: str) -> tuple[Entry, ...]:
        start = _file_name(prefix)
        names = [name for name in os.listdir(self._directory.keys) if name.startswith(start)]
        keys = sorted(name[1:].replace("+", "/") for name in names if not name.endswith(_DRAFT))
        found = (self._read(key) for key in keys)
        return tuple(entry for entry in found if entry is not None)

    def _read(self, key: str) -> Entry | None:
        """Return a key as its file says, unless its lease has ended."""
        try:
            head, _, value = self._file(key).read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        revision, _, lease = head.decode("ascii", "replace").partition(" ")
        if not revision.isdigit():
            raise UnavailableError(f"{self._file(key)} is damaged; remove it")
        if lease and is_over(self._directory.leases / lease):
            return None
        return Entry(key, value, int(revision), lease)

    def _write(self, key: str, value: bytes, revision: int, lease: Lease | None) -> None:
        if lease is not None and is_over(self._directory.leases / lease.id):
            raise NotFoundError(f"the lease for {key!r} has ended")
        draft = self._directory.keys / f"{_file_name(key)}{_DRAFT}"
        draft.write_bytes(f"{revision} {lease.id if lease else ''}\n".encode() + value)
        draft.rename(self._file(key))


def _file_name(key: str) -> str:
    """Return the name of a key's file; neither character that is put in can be part of a key."""
    return "=" + key.replace("/", "+")


class EmbeddedWatch:
    """The changes under a prefix, found by looking."""

    def __init__(self, store: EmbeddedStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._mirror = Mirror()
        self._seen = -2  # no revision yet
        self._next_search = 0.0
        self._closed = threading.Event()

    def next(self, timeout_s: float) -> Batch | None:
        """Return the next changes, or None."""
        deadline = time.monotonic() + timeout_s
        while True:
            batch = self._look()
            rest = deadline - time.monotonic()
            if batch is not None or rest <= 0:
                return batch
            self._closed.wait(min(POLL_S, rest))

    def close(self) -> None:
        """End it. Idempotent."""
        self._closed.set()

    def _search(self) -> None:
        if time.monotonic() >= self._next_search:
            leases = self._store.look_for_the_dead()
            self._next_search = time.monotonic() + max(POLL_S, leases * SEARCH_S_PER_LEASE) * 0.9

    def _look(self) -> Batch | None:
        if self._closed.is_set() or self._store.closed:
            raise CancelledError("the watch was closed")
        try:
            self._search()
            revision = self._store.revision()
            if revision == self._seen:
                return None
            entries = self._store.list(self._prefix)
        except UnavailableError:
            return None  # locked by a stopped process: look again
        first, reset = self._seen == -2, revision < self._seen
        self._seen = revision
        events = self._mirror.replace(entries)
        return Batch(events, first or reset) if events or first else None
