"""Transfers named by addresses and by a peer's session, as the interfaces of other libraries name them.

Those interfaces let one process tell another the address of its memory, and later write to that address. Here
an address stays a name: the owner publishes each registered range as a region that is called by its address,
and whoever initiates a transfer looks the addresses up in that list. What goes over the wire, and what the
owner checks, is (region id, generation, offset, length).
"""

from __future__ import annotations

import bisect
import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvferry._native import Plan, RegionInfo
from kvferry.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    StaleError,
)
from kvferry.transfer.engine import Access, Engine, Op
from kvferry.transfer.handle import Transfer, may_still_land
from kvferry.transfer.peer import Peer
from kvferry.transfer.region import Region

Addresses = npt.NDArray[np.uint64]

_MARK = "@"  # begins the names of regions that are called by their address
_REFRESH_S = 5.0  # for a peer to say which regions it has


class Span:
    """Memory that somebody else owns, as what `Engine.register` takes. `device`: "cpu", "cuda" or "npu"."""

    def __init__(self, address: int, length_bytes: int, device: str = "cpu") -> None:
        self._address = address
        self.nbytes = length_bytes
        self.device = device

    def data_ptr(self) -> int:
        """Return where it begins."""
        return self._address


class _Map:
    """Where ranges of addresses lie in regions. Immutable."""

    def __init__(self, regions: Iterable[tuple[int, int, int]]) -> None:
        """`regions`: address, length, region id of each."""
        ordered = sorted((address, -length, region) for address, length, region in regions)
        self._plain = [(address, -length, region) for address, length, region in ordered]
        self._starts = np.array([address for address, _, _ in ordered], np.uint64)
        self._lengths = np.array([-length for _, length, _ in ordered], np.uint64)
        self._ids = np.array([region for _, _, region in ordered], np.uint64)
        # For each region, whichever ends last of it and those before it: what lies in one of them lies in it.
        # One more at the end, for pieces that begin before all regions.
        furthest = list(itertools.accumulate(range(len(ordered)), self._later_end))
        self._furthest = np.array([*furthest, -1], np.int64)

    @property
    def first(self) -> int:
        """Where the region of the lowest id begins; 0 if there is none."""
        return int(self._starts[np.argmin(self._ids)]) if self._ids.size else 0

    def _later_end(self, one: int, other: int) -> int:
        return max(one, other, key=lambda index: self._plain[index][0] + self._plain[index][1])

    def find(
        self, addresses: Addresses, lengths: Addresses
    ) -> tuple[Addresses | int, Addresses | int, npt.NDArray[Any] | None]:
        """Return region ids, offsets (numbers for one piece), and which pieces lie in no region, if any."""
        if not self._starts.size:
            return addresses * 0, addresses * 0, np.ones(addresses.shape, bool) if addresses.size else None
        if addresses.size == 1 and (one := self._find_one(int(addresses[0]), int(lengths[0]))) is not None:
            return (*one, None)  # at a third of the time
        place = self._starts.searchsorted(addresses, side="right").astype(np.int64) - 1
        lost = self._outside(place, addresses, lengths)
        if lost.any():  # the nearest region may lie within a larger one
            place = np.where(lost, self._furthest[place], place)
            lost = self._outside(place, addresses, lengths)
        place = np.maximum(place, 0)
        return self._ids[place], addresses - self._starts[place], lost if lost.any() else None

    def _find_one(self, address: int, length: int) -> tuple[int, int] | None:
        """Return region id and offset if the nearest region holds these bytes."""
        place = bisect.bisect_right(self._plain, address, key=itemgetter(0)) - 1
        if place < 0:
            return None
        start, size, region = self._plain[place]
        return (region, address - start) if address - start + length <= size else None

    def _outside(
        self, place: npt.NDArray[np.int64], addresses: Addresses, lengths: Addresses
    ) -> npt.NDArray[Any]:
        at = np.maximum(place, 0)
        room = self._lengths[at]
        offset = addresses - self._starts[at]  # wraps only where there is no region before it
        outside: npt.NDArray[Any] = (place < 0) | (offset > room) | (lengths > room - offset)
        return outside


class _Known(NamedTuple):
    peer: Peer
    map: _Map


class _Turn:
    """Whose turn it is to connect to a session."""

    def __init__(self) -> None:
        self.taken = threading.Lock()
        self.wanted = 0  # threads that have it or wait for it


