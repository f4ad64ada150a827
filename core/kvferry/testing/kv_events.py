"""A publisher of KV cache events for tests: vLLM's wire protocol, with losses on demand. Needs pyzmq."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import msgspec

from kvferry.router.events import load_zmq

POLL_MS = 20
END = (-1).to_bytes(8, "big", signed=True)


class FakePublisher:
    """Publishes batches of events at `endpoint` and answers for missed ones at `replay`. A context manager.

    Addresses: `ipc://` ones, or `tcp://127.0.0.1:0` for a free port. `kept`: how many messages are kept for
    replay; `answers` False: it never answers for missed ones.
    """

    def __init__(self, endpoint: str, replay: str, *, kept: int = 10_000, answers: bool = True) -> None:
        zmq = load_zmq()
        self._zmq = zmq
        self._context = zmq.Context()
        self._publish = self._context.socket(zmq.PUB)
        self._publish.bind(endpoint)
        self._replay = self._context.socket(zmq.ROUTER)
        self._replay.bind(replay)
        self.endpoint = self._publish.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay = self._replay.getsockopt_string(zmq.LAST_ENDPOINT)
        self._kept = kept
        self._answers = answers
        self._history: list[tuple[int, bytes]] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self.next_number = 0
        self.asked: list[int] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def publish(self, *events: Any, lose: bool = False, forget: bool = False) -> None:
        """Publish one batch; `lose`: nobody receives it. `forget`: nor is it kept for replay."""
        self.publish_raw(msgspec.msgpack.encode([0.0, list(events), 0]), lose=lose, forget=forget)

    def publish_raw(self, payload: bytes, *, lose: bool = False, forget: bool = False) -> None:
        """Publish any bytes as a batch."""
        with self._lock:
            number, self.next_number = self.next_number, self.next_number + 1
            if not forget:
                self._history = [*self._history, (number, payload)][-self._kept :]
            if not lose:
                self._publish.send_multipart([b"", number.to_bytes(8, "big"), payload])

    def send_frames(self, frames: Sequence[bytes]) -> None:
        """Publish a message of any form."""
        with self._lock:
            self._publish.send_multipart(frames)

    def close(self) -> None:
        """Be gone, as after a crash."""
        self._stopping.set()
        self._thread.join(10)
        self._publish.close(linger=0)
        self._replay.close(linger=0)
        self._context.term()

    def __enter__(self) -> FakePublisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            if not self._replay.poll(POLL_MS):
                continue
            client, _, start = self._replay.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            if not self._answers:
                continue
            with self._lock, contextlib.suppress(self._zmq.ZMQError):
                for number, payload in self._history:
                    if number >= first:
                        self._replay.send_multipart([client, b"", b"", number.to_bytes(8, "big"), payload])
                self._replay.send_multipart([client, b"", b"", END, b""])
