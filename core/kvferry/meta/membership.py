"""Membership of a cluster: this node's record in the store, everybody's records as a numbered view.

Three threads: one shows up every third of the lease, one follows the store, one tells the listeners.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kvferry.errors import (
    CancelledError,
    ConfigError,
    DeadlineExceededError,
    InvalidArgumentError,
    KVFerryError,
)
from kvferry.meta.own_record import OwnRecord
from kvferry.meta.records import Member, Sealer, Setting, difference
from kvferry.meta.store import Batch, MetaStore, Watch
from kvferry.meta.view import Ignored, View, ViewState, describe
from kvferry.metrics import Sample

log = logging.getLogger("kvferry.meta")

BEATS_PER_LEASE = 3
_RETRY_S = 0.5  # while the store is away
_MIN_GAP_S = 0.2  # between two writings of our record, whoever keeps removing it
_MAX_NAMED = 64  # records that are not believed and get a log line

Listener = Callable[[View], None]


@dataclass(eq=False)
class _Listening:
    listener: Listener
    told: int = 0  # number of the last view that it was called with


class Membership:
    """This node as a member of a cluster. Thread-safe; a context manager that leaves.

        with Membership(store, cluster="default", secret=secret, member=Member(...)) as membership:
            membership.join()
            membership.on_change(lambda view: node.set_members(view.members))

    `settings`: what all nodes must agree on, such as the number of replicas. `lease_s`: how long the others
    wait until they take a silent node for dead. While the store is away the last view stays in force.
    The store is not closed.
    """

    def __init__(
        self,
        store: MetaStore,
        *,
        cluster: str,
        secret: str,
        member: Member,
        settings: Mapping[str, Setting] | None = None,
        lease_s: float = 5.0,
    ) -> None:
        self._store = store
        self._settings = dict(settings or {})
        self._lease_s = lease_s
        self._prefix = f"kvferry/{cluster}/members/"
        self._sealer = Sealer(cluster, secret)
        self._own = OwnRecord(
            store, self._sealer, member, prefix=self._prefix, settings=self._settings, lease_s=lease_s
        )
        self._guard = threading.Condition()
        self._state = ViewState(member, self._sealer, self._settings, lease_s=lease_s, now=time.monotonic())
        self._listeners: list[_Listening] = []
        self._watch: Watch | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._away_since: float | None = None
        self._named: set[tuple[str, str]] = set()
        self._threads: list[threading.Thread] = []

    def join(self, timeout_s: float = 10.0) -> View:
        """Enter the cluster and return the first view, in which every living node is.

        Raises ConfigError if a setting differs from that of the members, UnavailableError if the store does
        not answer, DeadlineExceededError.
        """
        if self._threads or self._stopping.is_set():
            raise InvalidArgumentError("a Membership joins once; make another")
        deadline = time.monotonic() + timeout_s
        self._check_settings(None)
        self._own.beat()
        try:
            self._check_settings(self._own.revision)
            self._watch = self._store.watch(self._prefix)
            first = self._watch.next(max(deadline - time.monotonic(), 0.001))
            if first is None:
                raise DeadlineExceededError(f"the metadata store {self._store.name} told no members in time")
        except KVFerryError:
            self._end()
            raise
        self._take(first)
        for name, work in (("beat", self._beat), ("follow", self._follow), ("tell", self._tell)):
            thread = threading.Thread(target=work, name=f"kvferry-meta-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self.members()

    def leave(self) -> None:
        """Withdraw from the cluster and end. Idempotent."""
        if not self._stopping.is_set():
            self._end()

    def members(self) -> View:
        """Return the present view. Never waits for the store."""
        with self._guard:
            return self._state.view

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the present view and after every change; returns what ends that.

        It is called by one thread of ours, never twice at a time; views may be skipped, the latest never is.
        An error that it raises is logged.
        """
        entry = _Listening(listener)
        with self._guard:
            self._listeners.append(entry)
            self._guard.notify_all()
        return lambda: self._forget(entry)

    def update(self, **changes: object) -> None:
        """Describe this node anew, e.g. `roles=("draining",)`. Raises InvalidArgumentError."""
        member = self._own.describe(changes)
        with self._changing():
            self._state.set_own(member)
        self._wake.set()

    def suspect(self, node_id: str) -> None:
        """Take a node for dead at once, here only; the data path lost its connection.

        It comes back when it writes its record anew, when the store keeps it for two leases more, or by
        `trust`.
        """
        with self._changing():
            self._state.suspect(node_id, time.monotonic())

    def trust(self, node_id: str) -> None:
        """Take a suspicion back: the node was heard of. Once in a lease time for each node."""
        with self._changing():
            self._state.trust(node_id, time.monotonic())

    @property
    def store_away_s(self) -> float:
        """For how many seconds the store has not answered; 0 while it does."""
        since = self._away_since
        return time.monotonic() - since if since is not None else 0.0

    def ignored(self) -> dict[str, int]:
        """Return how many records were not believed, by reason."""
        with self._guard:
            return dict(self._state.ignored)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics, for `MetricRegistry.read_from`."""
        view = self.members()
        yield Sample("kvferry_meta_members", (), len(view.members))
        yield Sample("kvferry_meta_view", (), view.number)
        yield Sample("kvferry_meta_store_up", (), 0 if self.store_away_s else 1)
        for reason, count in sorted(self.ignored().items()):
            yield Sample("kvferry_meta_ignored_records_total", (reason,), count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def _check_settings(self, own_revision: int | None) -> None:
        """Compare our settings with the members': of two that enter together, the first one stays."""
        for entry in self._store.list(self._prefix):
            if entry.key == self._own.key or (own_revision is not None and entry.revision > own_revision):
                continue
            try:
                record = self._sealer.open(entry)
            except KVFerryError:
                continue  # not believed; the view counts it
            if mismatch := difference(self._settings, record.settings):
                raise ConfigError(describe(record, mismatch))

    def _end(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._watch is not None:
            self._watch.close()
        with self._guard:
            self._guard.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        if self._away_since is None and (problem := self._own.withdraw()):
            log.info("our record was not removed (%s) and ends with its lease", problem)

    # The thread that shows up.

    def _beat(self) -> None:
        while not self._stopping.is_set():
            pause = self._lease_s / BEATS_PER_LEASE
            if self._wake.wait(min(pause, _RETRY_S) if self._away_since is not None else pause):
                self._wake.clear()
                self._stopping.wait(_MIN_GAP_S)
            if self._stopping.is_set():
                return
            try:
                written = self._own.beat()
            except CancelledError:
                return  # the store was closed
            except KVFerryError as error:
                self._note_away(error)
            else:
                self._note_back(written=written)

    def _note_away(self, error: KVFerryError) -> None:
        if self._away_since is not None:
            return
        self._away_since = time.monotonic()
        with self._guard:
            self._state.set_reachable(False, time.monotonic())
            count = len(self._state.view.members)
        log.warning("%s; going on with the last view, members %d", error, count)

    def _note_back(self, *, written: bool) -> None:
        if self._away_since is None:
            return
        away_s, self._away_since = time.monotonic() - self._away_since, None
        with self._guard:
            self._state.set_reachable(True, time.monotonic())
        put_back = ", our record was put back" if written else ""
        log.warning("the metadata store %s answers again after %.1f s%s", self._store.name, away_s, put_back)

    # The thread that follows the store.

    def _follow(self) -> None:
        assert self._watch is not None  # noqa: S101  (set by join, before this thread)
        tick_s = min(self._lease_s / 10, 0.5)
        while not self._stopping.is_set():
            try:
                batch = self._watch.next(tick_s)
            except CancelledError:
                return
            if batch is not None:
                self._take(batch)
            with self._changing():
                self._state.tick(time.monotonic())

    def _take(self, batch: Batch) -> None:
        for event in batch.events:
            if event.key == self._own.key and self._own.seen(event.entry):
                self._wake.set()
        with self._changing():
            ignored = self._state.apply(batch, time.monotonic())
        self._log_ignored(ignored)

    def _log_ignored(self, ignored: list[Ignored]) -> None:
        """Log each kind of trouble with a key once: whoever can write to the store must not fill our log."""
        for problem in ignored:
            mark = (problem.key, problem.reason)
            if mark not in self._named and len(self._named) < _MAX_NAMED:
                self._named.add(mark)
                log.warning("a record is ignored, reason %s: %s", problem.reason, problem.text)

    # The thread that tells the listeners.

    def _changing(self) -> _Change:
        return _Change(self._guard, self._state)

    def _forget(self, entry: _Listening) -> None:
        with self._guard:
            if entry in self._listeners:
                self._listeners.remove(entry)

    def _tell(self) -> None:
        logged: View | None = None
        while True:
            with self._guard:
                view = self._state.view
                due = [entry for entry in self._listeners if entry.told != view.number]
                if not due and logged is view and not self._stopping.is_set():
                    self._guard.wait(1.0)
            if self._stopping.is_set():
                return
            if logged is not view:
                _log_change(logged, view)
                logged = view
            for entry in due:
                entry.told = view.number
                _call(entry.listener, view)


class _Change:
    """Holds the state of a membership, and wakes the teller if the view is another one afterwards."""

    def __init__(self, guard: threading.Condition, state: ViewState) -> None:
        self._guard = guard
        self._state = state
        self._before = 0

    def __enter__(self) -> None:
        self._guard.acquire()
        self._before = self._state.view.number

    def __exit__(self, *_: object) -> None:
        if self._state.view.number != self._before:
            self._guard.notify_all()
        self._guard.release()


def _call(listener: Listener, view: View) -> None:
    try:
        listener(view)
    except Exception:
        log.exception("a listener of the membership failed on view %d", view.number)


def _log_change(before: View | None, after: View) -> None:
    old = {member.node_id: member.endpoint for member in before.members} if before else {}
    new = {member.node_id: member.endpoint for member in after.members}
    joined = [f"{node_id} at {new[node_id]}" for node_id in new if node_id not in old]
    left = [f"{node_id} at {old[node_id]}" for node_id in old if node_id not in new]
    if joined or left:
        changes = (("joined", joined), ("left", left))
        shown = "; ".join(f"{word} {', '.join(nodes[:8])}" for word, nodes in changes if nodes)
        log.info("view %d, members %d: %s", after.number, len(new), shown)
