"""Keeping leases alive while their requests wait, queue or load."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvferry.errors import KVFerryError

if TYPE_CHECKING:
    from kvferry.handoff.consumer import Executor
    from kvferry.handoff.control import ControlClient
    from kvferry.handoff.params import LeaseAddress
    from kvferry.handoff.peers import KnownPeer, PeerBook
    from kvferry.handoff.sources import Target

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 4


class _Entry:
    def __init__(self, address: LeaseAddress, nodes: list[tuple[str, str]], next_at: float) -> None:
        self.address = address
        self.nodes = nodes
        self.next_at = next_at


class Renewals:
    """The leases to renew, by request id.

    Thread-safe; no method blocks longer than a control message takes to send.
    """

    def __init__(
        self,
        peers: PeerBook,
        control: ControlClient,
        chores: Executor,
        *,
        targets: Callable[[LeaseAddress], Sequence[Target]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peers = peers
        self._control = control
        self._chores = chores
        self._targets = targets
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._connecting: set[tuple[str, str]] = set()
        self._counts: Counter[str] = Counter()

    def add(self, request_id: str, address: LeaseAddress) -> None:
        """Renew this lease from now on, the first time at the next tick.

        Known requests keep their schedule.
        """
        try:
            nodes = [target.node for target in self._targets(address)]
        except KVFerryError as error:
            logger.debug("no renewals for request %s, its load will be refused: %s", request_id, error)
            return
        with self._lock:
            self._entries.setdefault(request_id, _Entry(address, nodes, self._clock()))

    def remove(self, request_id: str) -> None:
        """Stop renewing; unknown ids are fine."""
        with self._lock:
            self._entries.pop(request_id, None)

    def tick(self) -> None:
        """Send the renewals that are due, one message per peer."""
        due: dict[tuple[str, str], list[str]] = defaultdict(list)
        now = self._clock()
        with self._lock:
            for entry in self._entries.values():
                if entry.next_at <= now:
                    entry.next_at = now + entry.address.lease_s / RENEWALS_PER_LEASE
                    for node in entry.nodes:
                        due[node].append(entry.address.lease)
        for target, leases in due.items():
            known = self._peers.connected(*target)
            if known is not None:
                self._renew(known, leases)
            else:
                self._connect_and_renew(target, leases)

    def take_counts(self) -> dict[str, int]:
        """Return what was counted since the last call: failed_renewals."""
        if not self._counts:
            return {}
        with self._lock:
            counts, self._counts = dict(self._counts), Counter()
            return counts

    def _connect_and_renew(self, target: tuple[str, str], leases: list[str]) -> None:
        with self._lock:
            if target in self._connecting:
                return
            self._connecting.add(target)
        self._chores.submit(lambda: self._connect(target, leases))

    def _connect(self, target: tuple[str, str], leases: list[str]) -> None:
        try:
            # The peer book's own connect timeout is the bound that matters here.
            self._renew(self._peers.get(*target, timeout_s=60.0), leases)
        except KVFerryError as error:
            self._failed(leases, error)
        finally:
            with self._lock:
                self._connecting.discard(target)

    def _renew(self, known: KnownPeer, leases: list[str]) -> None:
        try:
            self._control.renew(known.peer, leases)
        except KVFerryError as error:
            self._failed(leases, error)

    def _failed(self, leases: list[str], error: KVFerryError) -> None:
        with self._lock:
            self._counts["failed_renewals"] += len(leases)
        logger.debug("could not renew %d leases: %s", len(leases), error)
