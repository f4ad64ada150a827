"""Both sides of the streams of one worker, behind the thread that owns them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvferry.handoff.control import SEND_TIMEOUT_S
from kvferry.handoff.messages import (
    HandoffMessage,
    ReleaseReason,
    StreamCancel,
    Subscribe,
    encode_message,
)
from kvferry.handoff.serial import Job, SerialThread
from kvferry.handoff.stream_in import StreamLoad, StreamReceiver, StreamRequest
from kvferry.handoff.stream_out import Chunk, Ending, Opening, StreamTable

if TYPE_CHECKING:
    from kvferry.transfer import Engine

Poster = Callable[[Job], None]
NOBODY = 0  # handles of peers count from 1


class Streams:
    """What an engine's step tells the streams. Thread-safe; no method blocks: each posts a job.

    `make_receiver` gets the way to post to the thread. `layers` are the names of the geometry's layers, in
    its order, by which `table` counts them.
    """

    def __init__(
        self,
        layers: Sequence[str],
        table: StreamTable,
        make_receiver: Callable[[Poster], StreamReceiver],
    ) -> None:
        self._table = table
        self._thread = SerialThread("kvferry-streams", self._flush, self._tick)
        self._post: Poster = self._thread.post
        self._receiver = make_receiver(self._post)
        self._layer_jobs = {name: self._layer_job(index) for index, name in enumerate(layers)}
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()  # guarded by _lock: the thread adds, an engine's step takes
        self._in_step = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Give up what is followed, and stop the thread; takes two seconds at most."""
        self._post(self._receiver.close)
        self._thread.close()

    # Producer

    def open(self, opening: Opening) -> None:
        """A request came that is to be streamed."""
        self._post(lambda: self._table.open(opening))

    def begin_step(self, chunks: Sequence[Chunk]) -> None:
        """A step begins; to be called before anything of it is computed."""
        if chunks or self._in_step:
            self._post(lambda: self._table.begin_step(chunks))
        self._in_step = bool(chunks)

    def layer_written(self, name: str) -> None:
        """The step has written a layer, for all its tokens, and whoever reads memory sees it.

        Costs a dictionary look-up and a queue's `put`: it is called between two layers of the model.
        """
        if self._in_step:
            job = self._layer_jobs.get(name)
            if job is not None:
                self._post(job)

    def end_step(self) -> None:
        """The step has written all layers."""
        if self._in_step:
            self._in_step = False
            self._post(self._table.end_step)

    def finish(self, ending: Ending) -> None:
        """A streamed request is over."""
        self._post(lambda: self._table.finish(ending))

    def forgo(self, stream: str) -> None:
        """Nobody will read a stream of ours."""
        self._post(lambda: self._table.cancel(NOBODY, StreamCancel(stream, "done")))

    # Consumer

    def watch(self, request: StreamRequest) -> None:
        """Follow a prefill."""
        self._post(lambda: self._receiver.watch(request))

    def load(self, load: StreamLoad) -> None:
        """Blocks were allocated."""
        self._post(lambda: self._receiver.load(load))

    def release(self, request_id: str, reason: ReleaseReason) -> None:
        """No load is needed."""
        self._post(lambda: self._receiver.release(request_id, reason))

    def cancel(self, request_id: str) -> None:
        """A request was aborted while its cache was loaded, from a stream or not."""
        self._post(lambda: self._receiver.cancel(request_id))

    # Both

    def on_message(self, peer: int, message: HandoffMessage) -> None:
        """Take a message of a peer."""
        if isinstance(message, Subscribe):
            self._post(lambda: self._table.subscribe(peer, message))
        elif isinstance(message, StreamCancel):
            self._post(lambda: self._table.cancel(peer, message))
        else:
            self._post(lambda: self._receiver.on_message(peer, message))

    def take_counts(self) -> dict[str, int]:
        """Return what happened since the last call, by name; at most a tenth of a second old."""
        if not self._counts:
            return {}
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)

    def _layer_job(self, index: int) -> Job:
        return lambda: self._table.layer_written(index)

    def _flush(self) -> bool:
        self._table.flush()
        return self._receiver.flush()

    def _tick(self) -> None:
        self._table.expire()
        self._receiver.tick()
        counts = Counter(self._table.take_counts())
        counts.update(self._receiver.take_counts())
        if self._thread.failures:
            counts["internal_errors"] += self._thread.failures
            self._thread.failures = 0
        if counts:
            with self._lock:
                self._counts.update(counts)


def sender(engine: Engine) -> Callable[[int, HandoffMessage], None]:
    """Return what sends a message to a peer by its handle."""

    def send(peer: int, message: HandoffMessage) -> None:
        engine.send(peer, encode_message(message), timeout_s=SEND_TIMEOUT_S)

    return send
