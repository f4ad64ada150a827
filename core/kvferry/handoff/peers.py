"""The prefill engines that a consumer knows: connected on demand, checked once, left alone while down."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kvferry.errors import (
    AccessDeniedError,
    DeadlineExceededError,
    GeometryMismatchError,
    IdentityMismatchError,
    InvalidArgumentError,
    KVFerryError,
    ProtocolError,
    UnavailableError,
)
from kvferry.layout import KVGeometry, check_compatible

if TYPE_CHECKING:
    from kvferry.transfer import Engine, Peer

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 10.0
MAX_PEERS = 1024


class KnownPeer(NamedTuple):
    """A connected prefill engine rank.

    `refusal`: why its cache cannot be read; its leases can still be given back.
    """

    peer: Peer
    geometry: KVGeometry | None
    regions: Mapping[str, int]  # region id by name
    refusal: KVFerryError | None = None

    @property
    def cache(self) -> KVGeometry:
        """The peer's KV cache. Raises InvalidArgumentError if this process has none to compare it with."""
        if self.geometry is None:
            raise InvalidArgumentError("this process has no KV cache, so it did not look at the peer's")
        return self.geometry


class _Slot:
    """What is known of one node. `lock` is held while connecting, so that one thread does it for all."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: KnownPeer | None = None
        self.failures = 0
        self.down_until = 0.0
        self.error: KVFerryError | None = None  # why it is down


class PeerBook:
    """Peers by node id and endpoint. Thread-safe. `get` blocks up to its timeout; the other methods don't.

    Both come from a user's request: keyed by both, a forged pair can only spoil itself.

    `geometry` None: no cache of our own, any peer will do (the router). `allow_remote` False: only loopback
    addresses may be dialled, because an address comes with a user's request and without a cluster secret
    nobody vouches for it.
    """

    def __init__(
        self,
        engine: Engine,
        geometry: KVGeometry | None,
        *,
        allow_remote: bool,
        connect_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._geometry = geometry
        self._allow_remote = allow_remote
        self._connect_timeout_s = connect_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._slots: OrderedDict[tuple[str, str], _Slot] = OrderedDict()

    def get(self, node_id: str, endpoint: str, timeout_s: float) -> KnownPeer:
        """Return the peer, connecting if need be; its cache fits ours.

        Raises what `reach` raises, and GeometryMismatchError or ProtocolError if the peer's cache does not
        fit ours.
        """
        known = self.reach(node_id, endpoint, timeout_s)
        if known.refusal is not None:
            raise _fresh(known.refusal)
        return known

    def reach(self, node_id: str, endpoint: str, timeout_s: float) -> KnownPeer:
        """Return the peer, connecting if need be, whether or not its cache fits ours.

        Raises UnavailableError at once while the node is in its back-off after a failure, AccessDeniedError
        for an address that must not be dialled, DeadlineExceededError, else what `Engine.connect` raises.
        """
        self._check_allowed(endpoint)
        slot = self._slot(node_id, endpoint)
        started = self._clock()
        with _locked(slot.lock, timeout_s, endpoint):
            if slot.known is not None and slot.known.peer.alive:
                return slot.known
            slot.known = None
            if slot.error is not None and self._clock() < slot.down_until:
                raise _fresh(slot.error)
            remaining_s = min(self._connect_timeout_s, timeout_s - (self._clock() - started))
            if remaining_s <= 0:
                raise DeadlineExceededError(f"no time left to connect to {endpoint} after {timeout_s:.1f} s")
            try:
                slot.known = self._connect(node_id, endpoint, remaining_s)
            except KVFerryError as error:
                self._back_off(slot, error)
                raise
            slot.failures, slot.error = 0, None
            return slot.known

    def connected(self, node_id: str, endpoint: str) -> KnownPeer | None:
        """Return the peer if it is connected and alive."""
        with self._lock:
            slot = self._slots.get((node_id, endpoint))
        known = slot.known if slot is not None else None
        return known if known is not None and known.peer.alive else None

    def report_failure(self, node_id: str, endpoint: str, error: KVFerryError) -> None:
        """Start the back-off of a node that stopped answering; the next `get` after it connects anew."""
        slot = self._slot(node_id, endpoint)
        if not slot.lock.acquire(blocking=False):
            return  # being connected right now: that attempt decides
        try:
            known, slot.known = slot.known, None
            self._back_off(slot, error)
        finally:
            slot.lock.release()
        if known is not None:
            known.peer.close()

    def _check_allowed(self, endpoint: str) -> None:
        if not self._allow_remote and not is_loopback(endpoint):
            raise AccessDeniedError(
                f"refusing to connect to {endpoint}: without transfer.cluster_secret only prefill engines on "
                "this host are trusted; set the same secret on every node"
            )

    def _connect(self, node_id: str, endpoint: str, timeout_s: float) -> KnownPeer:
        peer = self._engine.connect(endpoint, expected=node_id, timeout_s=timeout_s)
        regions = {region.name: region.id for region in peer.regions}
        theirs, refusal = None, None
        try:
            theirs = self._check_geometry(peer)
        except (GeometryMismatchError, ProtocolError) as error:
            refusal = error
            logger.error(
                "prefill engine %s at %s cannot be used, its requests are prefilled here: %s",
                node_id[:12],
                endpoint,
                error,
            )
        else:
            note = f" ({peer.transport_note})" if peer.transport_note else ""
            logger.info("connected to prefill engine %s at %s%s", node_id[:12], endpoint, note)
        return KnownPeer(peer, theirs, regions, refusal)

    def _check_geometry(self, peer: Peer) -> KVGeometry | None:
        if self._geometry is None:
            return None
        theirs = KVGeometry.decode(peer.metadata)
        check_compatible(self._geometry, theirs)
        return theirs

    def _back_off(self, slot: _Slot, error: KVFerryError) -> None:
        slot.failures += 1
        gone = isinstance(error, IdentityMismatchError)  # that node will not come back
        wait_s = MAX_BACKOFF_S if gone else min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (slot.failures - 1))
        slot.down_until = self._clock() + wait_s
        slot.error = UnavailableError(f"prefill engine is down, next try within {wait_s:.1f} s: {error}")

    def _slot(self, node_id: str, endpoint: str) -> _Slot:
        key = (node_id, endpoint)
        with self._lock:
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = _Slot()
                self._evict()
            self._slots.move_to_end(key)
            return slot

    def _evict(self) -> None:
        """Forget the nodes unused for longest, those without a live connection first."""
        while len(self._slots) > MAX_PEERS:
            oldest = list(self._slots)[:-1]  # the last one is about to be used
            key = next((key for key in oldest if self._slots[key].known is None), oldest[0])
            slot = self._slots.pop(key)
            if slot.known is not None:
                slot.known.peer.close()


def _fresh(error: KVFerryError) -> KVFerryError:
    """Return a copy to raise: one that is raised again and again collects the frames of all who raised it."""
    return type(error)(*error.args)


def is_loopback(endpoint: str) -> bool:
    """Whether `endpoint` can only be a process of this host."""
    if endpoint.startswith("unix:"):
        return True
    host = endpoint.rpartition(":")[0].strip("[]").partition("%")[0]
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


@contextlib.contextmanager
def _locked(lock: threading.Lock, timeout_s: float, what: str) -> Iterator[None]:
    if not lock.acquire(timeout=max(0.0, timeout_s)):
        raise DeadlineExceededError(f"another request is still connecting to {what} after {timeout_s:.1f} s")
    try:
        yield
    finally:
        lock.release()
