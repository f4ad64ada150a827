"""The consumer: reads a request's KV cache from a prefill engine into local blocks, or says why not.

The order of events is what makes a load safe: the blocks are read, then the lease is given back, and only if
the prefill engine answers that the lease had been held until then are the blocks reported as loaded. Anything
else is a failed load, and the engine recomputes. A load is reported once, after no thread touches its local
blocks any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from kvferry.errors import (
    CancelledError,
    DeadlineExceededError,
    InternalError,
    KVFerryError,
    PeerLostError,
    StaleError,
)
from kvferry.handoff.control import ControlClient, lives
from kvferry.handoff.early import EarlyPulls
from kvferry.handoff.messages import ReleaseReason
from kvferry.handoff.params import LeaseAddress, RemotePrefill, content_digest
from kvferry.handoff.peers import KnownPeer, PeerBook
from kvferry.handoff.renewals import Renewals
from kvferry.handoff.sources import SourceMap, Target
from kvferry.handoff.throttle import WarningThrottle
from kvferry.layout import KVGeometry

if TYPE_CHECKING:
    from kvferry.layout.mapping import Pieces
    from kvferry.transfer import Engine, Transfer

logger = logging.getLogger(__name__)

_SETTLE_GRACE_S = 1.0  # beyond the deadline that the transfer engine itself keeps
_SETTLE_POLL_S = 5.0  # a cancelled transfer settles soon; how often to complain while it has not
_MIN_CONTROL_S = 0.5  # least time left for giving the lease back


class LoadRequest(msgspec.Struct, frozen=True):
    """One request's KV cache to read: prompt tokens [first_token, first_token + num_tokens).

    `local_block_ids[g]` are the blocks of group g that receive them, the first one holding `first_token`.
    `early`: what has been read of it already, while the prompt was being computed.
    """

    request_id: str
    remote: RemotePrefill
    local_block_ids: tuple[tuple[int, ...], ...]
    first_token: int
    num_tokens: int
    early: EarlyPulls | None = None


class LoadResult(NamedTuple):
    """How a load ended. `error` None: every byte arrived while the lease was held."""

    request_id: str
    error: KVFerryError | None
    bytes: int
    seconds: float  # from submit to the end
    transport: str
    peer: str  # endpoint of the first rank that was read from
    early_bytes: int = 0  # of these, read before the prompt was finished

    @property
    def cancelled(self) -> bool:
        """Whether it ended because its owner no longer wanted it."""
        return isinstance(self.error, CancelledError)


class Executor(Protocol):
    """Runs jobs on threads of its own. `submit` never blocks."""

    def submit(self, job: Callable[[], None], /) -> bool:
        """Run `job` some time soon; False: it will not be, since the executor is closed."""


class _Load:
    def __init__(self, request: LoadRequest, started_at: float, deadline: float) -> None:
        self.request = request
        self.started_at = started_at
        self.deadline = deadline
        self.running = False
        self.cancelled = False
        self.overdue = False  # its transfer had to be cancelled at its deadline
        self.unconfirmed = False  # the peer did not answer in time
        self.targets: tuple[Target, ...] = ()
        self.at: Target | None = None  # who was being dealt with when an error was raised
        self.given_back: set[Target] = set()
        self.transfers: list[Transfer] = []
        self.bytes = 0
        self.transport = ""

    @property
    def quiet(self) -> bool:
        """Whether no early transfer touches local memory."""
        return self.request.early is None or not self.request.early.in_flight()


class ConsumerLimits(NamedTuple):
    """Times of a consumer, in seconds."""

    load_timeout_s: float = 30.0
    control_timeout_s: float = 5.0


class Consumer:
    """Loads of one worker of a decode engine. Thread-safe; no method blocks.

    `loads` runs loads, and its thread count bounds how many run at once; `chores` runs short control work, so
    that it does not queue behind loads. It reads from those ranks of the prefill engine that hold the layers
    and heads of our rank, which `geometry` names. `tick` must be called several times a second.
    """

    def __init__(
        self,
        engine: Engine,
        geometry: KVGeometry,
        local_regions: Mapping[str, int],
        peers: PeerBook,
        control: ControlClient,
        *,
        loads: Executor,
        chores: Executor,
        limits: ConsumerLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._sources = SourceMap(geometry, local_regions)
        self._peers = peers
        self._control = control
        self._load_pool = loads
        self._chore_pool = chores
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._loads: dict[str, _Load] = {}
        self._results: list[LoadResult] = []
        self._counts: Counter[str] = Counter()
        self._warnings = WarningThrottle(clock=clock)
        self._renewals = Renewals(peers, control, chores, targets=self._sources.targets, clock=clock)
        self._closed = False

    def watch(self, request_id: str, address: LeaseAddress) -> None:
        """Renew the lease from now on: the request waits for its turn in the decode engine."""
        self._renewals.add(request_id, address)

    def submit(self, request: LoadRequest) -> None:
        """Start a load; its result comes within the load timeout plus the time to settle."""
        now = self._clock()
        load = _Load(request, now, now + self._limits.load_timeout_s)
        with self._lock:
            if request.request_id in self._loads:
                self._counts["duplicate_loads"] += 1
                return
            self._loads[request.request_id] = load
        self._renewals.add(request.request_id, request.remote.address)
        if self._closed or not self._load_pool.submit(lambda: self._run(load)):
            self._settle_queued(load, CancelledError("the engine is shutting down"))

    def cancel(self, request_id: str) -> None:
        """End a load soon: its request was aborted. The result still comes, once local memory is quiet."""
        with self._lock:
            load = self._loads.get(request_id)
            if load is None:
                return
            load.cancelled = True
            transfers, running = list(load.transfers), load.running
        for transfer in transfers:
            transfer.cancel()
        if load.request.early is not None:
            load.request.early.cancel()
        if not running and load.quiet:
            self._settle_queued(load, CancelledError("the request was aborted"))

    def fail(
        self, request_id: str, early: EarlyPulls, error: KVFerryError, started_at: float, endpoint: str
    ) -> None:
        """Report a load that failed before its prompt was finished, once its early transfers have settled."""
        early.cancel()

        def report() -> None:
            self._settle_early(request_id, early)
            seconds = self._clock() - started_at
            result = LoadResult(request_id, error, 0, seconds, early.transport, endpoint)
            with self._lock:
                self._results.append(result)
            self._log(result)

        if not early.in_flight() or not self._chore_pool.submit(report):
            report()

    def release(self, request_id: str, address: LeaseAddress, reason: ReleaseReason) -> None:
        """Give back a lease that needs no load, in the background; failures are left to the lease's end."""
        self._renewals.remove(request_id)
        try:
            targets = self._sources.targets(address)
        except KVFerryError as error:
            self._count("release_failures")
            logger.debug("lease %s runs out by itself: %s", address.lease, error)
            return
        self._in_background(lambda: self._release(address, targets, reason))

    def take_results(self) -> list[LoadResult]:
        """Return the loads that ended since the last call, each one once."""
        if not self._results:
            return []
        with self._lock:
            results, self._results = self._results, []
            return results

    def take_counts(self) -> dict[str, int]:
        """Return what happened since the last call: duplicate_loads, release_failures, failed_renewals."""
        renewals = self._renewals.take_counts()
        if not self._counts:
            return renewals
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts + Counter(renewals))

    def pending(self) -> int:
        """Return how many loads have not ended."""
        with self._lock:
            return len(self._loads)

    def tick(self) -> None:
        """Renew leases that are due, and fail queued loads whose time is over."""
        now = self._clock()
        with self._lock:
            late = [load for load in self._loads.values() if not load.running and now >= load.deadline]
        for load in late:
            if load.request.early is not None:
                load.request.early.cancel()
            if load.quiet:
                self._settle_queued(load, self._timed_out(load, "loaded"))
        self._renewals.tick()

    def close(self) -> None:
        """Cancel all loads; their results still come."""
        with self._lock:
            self._closed = True
            pending = list(self._loads)
        for request_id in pending:
            self.cancel(request_id)

    def _run(self, load: _Load) -> None:
        with self._lock:
            if self._loads.get(load.request.request_id) is not load:
                return  # cancelled or timed out while queued
            load.running = True
        error: KVFerryError | None = None
        try:
            self._load(load)
        except KVFerryError as failure:
            error = failure
        except Exception as failure:
            logger.exception("load of request %s failed unexpectedly", load.request.request_id)
            error = InternalError(f"{type(failure).__name__}: {failure}")
        try:
            if error is not None:
                error = self._after_failure(load, error)
        finally:  # whatever happened: a load without a result would keep its request for ever
            self._finish(load, error)

    def _load(self, load: _Load) -> None:
        early = load.request.early
        if early is not None:
            self._settle_early(load.request.request_id, early)
        load.targets = self._sources.targets(load.request.remote.address)
        if early is not None:
            self._check_early(load, early)
        known = {}
        for target in load.targets:
            if target.reads:
                load.at = target
                known[target] = self._peers.get(*target.node, self._remaining(load))
        try:
            each = self._sources.pieces(load.request, known)
            for target, pieces in zip(known, each, strict=True):
                load.at = target
                left = pieces if early is None else early.remainder(pieces)
                if len(left):
                    self._start_transfer(load, known[target], left)
        finally:
            self._await_settled(load)
        for transfer in load.transfers:
            transfer.raise_if_failed()
        for target, peer in known.items():
            load.at = target
            self._confirm(load, target, peer)
        unread = [target for target in load.targets if not target.reads]
        if unread:
            self._in_background(lambda: self._release(load.request.remote.address, unread, "done"))

    def _check_early(self, load: _Load, early: EarlyPulls) -> None:
        """Raise why one of the early transfers, which have settled, failed."""
        if load.cancelled:
            raise CancelledError("the request was aborted")
        error = early.error()
        if error is not None:
            raise error

    def _settle_early(self, request_id: str, early: EarlyPulls) -> None:
        """Wait until no early transfer touches local memory; each ends by a deadline of its own."""
        for transfer in early.unsettled():
            while not transfer.wait(_SETTLE_POLL_S):
                logger.warning("an early transfer of request %s is not settled yet", request_id)

    def _start_transfer(self, load: _Load, known: KnownPeer, pieces: Pieces) -> None:
        plan = self._engine.prepare(known.peer, pieces, op="read")
        transfer = self._engine.submit(plan, timeout_s=self._remaining(load))
        with self._lock:
            load.transfers.append(transfer)
            cancelled = load.cancelled
        if cancelled:
            transfer.cancel()

    def _confirm(self, load: _Load, target: Target, known: KnownPeer) -> None:
        """Give the lease back and make sure that it had been held while its blocks were read."""
        remote = load.request.remote
        lease_id = remote.address.lease
        content = content_digest(remote.block_ids, remote.num_tokens, remote.address.digest)
        left_s = load.deadline - self._clock()
        timeout_s = max(_MIN_CONTROL_S, min(self._limits.control_timeout_s, left_s))
        load.given_back.add(target)
        try:
            held = self._control.release(
                known.peer,
                lease_id,
                "done",
                timeout_s,
                content,
                reader=target.reader,
                readers=target.readers,
                patience_s=left_s,
            )
        except DeadlineExceededError:
            load.unconfirmed = True
            raise
        if not held:
            raise StaleError(
                f"prefill engine {known.peer.endpoint} did not confirm lease {lease_id}: it had ended "
                "before its blocks were read (raise handoff.lease_s there if this repeats), or was for "
                "other blocks"
            )

    def _await_settled(self, load: _Load) -> None:
        """Wait until no thread touches local memory.

        Reporting earlier would let the engine reuse blocks under a copy.
        """
        for transfer in load.transfers:
            if not transfer.wait(max(0.0, load.deadline - self._clock()) + _SETTLE_GRACE_S):
                load.overdue = True
                transfer.cancel()
                while not transfer.wait(_SETTLE_POLL_S):
                    logger.error(
                        "transfer of request %s is still not settled after its deadline; its blocks stay "
                        "reserved",
                        load.request.request_id,
                    )
        early = load.request.early
        load.bytes = sum(int(transfer.bytes) for transfer in load.transfers)
        load.transport = load.transfers[0].transport if load.transfers else ""
        if early is not None:
            load.bytes += early.bytes
            load.transport = load.transport or early.transport

    def _remaining(self, load: _Load) -> float:
        remaining_s = load.deadline - self._clock()
        if remaining_s <= 0:
            raise self._timed_out(load, "loaded")
        return remaining_s

    def _timed_out(self, load: _Load, what: str) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"request {load.request.request_id} was not {what} from {self._name(load)} within "
            f"{self._limits.load_timeout_s:.1f} s (handoff.load_timeout_s)"
        )

    def _name(self, load: _Load) -> str:
        at = load.at or (load.targets[0] if load.targets else None)
        return at.endpoint if at else load.request.remote.address.endpoints[0]

    def _after_failure(self, load: _Load, error: KVFerryError) -> KVFerryError:
        """Back off from a peer that is gone, tell those that are there, and return the error to report."""
        address = load.request.remote.address
        gone: Target | None = None
        if load.overdue:
            error = self._timed_out(load, "loaded")
        if load.cancelled:
            error = CancelledError(f"the request was aborted while it was loaded from {self._name(load)}")
        elif load.at and (
            load.unconfirmed or (isinstance(error, PeerLostError) and not self._reachable(load.at))
        ):
            gone = load.at
            self._peers.report_failure(*gone.node, error)
        left = [target for target in load.targets if target not in load.given_back and target != gone]
        # A lease that one rank does not confirm has ended everywhere, or is somebody else's.
        if left and not isinstance(error, StaleError):
            self._in_background(lambda: self._release(address, left, "aborted"))
        return error

    def _reachable(self, target: Target) -> bool:
        return self._peers.connected(*target.node) is not None

    def _release(self, address: LeaseAddress, targets: Iterable[Target], reason: ReleaseReason) -> None:
        """Give the lease back at ranks of the prefill engine."""
        timeout_s = self._limits.control_timeout_s
        for target in targets:
            known: KnownPeer | None = None
            try:
                known = self._peers.reach(*target.node, timeout_s)
                self._control.release(
                    known.peer,
                    address.lease,
                    reason,
                    timeout_s,
                    reader=target.reader,
                    readers=target.readers,
                )
            except KVFerryError as error:
                silent = isinstance(error, DeadlineExceededError)
                if silent and not (known is not None and lives(known.peer, timeout_s)):
                    # Spare the next loads the wait. One that lives is only busy.
                    self._peers.report_failure(*target.node, error)
                self._count("release_failures")
                logger.debug(
                    "could not give lease %s back at %s, it runs out by itself: %s",
                    address.lease,
                    target.endpoint,
                    error,
                )

    def _in_background(self, job: Callable[[], None]) -> None:
        if not self._chore_pool.submit(job):
            self._count("release_failures")

    def _settle_queued(self, load: _Load, error: KVFerryError) -> None:
        """End a load that no thread has begun."""
        with self._lock:
            if load.running or self._loads.get(load.request.request_id) is not load:
                return
            del self._loads[load.request.request_id]
            self._append_result(load, error)
        self.release(load.request.request_id, load.request.remote.address, "aborted")

    def _finish(self, load: _Load, error: KVFerryError | None) -> None:
        self._renewals.remove(load.request.request_id)
        with self._lock:
            del self._loads[load.request.request_id]
            result = self._append_result(load, error)
        self._log(result)

    def _append_result(self, load: _Load, error: KVFerryError | None) -> LoadResult:
        seconds = self._clock() - load.started_at
        moved = load.bytes if error is None else 0
        early = 0 if error is not None or load.request.early is None else load.request.early.bytes
        name, request_id = self._name(load), load.request.request_id
        result = LoadResult(request_id, error, moved, seconds, load.transport, name, early)
        self._results.append(result)
        return result

    def _log(self, result: LoadResult) -> None:
        if result.error is None or result.cancelled:
            logger.debug(
                "load request=%s outcome=%s transport=%s peer=%s bytes=%d seconds=%.6f",
                result.request_id,
                "cancelled" if result.cancelled else "loaded",
                result.transport or "none",
                result.peer,
                result.bytes,
                result.seconds,
            )
            return
        # One warning per prefill engine, kind of failure and interval; the rest is in the counts.
        logger.log(
            self._warnings.level((result.peer, result.error.code)),
            "load request=%s outcome=failed code=%s peer=%s seconds=%.3f: %s",
            result.request_id,
            result.error.code,
            result.peer,
            result.seconds,
            result.error,
        )

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1