class AddressedEngine:
    """An engine whose memory, and that of its peers, is named by addresses. Thread-safe.

    `session` is what a peer needs to reach this engine: the identity of this very process and its endpoint,
    as `NODE_ID@HOST:PORT`. A process that was started anew has another one, so that nothing meant for the old
    one reaches it.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lock = threading.Lock()  # guards what follows
        self._registered: dict[tuple[int, int], list[Region]] = {}
        self._map = _Map(())
        self._known: dict[str, _Known] = {}
        self._turns: dict[str, _Turn] = {}  # of sessions that somebody connects to now

    @property
    def session(self) -> str:
        """What names this engine to its peers."""
        return f"{self.engine.node_id}@{self.engine.endpoint}"

    def register(
        self, address: int, length_bytes: int, *, access: Access = "rw", device: str = "cpu"
    ) -> None:
        """Make a range of memory usable by transfers, and reachable for peers as `access` says.

        The caller keeps it alive until `unregister`, or `Engine.close`. The same range once more costs little
        and goes with as many `unregister`. Raises as `Engine.register`.
        """
        name = f"{_MARK}{address:x}"
        region = self.engine.register(Span(address, length_bytes, device), name=name, access=access)
        with self._lock:
            self._registered.setdefault((address, length_bytes), []).append(region)
            self._rebuild()

    def unregister(self, address: int, length_bytes: int | None = None, *, timeout_s: float = 5.0) -> None:
        """End what `register` began; without a length, for one range that begins there.

        Raises `NotFoundError` if there is none, `DeadlineExceededError` if a transfer still uses it.
        """
        with self._lock:
            found = [key for key in self._registered if key[0] == address and length_bytes in (None, key[1])]
            if not found:
                raise NotFoundError(f"no memory is registered at {address:#x}")
            region = self._registered[found[-1]][-1]
        region.unregister(timeout_s)
        with self._lock:
            held = self._registered.get(found[-1], [])
            if region in held:
                held.remove(region)
            if not held:
                self._registered.pop(found[-1], None)
            self._rebuild()

    def _rebuild(self) -> None:
        self._map = _Map(
            (address, length, held[0].id) for (address, length), held in self._registered.items()
        )

    def connect(self, session: str, *, timeout_s: float | None = None) -> Peer:
        """Return the live peer that a session names; blocks up to `timeout_s` where none is connected.

        Raises `InvalidArgumentError` (no session), and what `Engine.connect` raises, e.g.
        `IdentityMismatchError` if another process has taken the address over.
        """
        return self._reach(session, time.monotonic() + self._connect_limit(timeout_s)).peer

    def forget(self, session: str) -> None:
        """Close the connection to a peer that is not needed any more; idempotent."""
        with self._lock:
            known = self._known.pop(session, None)
        if known is not None:
            known.peer.close()

    def is_connected(self, session: str) -> bool:
        """Say whether there is a live connection to a session's process; never blocks."""
        with self._lock:
            known = self._known.get(session)
        return known is not None and known.peer.alive

    def prepare(
        self,
        session: str,
        op: Op,
        local: Addresses,
        remote: Addresses,
        lengths: Addresses,
        *,
        timeout_s: float | None = None,
    ) -> Plan:
        """Turn pieces given as addresses (uint64 [n] each; lengths in bytes) into one plan for `submit`.

        Blocks where the peer has to be connected, or asked for its regions, up to `timeout_s` (default: the
        option connect_timeout_s). Raises `OutOfRangeError` for a piece that lies in no registered range, on
        either side, and what `connect` and `Engine.prepare` raise.
        """
        deadline = time.monotonic() + self._connect_limit(timeout_s)
        known = self._reach(session, deadline)
        with self._lock:
            mine = self._map
        pieces = np.empty((lengths.size, 5), np.uint64)
        pieces[:, 4] = lengths
        pieces[:, 0], pieces[:, 2], lost = mine.find(local, lengths)
        if lost is not None:
            raise _outside("our", local, lengths, lost)
        pieces[:, 1], pieces[:, 3], lost = known.map.find(remote, lengths)
        if lost is not None:  # registered since we looked?
            known = self._look_again(session, known.peer, deadline)
            pieces[:, 1], pieces[:, 3], lost = known.map.find(remote, lengths)
        if lost is not None:
            raise _outside(f"{session}'s", remote, lengths, lost)
        return self.engine.prepare(known.peer, pieces, op)

    def execute(
        self,
        session: str,
        op: Op,
        local: Addresses,
        remote: Addresses,
        lengths: Addresses,
        *,
        timeout_s: float | None = None,
        notify: bytes = b"",
    ) -> Transfer:
        """Move all pieces as one transfer, on the calling thread where that is possible; see `prepare`.

        Returns the settled transfer; whether the pieces were moved is in it. `timeout_s` holds from here on,
        connecting included (default: the option transfer_timeout_s). `notify`: as for `Engine.submit`.
        """
        limit_s = self.engine.options.transfer_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        pieces = (session, op, local, remote, lengths)
        try:
            transfer = self._execute_once(self._prepare_by(deadline, *pieces), deadline, notify)
        except (StaleError, NotFoundError):
            transfer = None
        if transfer is None or _is_worth_another_try(transfer.error):  # the peer registered its memory anew
            self._look_again(session, self.connect(session, timeout_s=self._soon(deadline)), deadline)
            transfer = self._execute_once(self._prepare_by(deadline, *pieces), deadline, notify)
        return transfer

    def _prepare_by(self, deadline: float, *pieces: Any) -> Plan:
        return self.prepare(*pieces, timeout_s=self._soon(deadline))

    def _soon(self, deadline: float) -> float:
        return min(_left(deadline), self.engine.options.connect_timeout_s)

    def _execute_once(self, plan: Plan, deadline: float, notify: bytes) -> Transfer:
        return self.engine.execute(plan, timeout_s=_left(deadline), notify=notify)

    def _connect_limit(self, timeout_s: float | None) -> float:
        return self.engine.options.connect_timeout_s if timeout_s is None else timeout_s

    def _reach(self, session: str, deadline: float) -> _Known:
        with self._lock:
            known = self._known.get(session)
        if known is not None and known.peer.alive:
            return known
        with self._turn(session, deadline):  # one connection, however many threads want it
            with self._lock:
                known = self._known.get(session)
            if known is not None and known.peer.alive:
                return known
            self._forget_lost()
            return self._keep(session, self._connect(session, _left(deadline)))

    def _forget_lost(self) -> None:
        """Programs seldom say which sessions they are done with."""
        with self._lock:
            self._known = {name: known for name, known in self._known.items() if known.peer.alive}

    @contextmanager
    def _turn(self, session: str, deadline: float) -> Iterator[None]:
        with self._lock:
            turn = self._turns.setdefault(session, _Turn())
            turn.wanted += 1
        try:
            if not turn.taken.acquire(timeout=min(_left(deadline), threading.TIMEOUT_MAX)):
                raise DeadlineExceededError(f"{session}: another thread still connects to it")
            try:
                yield
            finally:
                turn.taken.release()
        finally:
            with self._lock:
                turn.wanted -= 1
                if not turn.wanted:
                    del self._turns[session]

    def _connect(self, session: str, timeout_s: float) -> Peer:
        node_id, mark, endpoint = session.partition("@")
        if not mark or not node_id:
            raise InvalidArgumentError(f"{session!r} is no session: it is written NODE_ID@HOST:PORT")
        return self.engine.connect(endpoint, expected=node_id, timeout_s=timeout_s)

    def _look_again(self, session: str, peer: Peer, deadline: float | None = None) -> _Known:
        peer.refresh(_REFRESH_S if deadline is None else min(_left(deadline), _REFRESH_S))
        return self._keep(session, peer)

    def _keep(self, session: str, peer: Peer) -> _Known:
        known = _Known(peer, _Map(filter(None, map(_by_address, peer.regions))))
        with self._lock:
            self._known[session] = known
        return known


def _is_worth_another_try(error: Exception | None) -> bool:
    return isinstance(error, StaleError) and not may_still_land(error)


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _by_address(info: RegionInfo) -> tuple[int, int, int] | None:
    """Return address, length and id of a region that is called by its address."""
    mark, _, digits = info.name.partition(_MARK)
    if mark or not digits:
        return None
    try:
        address = int(digits, 16)
    except ValueError:
        return None
    if not 0 <= address < 1 << 64:
        return None
    return address, info.length_bytes, info.id


def _outside(whose: str, addresses: Addresses, lengths: Addresses, lost: npt.NDArray[Any]) -> OutOfRangeError:
    first = int(np.flatnonzero(lost)[0])
    return OutOfRangeError(
        f"{int(lost.sum())} of {lost.size} pieces are in none of {whose} registered ranges, the first with "
        f"{int(lengths[first])} bytes at {int(addresses[first]):#x}"
    )
