from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvferry.errors import ConfigError, UnsupportedError
from kvferry.index import PrefixIndex
from kvferry.router import events as feed_module
from kvferry.router.events import EventFeed, EventSource
from kvferry.testing.kv_events import FakePublisher
from kvferry.testing.waiting import wait_until

SIZE = 4
NAME = "http://engine"
CLEARED = {"type": "AllBlocksCleared"}
PATIENCE_S = 30.0


def stored(*numbers: int) -> dict[str, Any]:
    """Block n holds tokens n, n, ... and follows block n - 1."""
    first = numbers[0]
    return {
        "type": "BlockStored",
        "block_hashes": list(numbers),
        "parent_block_hash": first - 1 if first else None,
        "token_ids": [number for number in numbers for _ in range(SIZE)],
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }


def removed(*numbers: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(numbers), "medium": "GPU"}


class Rig:
    """A feed that listens to one address, at which publishers come and go."""

    def __init__(self, folder: Path) -> None:
        self.events, self.replays = f"ipc://{folder}/events", f"ipc://{folder}/replay"
        self.index = PrefixIndex([NAME])
        self.engine = self.index.engines[NAME]
        self.feed: EventFeed | None = None
        self.publishers: list[FakePublisher] = []

    def publisher(self, **options: Any) -> FakePublisher:
        self.publishers.append(FakePublisher(self.events, self.replays, **options))
        return self.publishers[-1]

    def listen(self, *, replay: bool = True) -> None:
        self.feed = EventFeed([EventSource(NAME, self.events, self.replays if replay else "")], self.index)

    def count(self, what: str) -> int:
        assert self.feed is not None
        return self.feed.counts[NAME, what]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, PATIENCE_S, what)

    def known(self) -> set[Any]:
        return {block for _, block in self.engine.known_hashes}

    def wait_known(self, *numbers: int) -> None:
        self.wait(lambda: self.known() == set(numbers), f"the index to hold {numbers}")

    def connected(self, publisher: FakePublisher) -> None:
        """Publish until a message arrives, so that the subscription is known to be there."""

        def heard() -> bool:
            publisher.publish(CLEARED)
            return self.count("batches") > before

        before = self.count("batches")
        self.wait(heard, "the subscription")


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(feed_module, "RECHECK_S", 0.1)
    made = Rig(tmp_path)
    yield made
    if made.feed is not None:
        made.feed.close()
    for publisher in made.publishers[-1:]:
        publisher.close()


def test_the_index_follows_an_engine(rig: Rig) -> None:
    rig.listen()
    publisher = rig.publisher()
    publisher.publish(stored(0, 1))
    rig.wait_known(0, 1)
    publisher.publish(stored(2), removed(0))
    rig.wait_known(1, 2)
    publisher.publish(CLEARED)
    rig.wait_known()
    assert rig.engine.complete


def test_a_flood_of_events_does_not_hold_up_the_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.listen()
    publisher = rig.publisher()
    rig.connected(publisher)
    taken: list[Any] = []
    busy = threading.Event()

    def take_in(batch: Any) -> None:
        taken.append(batch)
        busy.set()
        assert rig.feed is not None
        assert rig.feed._stopping.wait(PATIENCE_S)

    monkeypatch.setattr(rig.engine, "apply", take_in)
    for number in range(500):
        publisher.publish(stored(number))
    assert busy.wait(PATIENCE_S)
    assert rig.feed is not None
    rig.feed.close()
    assert len(taken) <= 2  # the one that was being taken in, and one after a replay that ended with it


def test_a_feed_that_comes_late_learns_what_was_before(rig: Rig) -> None:
    publisher = rig.publisher()
    for number in range(20):
        publisher.publish(stored(number))
    rig.listen()
    rig.wait_known(*range(20))
    rig.wait(lambda: rig.engine.complete, "everything to be known")


