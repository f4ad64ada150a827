"""The contract of a metadata store: a small, consistent map of keys to bytes with leases and watches.

A backend is a package beside this file; all of them pass `kvferry.testing.meta.MetaStoreConformance`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from kvferry.errors import InvalidArgumentError

MAX_KEY_LENGTH = 200
MAX_VALUE_BYTES = 64 << 10
CREATE_ONLY = 0  # the revision of a key that does not exist

_KEY = re.compile(r"[A-Za-z0-9._/-]{1,200}")


class Entry(NamedTuple):
    """One key as it is stored."""

    key: str
    value: bytes
    revision: int  # of the change that wrote it; grows with every change of the store
    lease: str = ""  # identity of the lease that it ends with; empty: it stays


class Event(NamedTuple):
    """What became of one key: its new entry, or None when it is gone."""

    key: str
    entry: Entry | None


class Batch(NamedTuple):
    """Changes under the prefix of a watch.

    `resync`: found by comparing with the whole state, at first and after the connection broke. Steps in
    between were not seen, and what is missing may be on its way back (a store that lost its data).
    """

    events: tuple[Event, ...]
    resync: bool


class Lease(Protocol):
    """Keys written with it disappear when it ends: by `revoke`, or when it was not kept alive in time.

    On one machine they also disappear at once when its process dies. Thread-safe.
    """

    @property
    def id(self) -> str:
        """Its identity in the store, as in `Entry.lease`."""

    @property
    def ttl_s(self) -> float:
        """Seconds from one `keep_alive` to its end; never less than was asked for."""

    def keep_alive(self) -> bool:
        """Start its time afresh; False if it has ended, with all its keys. Raises UnavailableError."""

    def revoke(self) -> None:
        """End it, with its keys; nothing happens if it has ended. Raises UnavailableError."""


class Watch(Protocol):
    """The changes under one prefix, from now on. To be read by one thread; `close` may come from any."""

    def next(self, timeout_s: float) -> Batch | None:
        """Return the next changes, or None if there were none in `timeout_s` seconds.

        The first batch is the present state, even if that is nothing. Later ones bring the latest state of
        each key that changed; states in between may be skipped. While the store cannot be reached there
        are none, and nothing is lost: the first batch after that has `resync` set.

        Raises CancelledError once it, or its store, is closed.
        """

    def close(self) -> None:
        """End it; a `next` under way raises CancelledError. Idempotent."""


class MetaStore(Protocol):
    """A store. Every call is linearizable, thread-safe, and ends by a deadline with UnavailableError.

    Keys are 1 to 200 of `A-Z a-z 0-9 . _ / -`; values are at most 64 KiB. Anything else raises
    InvalidArgumentError.
    """

    @property
    def name(self) -> str:
        """What it is called in messages: an address without secrets, or a directory."""

    def put(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        """Write a key and return its revision. Raises NotFoundError if the lease has ended."""

    def get(self, key: str) -> Entry | None:
        """Return one key, or None."""

    def list(self, prefix: str) -> tuple[Entry, ...]:
        """Return all keys that start with `prefix` (empty: all), sorted, as they were at one moment."""

    def delete(self, key: str) -> bool:
        """Remove a key; False if there was none."""

    def compare_and_swap(
        self, key: str, revision: int, value: bytes, *, lease: Lease | None = None
    ) -> int | None:
        """Write `key` only if it is still at `revision` (`CREATE_ONLY`: if it does not exist).

        Returns the new revision, or None if somebody else was first. UnavailableError leaves open whether
        it was written.
        """

    def lease(self, ttl_s: float) -> Lease:
        """Return a new lease of at least `ttl_s` seconds (1 s or more)."""

    def watch(self, prefix: str) -> Watch:
        """Follow the keys that start with `prefix`. Returns at once, also while the store is away."""

    def close(self) -> None:
        """Let go of everything; leases end by themselves. Idempotent."""


def check_key(key: str) -> str:
    """Return `key` if it is allowed. Raises InvalidArgumentError."""
    if not _KEY.fullmatch(key):
        raise InvalidArgumentError(
            f"{key[:220]!r} is no key of the metadata store: 1 to {MAX_KEY_LENGTH} letters, digits, . _ / -"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it is empty or an allowed key. Raises InvalidArgumentError."""
    return prefix and check_key(prefix)


def check_value(value: bytes) -> bytes:
    """Return `value` if it is short enough. Raises InvalidArgumentError."""
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidArgumentError(
            f"a value of {len(value)} bytes is too large for the metadata store ({MAX_VALUE_BYTES} at most)"
        )
    return value


def check_ttl(ttl_s: float) -> float:
    """Return `ttl_s` if a lease may have it. Raises InvalidArgumentError."""
    if not 1.0 <= ttl_s <= 86400.0:
        raise InvalidArgumentError(f"a lease of {ttl_s:g} s is not possible, only 1 s to one day")
    return ttl_s


class Mirror:
    """The state that a watch has told its reader so far, to tell only what is new. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, Entry] = {}

    def replace(self, entries: Iterable[Entry]) -> tuple[Event, ...]:
        """Take the whole state and return what that changes."""
        state: Mapping[str, Entry] = {entry.key: entry for entry in entries}
        gone = [Event(key, None) for key in self._known if key not in state]
        new = [Event(key, entry) for key, entry in state.items() if self._known.get(key) != entry]
        self._known = dict(state)
        return (*gone, *new)

    def apply(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """Take single changes and return those that are new."""
        return tuple(event for event in events if self._is_new(event))

    def _is_new(self, event: Event) -> bool:
        if event.entry is None:
            return self._known.pop(event.key, None) is not None
        before = self._known.get(event.key)
        self._known[event.key] = event.entry
        return before != event.entry
