"""The thread that serves a process's hand-off messages, and all hand-off parts of one worker."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kvferry.errors import DeadlineExceededError, KVFerryError, ProtocolError
from kvferry.handoff.consumer import Consumer, ConsumerLimits, LoadResult
from kvferry.handoff.control import ControlClient
from kvferry.handoff.messages import (
    HandoffMessage,
    Release,
    Released,
    Renew,
    decode_message,
    encode_message,
)
from kvferry.handoff.orders import HandoffOrders
from kvferry.handoff.peers import PeerBook
from kvferry.handoff.producer import LeaseTable
from kvferry.handoff.stream_in import StreamReceiver
from kvferry.handoff.stream_out import StreamTable
from kvferry.handoff.streams import Streams, sender
from kvferry.handoff.summary import Summary

if TYPE_CHECKING:
    from kvferry.config import HandoffOptions
    from kvferry.layout import KVGeometry
    from kvferry.transfer import Engine, Message

logger = logging.getLogger(__name__)

POLL_S = 0.1  # how often leases, renewals and deadlines are looked at while no message comes
CHORE_THREADS = 4
ANSWER_TRY_S = 0.02  # for one try: all peers' messages wait meanwhile
ANSWER_S = 30.0  # how long it is tried to send an answer to a peer that does not read
MAX_UNSENT = 1024


class ThreadPool:
    """Runs jobs on at most `threads` threads, started when needed. Thread-safe."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def submit(self, job: Callable[[], None]) -> bool:
        """Queue `job`; False once closed. An exception that leaves the job is logged: it is a bug."""
        try:
            self._pool.submit(_logged, job)
        except RuntimeError:  # what the pool raises after its shutdown
            return False
        return True

    def close(self) -> None:
        """Drop what is queued; running jobs end by their own deadlines."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _logged(job: Callable[[], None]) -> None:
    try:
        job()
    except Exception:
        logger.exception("a background job failed")


class MessageLoop:
    """Takes control messages from an engine and acts on them, in a thread of its own.

    `table` None: this process holds no leases, every release is answered no. `tick` is called about ten times
    a second. `streams` takes the messages about streams, with the sender's handle.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        table: LeaseTable | None = None,
        control: ControlClient | None = None,
        streams: Callable[[int, HandoffMessage], None] | None = None,
        tick: Callable[[], None] | None = None,
        name: str = "kvferry-handoff",
    ) -> None:
        self._engine = engine
        self._table = table
        self._control = control
        self._streams = streams
        self._tick = tick
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        # Answers that found no room, and until when to try again: the asking side waits for them. Belongs to
        # the thread.
        self._unsent: deque[tuple[int, Released, float]] = deque(maxlen=MAX_UNSENT)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop the thread and wait for it."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def take_counts(self) -> dict[str, int]:
        """Return what was counted since the last call: malformed_messages, unanswered."""
        if not self._counts:
            return {}
        with self._lock:
            counts, self._counts = dict(self._counts), Counter()
            return counts

    def dispatch(self, message: Message) -> None:
        """Act on one message. Whatever a peer sends, this does not raise."""
        try:
            decoded = decode_message(message.body)
        except ProtocolError as error:
            self._count("malformed_messages")
            logger.debug("ignored a message from peer %s: %s", message.peer, error)
            return
        if isinstance(decoded, Release):
            held = self._table is not None and self._table.release(
                decoded.lease_id,
                decoded.reason,
                decoded.content,
                reader=decoded.reader,
                readers=decoded.readers,
            )
            self._answer(message.peer, Released(decoded.correlation, held))
        elif isinstance(decoded, Renew):
            if self._table is not None:
                self._table.renew(decoded.lease_ids)
        elif isinstance(decoded, Released):
            if self._control is not None:
                self._control.on_released(message.peer, decoded)
        elif self._streams is not None:
            self._streams(message.peer, decoded)

    def _answer(self, peer: int, answer: Released) -> None:
        waits = any(other == peer for other, _, _ in self._unsent)
        if waits or not self._sent(peer, answer):
            self._unsent.append((peer, answer, time.monotonic() + ANSWER_S))

    def _sent(self, peer: int, answer: Released) -> bool:
        """Send an answer; False: there was no room for it, but the peer is there."""
        try:
            self._engine.send(peer, encode_message(answer), timeout_s=ANSWER_TRY_S)
        except DeadlineExceededError:
            return False
        except KVFerryError as error:
            self._count("unanswered")
            logger.debug("could not answer peer %s: %s", peer, error)
        return True

    def _send_again(self) -> None:
        """Try the answers that found no room, in their order; of a peer that still has none only one."""
        full: set[int] = set()
        for _ in range(len(self._unsent)):
            peer, answer, until = self._unsent.popleft()
            if peer not in full and self._sent(peer, answer):
                continue
            full.add(peer)
            if time.monotonic() < until:
                self._unsent.append((peer, answer, until))
            else:
                self._count("unanswered")

    def _run(self) -> None:
        next_tick = time.monotonic()
        while not self._stop.is_set():
            self._guarded(self._one_message)
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + POLL_S
                self._guarded(self._periodic)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step; the thread must outlive a bug in it, or all leases and loads would hang."""
        try:
            step()
        except Exception:
            self._count("internal_errors")
            logger.exception("hand-off service failed once and goes on")
            self._stop.wait(POLL_S)

    def _one_message(self) -> None:
        message = self._engine.next_message(timeout_s=POLL_S)
        if message is not None:
            self.dispatch(message)

    def _periodic(self) -> None:
        self._send_again()
        if self._table is not None:
            self._table.expire()
        if self._tick is not None:
            self._tick()

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1


class HandoffWorker:
    """Producer and consumer of one engine worker process, around one transfer engine. Thread-safe.

    `summary_interval_s`: how often a line sums the hand-offs up in the log. `geometry` and `local_regions`
    (region id by name) describe the registered KV cache. The engine stays the caller's; close this before
    it.
    """

    def __init__(
        self,
        engine: Engine,
        geometry: KVGeometry,
        local_regions: Mapping[str, int],
        options: HandoffOptions,
        *,
        allow_remote: bool,
        summary_interval_s: float = 60.0,
    ) -> None:
        self._node_id = engine.node_id
        self._summary = Summary(summary_interval_s)
        self._loads = ThreadPool(options.max_concurrent_loads, "kvferry-load")
        self._chores = ThreadPool(CHORE_THREADS, "kvferry-chore")
        self._control = ControlClient(engine)
        self.table = LeaseTable(options.lease_s)
        peers = PeerBook(
            engine, geometry, allow_remote=allow_remote, connect_timeout_s=options.connect_timeout_s
        )
        self.consumer = Consumer(
            engine,
            geometry,
            local_regions,
            peers,
            self._control,
            loads=self._loads,
            chores=self._chores,
            limits=ConsumerLimits(options.load_timeout_s, options.control_timeout_s),
        )
        self.streams = Streams(
            [name for group in geometry.groups for name in group.layer_names],
            StreamTable(
                sum(len(group.layer_names) for group in geometry.groups),
                self.table,
                sender(engine),
                lease_s=options.lease_s,
            ),
            lambda post: StreamReceiver(
                engine,
                geometry,
                local_regions,
                peers,
                self.consumer,
                chores=self._chores,
                post=post,
                timeout_s=options.stream_timeout_s,
                transfer_timeout_s=options.load_timeout_s,
            ),
        )
        self._loop = MessageLoop(
            engine,
            table=self.table,
            control=self._control,
            streams=self.streams.on_message,
            tick=self._tick,
        )
        self.streams.start()
        self._loop.start()

    def begin_step(self, orders: HandoffOrders) -> None:
        """Take in what a step computes of streamed prompts, before it computes it; returns at once."""
        for opening in orders.openings:
            self.streams.open(opening)
        if orders.endings:
            # What is said of a lease comes after the lease itself.
            self.table.admit(orders.authority, orders.issued_through, orders.leases)
        for ending in orders.endings:
            self.streams.finish(ending)
        self.streams.begin_step(orders.chunks)

    def carry_out(self, orders: HandoffOrders) -> None:
        """Carry out the scheduler's orders of one step; returns at once."""
        if not orders.endings:  # else `begin_step` has
            self.table.admit(orders.authority, orders.issued_through, orders.leases)
        for watch in orders.watches:
            self.consumer.watch(watch.request_id, watch.address)
        for load in orders.loads:
            self.consumer.submit(load)
        for give_back in orders.give_backs:
            if self._node_id in give_back.address.node_ids:
                self.table.release(give_back.address.lease, give_back.reason)
            else:
                self.consumer.release(give_back.request_id, give_back.address, give_back.reason)
        for follow in orders.follows:
            self.streams.watch(follow)
        for stream_load in orders.stream_loads:
            self.streams.load(stream_load)
        for request_id, reason in orders.stream_releases:
            self.streams.release(request_id, reason)
        for stream in orders.own_streams:
            self.streams.forgo(stream)
        for request_id in orders.cancels:
            self.streams.cancel(request_id)

    def take_results(self) -> list[LoadResult]:
        """Return the loads that ended since the last call, each one once."""
        results = self.consumer.take_results()
        if results:
            self._summary.add(results, {})
        return results

    def take_counts(self) -> dict[str, int]:
        """Return everything counted since the last call, by name."""
        parts = (self.table, self.consumer, self._control, self._loop, self.streams)
        counts = [found for found in (part.take_counts() for part in parts) if found]
        if not counts:
            return {}
        total: Counter[str] = Counter()
        for found in counts:
            total.update(found)
        self._summary.add((), total)
        return dict(total)

    def _tick(self) -> None:
        self.consumer.tick()
        self._summary.tick()

    def close(self) -> None:
        """Cancel loads and stop the threads; bounded by about four seconds."""
        self.streams.close()
        self.consumer.close()
        self._loads.close()
        self._chores.close()
        self._loop.close()