def test_messages_that_were_lost_are_asked_for(rig: Rig) -> None:
    rig.listen()
    publisher = rig.publisher()
    rig.connected(publisher)
    publisher.publish(stored(0, 1, 2), lose=True)
    publisher.publish(removed(1), lose=True)
    publisher.publish(stored(3))
    rig.wait_known(0, 2, 3)
    assert rig.engine.complete


def test_what_is_lost_for_good_leaves_less_than_the_engine_holds(rig: Rig) -> None:
    rig.listen()
    publisher = rig.publisher()
    rig.connected(publisher)
    publisher.publish(stored(0, 1))
    rig.wait_known(0, 1)
    publisher.publish(removed(0), lose=True, forget=True)
    publisher.publish(stored(2))
    rig.wait(lambda: not rig.known(), "what may be gone to be forgotten")
    assert not rig.engine.complete
    publisher.publish(CLEARED, stored(0))
    rig.wait_known(0)
    assert rig.engine.complete


def test_an_engine_that_answers_no_replay_is_believed_from_its_next_message(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "REPLAY_S", 0.2)
    publisher = rig.publisher(answers=False)
    publisher.publish(stored(0))
    rig.listen()
    rig.connected(publisher)
    publisher.publish(stored(0))
    rig.wait_known(0)
    assert publisher.asked, "it has been asked"


def test_without_a_replay_address_gaps_empty_the_index(rig: Rig) -> None:
    rig.listen(replay=False)
    publisher = rig.publisher()
    rig.connected(publisher)
    publisher.publish(stored(0))
    rig.wait_known(0)
    publisher.publish(CLEARED, lose=True)
    publisher.publish(stored(1))  # follows what is not known any more
    rig.wait_known()
    assert not publisher.asked


def test_a_restarted_engine_holds_nothing_of_before(rig: Rig) -> None:
    rig.listen()
    first = rig.publisher()
    first.publish(stored(0, 1, 2))
    rig.wait_known(0, 1, 2)
    first.close()
    rig.wait(lambda: not rig.known(), "the cache of a dead engine to be forgotten")
    second = rig.publisher()
    for number in range(3):  # more messages than the first one had sent
        second.publish(stored(number))
    second.publish(removed(2))
    rig.wait_known(0, 1)
    rig.wait(lambda: rig.engine.complete, "everything to be known")


@pytest.mark.parametrize("payload", [b"\xff" * 64, b"\x93\x01\x02\x03", b""])
def test_what_cannot_be_read_is_counted_and_forgotten(rig: Rig, payload: bytes) -> None:
    rig.listen()
    publisher = rig.publisher()
    publisher.publish(stored(0))
    rig.wait_known(0)
    publisher.publish_raw(payload)
    rig.wait(lambda: rig.count("malformed") > 0, "the malformed batch to be counted")
    rig.wait_known()
    publisher.publish(stored(0))
    rig.wait_known(0)
    assert not rig.engine.complete


@pytest.mark.parametrize("frames", [[b"one"], [b"", b"short", b"x"], [b"", b"", b"", b""]])
def test_messages_of_another_form_are_counted(rig: Rig, frames: list[bytes]) -> None:
    rig.listen()
    publisher = rig.publisher()
    rig.connected(publisher)
    publisher.send_frames(frames)
    rig.wait(lambda: rig.count("malformed") > 0, "the message to be counted")
    publisher.publish(stored(0))
    rig.wait_known(0)


def test_an_address_that_is_none_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no address of KV events"):
        EventFeed([EventSource(NAME, "nonsense")], PrefixIndex([NAME]))


def test_without_zmq_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zmq", None)
    with pytest.raises(UnsupportedError, match=r"kvferry\[events\]"):
        feed_module.load_zmq()


def test_an_address_where_nobody_answers_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feed_module, "UNREACHED_S", 0.1)
    feed = EventFeed([EventSource(NAME, f"ipc://{tmp_path}/nobody")], PrefixIndex([NAME]))
    try:
        wait_until(lambda: "nobody answers at ipc://" in caplog.text, PATIENCE_S, "a warning")
    finally:
        feed.close()
    assert caplog.text.count("nobody answers") == 1
