"""Listening to the KV cache events of engines over ZeroMQ, so that the prefix index is what the engines hold.

vLLM numbers its messages and keeps the last ones for replay. Whatever was missed is asked for again; where
that is not possible, everything known of that engine is forgotten: the index then holds less than the engine,
never more. A connection that breaks counts as a restart.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kvferry.errors import ConfigError, ProtocolError, UnsupportedError
from kvferry.index import EngineBlocks, PrefixIndex, decode_batch
from kvferry.index.engine_events import MAX_BATCH_BYTES

logger = logging.getLogger(__name__)

QUEUED_MESSAGES = 10_000  # of one engine, unread; more are dropped, seen as a gap, and asked for again
READ_AT_ONCE = 100  # messages of one engine, then it is the others' turn
REPLAY_S = 5.0  # for all of a replay
# The engine may publish between its answer to a replay and the arrival of our subscription.
RECHECK_S = 1.0
IDLE_S = 0.5
UNREACHED_S = 10.0  # without a connection: time to say so, once for each loss
STOP_S = 10.0
_END = (-1).to_bytes(8, "big", signed=True)
_SEQUENCE_BYTES = 8


class EventSource(NamedTuple):
    """Where one engine publishes. `replay`: where it answers for what was missed; empty if it does not."""

    name: str
    endpoint: str
    replay: str = ""


def load_zmq() -> Any:
    """Import ZeroMQ. Raises `UnsupportedError` that says how to get it."""
    try:
        import zmq
    except ImportError as error:
        raise UnsupportedError(
            "KV cache events need the package pyzmq: pip install 'kvferry[events]', or leave "
            "router.prefill_events empty"
        ) from error
    return zmq


class EventFeed:
    """One thread that listens to all engines and keeps `index` up to date. Close it in the end.

    `counts` are what happened, by (name of the engine, what); read it any time.
    """

    def __init__(self, sources: Sequence[EventSource], index: PrefixIndex) -> None:
        """Connect; engines need not be there yet. Raises `UnsupportedError`, `ConfigError` (endpoint)."""
        self._zmq = load_zmq()
        self.counts: Counter[tuple[str, str]] = Counter()
        self._context = self._zmq.Context(io_threads=1)
        self._stopping = threading.Event()
        self._listeners: list[_Listener] = []
        try:
            for source in sources:
                engine = index.engines[source.name]
                self._listeners.append(_Listener(self._zmq, self._context, source, engine, self.counts))
        except BaseException:
            self._close_sockets()
            raise
        self._thread = threading.Thread(target=self._run, name="kvferry-kv-events", daemon=True)
        self._thread.start()

    def problems(self) -> list[str]:
        """Whom we cannot reach, in sentences; any thread may ask."""
        return [each.problem for each in self._listeners if each.problem]

    def close(self) -> None:
        """Stop listening; idempotent."""
        self._stopping.set()
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            logger.error("the thread that listens to KV events did not end within %g s; left behind", STOP_S)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                poller = self._zmq.Poller()
                for listener in self._listeners:
                    listener.watch(poller)
                poller.poll(min(each.next_look_s for each in self._listeners) * 1e3)
                for listener in self._listeners:
                    listener.read(self._stopping)
        except Exception:
            # A bug of ours must not leave an index behind that is believed although nobody feeds it.
            logger.exception("listening to KV events failed; prefixes are no longer considered")
            for listener in self._listeners:
                listener.forget()
        finally:
            self._close_sockets()

    def _close_sockets(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._context.term()


class _Listener:
    """The subscription to one engine. Used by the feed's thread only."""

    def __init__(
        self, zmq: Any, context: Any, source: EventSource, engine: EngineBlocks, counts: Counter[Any]
    ) -> None:
        self._zmq, self._context = zmq, context
        self._source, self._engine = source, engine
        self._counts = counts
        self._expected: int | None = None  # number of the next message; None: not in step with the engine
        self._recheck_at_s: float | None = None
        self._missed_at_s: float | None = None  # when to complain that there is no connection
        self.problem = ""  # that complaint, until there is one; read by other threads
        self._socket: Any = None
        self._monitor: Any = None
        self._subscribe()

    def watch(self, poller: Any) -> None:
        """Register what may be read."""
        poller.register(self._socket, self._zmq.POLLIN)
        poller.register(self._monitor, self._zmq.POLLIN)

    @property
    def next_look_s(self) -> float:
        """When to look again even if nothing comes."""
        if self._recheck_at_s is None:
            return IDLE_S
        return min(IDLE_S, max(self._recheck_at_s - time.monotonic(), 0.0))

    def read(self, stopping: threading.Event) -> None:
        """Take in some of what has come; never waits, except for a replay."""
        self._complain_if_unreached()
        for _ in range(READ_AT_ONCE):
            self._follow_connection(stopping)
            frames = self._receive()
            if frames is None or stopping.is_set():
                break
            self._take(frames, stopping)
        if self._recheck_at_s is not None and time.monotonic() >= self._recheck_at_s:
            self._recheck_at_s = None
            if self._expected is not None:
                self._replay(self._expected, stopping)

    def _complain_if_unreached(self) -> None:
        if self._missed_at_s is None or time.monotonic() < self._missed_at_s:
            return
        self._missed_at_s = None
        self.problem = (
            f"KV events of {self._source.name}: nobody answers at {self._source.endpoint} for "
            f"{UNREACHED_S:g} s; its cached prefixes do not count. Is it started with --kv-events-config, "
            "and is this the address there? (router.prefill_events)"
        )
        logger.warning("%s", self.problem)

    def forget(self) -> None:
        """Know nothing of the engine any more."""
        self._engine.clear(complete=False)
        self._expected = None

    def close(self) -> None:
        """Close the sockets; idempotent."""
        if self._socket is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=0)
            self._socket = None

    def _subscribe(self) -> None:
        zmq = self._zmq
        self._missed_at_s = time.monotonic() + UNREACHED_S
        self._socket = self._context.socket(zmq.SUB)
        self._socket.set(zmq.RCVHWM, QUEUED_MESSAGES)
        self._socket.set(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
        self._socket.set(zmq.RECONNECT_IVL_MAX, 1000)
        self._socket.set(zmq.IPV6, 1)
        self._socket.set(zmq.SUBSCRIBE, b"")
        self._monitor = self._socket.get_monitor_socket(
            zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED
        )
        try:
            self._socket.connect(self._source.endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"{self._source.endpoint!r} is no address of KV events: {error}; give one like "
                "tcp://127.0.0.1:5557 or ipc:///run/prefill0-events"
            ) from error

    def _follow_connection(self, stopping: threading.Event) -> None:
        from zmq.utils.monitor import recv_monitor_message

        while self._monitor.poll(0):
            happened = recv_monitor_message(self._monitor)["event"]
            if happened == self._zmq.Event.DISCONNECTED:
                # What still waits in the socket may be an engine's that is gone: a new socket has none of it.
                self._count("disconnects")
                self.forget()
                self.close()
                self._subscribe()
                return
            self._missed_at_s = None
            self.problem = ""
            self._recheck_at_s = time.monotonic() + RECHECK_S
            if self._expected is None:
                self._start_over(stopping)

    def _receive(self) -> list[bytes] | None:
        try:
            frames: list[bytes] = self._socket.recv_multipart(self._zmq.DONTWAIT)
        except self._zmq.Again:
            return None
        return frames

    def _take(self, frames: list[bytes], stopping: threading.Event) -> None:
        if len(frames) != 3 or len(frames[1]) != _SEQUENCE_BYTES:
            self._malformed("a message has not the frames topic, number, events")
            return
        number = int.from_bytes(frames[1], "big")
        if self._expected is None and number > 0:
            self._start_over(stopping)
        elif self._expected is not None and number > self._expected:
            self._count("gaps")
            if not self._replay(self._expected, stopping) or number > self._expected:
                self.forget()
        if self._expected is None:
            # Nothing is known of the time before, unless this is the first message of all.
            self._engine.clear(complete=number == 0)
            self._expected = number
        if number == self._expected:
            self._apply(number, frames[2])

    def _apply(self, number: int, payload: bytes) -> None:
        self._expected = number + 1
        try:
            self._engine.apply(decode_batch(payload))
        except ProtocolError as error:
            self._malformed(str(error))
        else:
            self._count("batches")

    def _malformed(self, why: str) -> None:
        self._count("malformed")
        if self._counts[self._source.name, "malformed"] == 1:
            logger.warning("KV events of %s: %s; forgotten what was known of it", self._source.name, why)
        self._engine.clear(complete=False)

    def _start_over(self, stopping: threading.Event) -> None:
        """Learn all that the engine has published since it started, if it still knows."""
        if not self._source.replay:
            return
        self._expected = 0
        self._engine.clear(complete=True)
        if not self._replay(0, stopping):
            self.forget()

    def _replay(self, first: int, stopping: threading.Event) -> bool:
        """Take in the messages from `first` on; return whether the engine has told all that it still knows.

        Where the first ones are no longer known, everything begins anew with the oldest one.
        """
        if not self._source.replay:
            return False
        self._count("replays")
        with self._context.socket(self._zmq.DEALER) as dealer:
            dealer.set(self._zmq.LINGER, 0)
            dealer.set(self._zmq.IPV6, 1)
            dealer.set(self._zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
            dealer.set(self._zmq.RCVHWM, QUEUED_MESSAGES * 2)
            dealer.connect(self._source.replay)
            dealer.send_multipart([b"", first.to_bytes(_SEQUENCE_BYTES, "big")])
            for number, payload in self._answers(dealer, stopping):
                if payload is None:
                    return True
                if number < first:
                    continue
                if number > first:
                    self._engine.clear(complete=False)
                self._apply(number, payload)
                first = number + 1
        return False

    def _answers(self, dealer: Any, stopping: threading.Event) -> Iterator[tuple[int, bytes | None]]:
        """Yield number and content of each message, (-1, None) at the end; nothing more after `REPLAY_S`."""
        deadline_s = time.monotonic() + REPLAY_S
        while not stopping.is_set() and (left_s := deadline_s - time.monotonic()) > 0:
            if not dealer.poll(min(left_s, IDLE_S) * 1e3):
                continue
            frames = dealer.recv_multipart()
            if len(frames) < 3 or len(frames[-2]) != _SEQUENCE_BYTES:
                self._malformed("an answer to a replay has not the frames topic, number, events")
                return
            if frames[-2] == _END:
                yield -1, None
                return
            yield int.from_bytes(frames[-2], "big"), frames[-1]
        if not stopping.is_set():
            logger.warning("KV events of %s: no complete replay within %g s", self._source.name, REPLAY_S)

    def _count(self, what: str) -> None:
        self._counts[self._source.name, what] += 1
