"""Case 7.1 on what the router and the engines take in since: KV cache events over ZeroMQ, where the original
unpickled what came, and encoder outputs, where others call `torch.load`.
"""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kvferry.encoder import unpack
from kvferry.errors import ProtocolError
from kvferry.index import PrefixIndex, decode_batch
from kvferry.router.events import EventFeed, EventSource
from kvferry.testing.kv_events import FakePublisher
from kvferry.testing.waiting import wait_until

NAME = "engine"


class Bomb:
    """Makes a file if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def bombs(path: Path) -> list[bytes]:
    """Pickles in every protocol, and what else the report names."""
    deep = b"\x81\xa1a" * 10_000 + b"\xc0"
    return [
        *[pickle.dumps(Bomb(path), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)],
        b"\xff" * (10 << 20),
        deep,
        b"\x91" * 10_000 + b"\xc0",
        msgspec.msgpack.encode([0.0, "events", 0]),
        msgspec.msgpack.encode([0.0, [["BlockStored", 1]], 0]),
        msgspec.msgpack.encode({"ts": 0, "events": 1 << 60}),
    ]


def test_nothing_that_a_publisher_sends_is_run_or_ends_the_feed(tmp_path: Path) -> None:
    trap = tmp_path / "executed"
    index = PrefixIndex([NAME])
    with FakePublisher(f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r") as publisher:
        feed = EventFeed([EventSource(NAME, publisher.endpoint, publisher.replay)], index)
        try:
            sent = bombs(trap)
            for payload in sent:
                publisher.publish_raw(payload)
            wait_until(lambda: feed.counts[NAME, "malformed"] >= len(sent), 60.0, "all to be refused")
            publisher.publish({"type": "AllBlocksCleared"})
            wait_until(lambda: feed.counts[NAME, "batches"] >= 1, 60.0, "a good batch to be taken in")
        finally:
            feed.close()
    assert not trap.exists()


def test_a_bomb_is_a_bomb(tmp_path: Path) -> None:
    pickle.load(io.BytesIO(bombs(tmp_path / "executed")[0]))
    assert (tmp_path / "executed").exists()


def test_neither_events_nor_encoder_outputs_are_unpickled(tmp_path: Path) -> None:
    trap = tmp_path / "executed"
    for payload in bombs(trap):
        with pytest.raises(ProtocolError):
            decode_batch(payload)
        with pytest.raises(ProtocolError):
            unpack(np.frombuffer(payload, np.uint8))
    assert not trap.exists()
