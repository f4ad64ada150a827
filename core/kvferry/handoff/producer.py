"""The producer's lease table: which finished requests' blocks must stay, and when they may go."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from kvferry.errors import InvalidArgumentError
from kvferry.handoff.leases import LeaseAuthority, parse_lease_id

MAX_EARLY_RELEASES = 4096
MAX_REMEMBERED_ENDS = 8192


class _Lease(msgspec.Struct):
    owner: str
    expires_at: float
    done: set[int] = msgspec.field(default_factory=set)  # readers that have given it back


class _Early(msgspec.Struct):
    reason: str
    until: float
    done: set[int]
    readers: int


class LeaseTable:
    """Leases of one worker of a prefill engine, by lease id. Thread-safe; never blocks.

    A lease begins with `admit` and ends once: by `release`, or when `expire` finds its time over.
    `take_ended` hands each ended lease's owner out exactly once, which is when the engine may reuse the
    blocks.

    A consumer can be faster than the engine's own message to its worker, so a release may come before
    `admit`. The sequence in the lease id tells: beyond what has been admitted, it is early, held, and
    remembered; otherwise the lease has ended and the answer is no. `clock` returns seconds and never goes
    back.
    """

    def __init__(self, lease_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[str, _Lease] = {}
        self._authority: LeaseAuthority | None = None  # None until the engine has told
        self._issued_through = 0
        self._early: OrderedDict[str, _Early] = OrderedDict()  # given back before it was admitted
        self._past: OrderedDict[str, str] = OrderedDict()  # ended leases, only to name late notices rightly
        self._ended: list[str] = []
        self._counts: Counter[str] = Counter()

    def admit(
        self, authority: LeaseAuthority, issued_through: int, leases: Sequence[tuple[str, str]]
    ) -> None:
        """Begin `leases`, pairs of lease id and owner, of the engine that `authority` stands for.

        The engine has issued up to sequence `issued_through`. To be called in the order of issue. A lease
        that is known, or has ended, is counted and ignored.
        """
        if not leases and issued_through == self._issued_through and authority == self._authority:
            return  # as in most steps; nobody else changes these
        with self._lock:
            if authority != self._authority:
                self._authority, self._issued_through = authority, 0
            for lease_id, owner in leases:
                self._admit_one(lease_id, owner)
            self._issued_through = max(self._issued_through, issued_through)

    def release(
        self, lease_id: str, reason: str, content: str = "", *, reader: int = 0, readers: int = 1
    ) -> bool:
        """Give a lease back; whether it had been held until now, and for `content` unless that is empty.

        It ends when all `readers`, the ranks that share it, have given it back; one alone ends it at once. A
        wrong, late or repeated id is counted and answered no. So is another content than was leased, and
        the lease goes on: its rightful reader may still come.
        """
        with self._lock:
            if content and not (self._authority and self._authority.vouches(lease_id, content)):
                self._counts["forged_notices"] += 1
                return False
            lease = self._leases.get(lease_id)
            if lease is not None:
                if reader in lease.done and readers > 1:
                    self._counts["duplicate_notices"] += 1
                    return False
                lease.done.add(reader)
                if len(lease.done) >= readers:
                    self._end(lease_id, reason)
                return True
            if self._is_early(lease_id):
                return self._release_early(lease_id, reason, reader, readers)
            past = self._past.get(lease_id)
            kind = "unknown" if past is None else "late" if past == "expired" else "duplicate"
            self._counts[f"{kind}_notices"] += 1
            return False

    def renew(self, lease_ids: Iterable[str]) -> int:
        """Extend the leases that are alive by the lease time from now; return how many were."""
        with self._lock:
            expires_at = self._clock() + self._lease_s
            alive = 0
            for lease_id in lease_ids:
                lease = self._leases.get(lease_id)
                if lease is not None:
                    lease.expires_at = expires_at
                    alive += 1
                elif not self._is_early(lease_id):
                    self._counts["stale_renewals"] += 1
            self._counts["renewals"] += alive
            return alive

    def expire(self) -> int:
        """End the leases whose time is over and return how many; forget early releases without a lease."""
        with self._lock:
            now = self._clock()
            over = [lease_id for lease_id, lease in self._leases.items() if lease.expires_at <= now]
            for lease_id in over:
                self._end(lease_id, "expired")
            for lease_id in [key for key, early in self._early.items() if early.until <= now]:
                del self._early[lease_id]
                self._counts["early_forgotten"] += 1
            return len(over)

    def take_ended(self) -> set[str]:
        """Return the owners whose leases have ended since the last call."""
        if not self._ended:
            return set()
        with self._lock:
            ended, self._ended = set(self._ended), []
            return ended

    def held(self) -> int:
        """Return how many leases are alive."""
        with self._lock:
            return len(self._leases)

    def take_counts(self) -> dict[str, int]:
        """Return what happened since the last call, by name.

        Names: granted, done, rejected, aborted, expired, renewals, and what was ignored (*_notices). Over the
        table's life granted == done + rejected + aborted + expired + held().
        """
        if not self._counts:
            return {}
        with self._lock:
            counts, self._counts = dict(self._counts), Counter()
            return counts

    def _admit_one(self, lease_id: str, owner: str) -> None:
        if lease_id in self._leases or lease_id in self._past:
            self._counts["duplicate_admissions"] += 1
            return
        lease = self._leases[lease_id] = _Lease(owner, self._clock() + self._lease_s)
        self._counts["granted"] += 1
        early = self._early.pop(lease_id, None)
        if early is not None:
            lease.done = early.done
            if len(early.done) >= early.readers:
                self._end(lease_id, early.reason)

    def _release_early(self, lease_id: str, reason: str, reader: int, readers: int) -> bool:
        early = self._early.setdefault(lease_id, _Early(reason, 0.0, set(), readers))
        early.until = self._clock() + self._lease_s
        while len(self._early) > MAX_EARLY_RELEASES:
            self._early.popitem(last=False)
            self._counts["early_forgotten"] += 1
        known = reader in early.done
        early.done.add(reader)
        early.readers = min(early.readers, readers)
        self._counts["duplicate_notices" if known else "early_notices"] += 1
        return not known

    def _end(self, lease_id: str, reason: str) -> None:
        self._ended.append(self._leases.pop(lease_id).owner)
        self._counts[reason] += 1
        self._past[lease_id] = reason
        while len(self._past) > MAX_REMEMBERED_ENDS:
            self._past.popitem(last=False)

    def _is_early(self, lease_id: str) -> bool:
        try:
            name = parse_lease_id(lease_id)
        except InvalidArgumentError:
            return False
        if self._authority is None:
            return True
        return name.instance == self._authority.instance and name.sequence > self._issued_through
