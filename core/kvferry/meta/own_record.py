"""A node's own record in the store: written, kept alive, written anew, put back, withdrawn."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import msgspec

from kvferry.errors import KVFerryError, NotFoundError
from kvferry.meta.records import Member, Sealer, Setting
from kvferry.meta.store import Entry, Lease, MetaStore
from kvferry.meta.view import RENEWALS


class OwnRecord:
    """Keeps one record in the store. Thread-safe; `beat` and `withdraw` belong to one thread at a time."""

    def __init__(
        self,
        store: MetaStore,
        sealer: Sealer,
        member: Member,
        *,
        prefix: str,
        settings: Mapping[str, Setting],
        lease_s: float,
    ) -> None:
        self._store = store
        self._sealer = sealer
        self._settings = settings
        self._lease_s = lease_s
        self._guard = threading.Lock()
        self._member = member
        self._lease: Lease | None = None
        self._counter = 0
        self._value = b""
        self._revision = 0
        self._written_at = 0.0
        self._due = True  # to be written at the next beat
        self._confirmed = False  # whether the watch told of the last writing
        self.key = prefix + member.node_id

    @property
    def member(self) -> Member:
        """The node as it describes itself now."""
        with self._guard:
            return self._member

    @property
    def revision(self) -> int:
        """The revision of the last writing; 0 before the first."""
        with self._guard:
            return self._revision

    def describe(self, changes: Mapping[str, object]) -> Member:
        """Change the description; it is written at the next beat. Raises InvalidArgumentError."""
        with self._guard:
            member = msgspec.structs.replace(self._member, **changes)
            self._sealer.seal(member, counter=1, lease="", settings=self._settings)
            self._member = member
            self._due = True
            return member

    def seen(self, entry: Entry | None) -> bool:
        """Note what a watch said about our key; True if our record has to be put back."""
        with self._guard:
            if entry is not None and entry.value == self._value:
                self._confirmed = True
                return False
            if entry is not None and entry.revision <= self._revision:
                return False
            self._due = True
            return True

    def beat(self) -> bool:
        """Show up: keep the lease alive, and write the record if it is due; True if it was written.

        Raises KVFerryError when the store does not do it.
        """
        if self._lease is not None and not self._lease.keep_alive():
            self._lease = None
        now = time.monotonic()
        if self._lease is not None and not self._is_due(now):
            return False
        if self._lease is None:
            self._lease = self._store.lease(self._lease_s)
        try:
            self._write(self._lease)
        except NotFoundError:  # it ended between the two calls
            self._lease = None
            raise
        self._written_at = now
        return True

    def withdraw(self) -> KVFerryError | None:
        """Remove the record; returns why it could not be, in which case it ends with its lease."""
        lease, self._lease = self._lease, None
        try:
            if self._counter:  # else it was never written: a store that is away is not waited for
                self._store.delete(self.key)
            if lease is not None:
                lease.revoke()
        except KVFerryError as error:
            return error
        return None

    def _is_due(self, now: float) -> bool:
        with self._guard:
            if self._due or now - self._written_at >= RENEWALS * self._lease_s:
                return True
            confirmed = self._confirmed
        # A record that is removed before the watch told of it is removed without a word.
        return not confirmed and self.seen(self._store.get(self.key))

    def _write(self, lease: Lease) -> None:
        with self._guard:
            self._counter += 1
            # Before it is written: the watch may be faster than the answer.
            value = self._value = self._sealer.seal(
                self._member, counter=self._counter, lease=lease.id, settings=self._settings
            )
            self._due = self._confirmed = False
        try:
            revision = self._store.put(self.key, value, lease=lease)
        except KVFerryError:
            with self._guard:
                self._due = True
            raise
        with self._guard:
            self._revision = revision
