"""The engine behind SGLang's classes, and how a decode server notices the end of a prefill process: with real
engines over loopback, without SGLang."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from _engines import wait_until
from kvferry.config import TransferOptions
from kvferry.errors import CancelledError, DeadlineExceededError, PeerLostError
from kvferry.transfer import Engine
from kvferry_sglang.pd.engine import DONE, FAILED, MOST_FAILURES, UNSETTLED, Hello, PDEngine
from kvferry_sglang.pd.lost import RETRY_S, LostSessions
from kvferry_sglang.pd.pieces import Entry, blocks, whole_pages
from kvferry_sglang.pd.watch import PrefillWatch

WAIT_S = 30.0
HELLO = Hello("10.1.2.3", 4567)


class Server:
    """The engine of one server, and its KV pool."""

    def __init__(self, access: str, hello: Hello | None = None) -> None:
        self.pool = np.zeros((16, 64), np.uint8)
        self.engine = PDEngine(TransferOptions(connect_timeout_s=2.0), hello=hello)
        self.engine.register([(self.address, self.pool.nbytes)], access=access, device="cpu")  # type: ignore[arg-type]

    @property
    def address(self) -> int:
        return int(self.pool.ctypes.data)

    @property
    def session(self) -> str:
        return self.engine.get_session_id()


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    prefill, decode = Server("r", HELLO), Server("w")
    yield prefill, decode
    prefill.engine.close()
    decode.engine.close()


def send(prefill: Server, decode: Server, near: list[int], far: list[int]) -> int:
    entry = Entry(prefill.address, decode.address, 64)
    return prefill.engine.write(decode.session, whole_pages([entry], np.array(near), np.array(far)))


def test_pages_arrive(servers: tuple[Server, Server]) -> None:
    prefill, decode = servers
    prefill.pool[:] = np.arange(16)[:, None] + 1
    assert send(prefill, decode, [2, 3, 7], [5, 6, 0]) == 0
    assert (decode.pool[[5, 6, 0]] == prefill.pool[[2, 3, 7]]).all()
    assert not decode.pool[1:5].any()
    assert prefill.engine.why(decode.session) == ""
    assert not prefill.engine.is_lost(decode.session)


def test_lists_of_addresses_work_as_mooncakes_engine_has_them(servers: tuple[Server, Server]) -> None:
    prefill, decode = servers
    prefill.pool[:] = 9
    engine, session = prefill.engine, decode.session
    assert engine.batch_transfer_sync(session, [prefill.address], [decode.address + 64], [64]) == 0
    assert engine.transfer_sync(session, prefill.address, decode.address + 256, 8) == 0
    assert engine.batch_transfer_sync(session, [], [], []) == 0
    assert engine.send_probe(session) == 0
    assert int(session.rsplit(":", 1)[1]) > 0
    assert np.flatnonzero(decode.pool.reshape(-1)).tolist() == [*range(64, 128), *range(256, 264)]


def test_memory_is_registered_and_given_back_by_address(servers: tuple[Server, Server]) -> None:
    prefill, decode = servers
    more = np.zeros(64, np.uint8)
    prefill.pool[:] = 5
    assert decode.engine.batch_register([more.ctypes.data], [64]) == 0
    assert prefill.engine.transfer_sync(decode.session, prefill.address, more.ctypes.data, 64) == 0
    assert (more == 5).all()
    assert decode.engine.batch_deregister([more.ctypes.data]) == 0
    assert decode.engine.batch_deregister([more.ctypes.data]) == -1
    assert prefill.engine.transfer_sync(decode.session, prefill.address, more.ctypes.data, 64) == -1


def test_a_request_outside_of_the_pool_fails_alone_and_says_why(servers: tuple[Server, Server]) -> None:
    prefill, decode = servers
    prefill.pool[:] = 1
    assert send(prefill, decode, [0, 1], [2, 99]) == -1
    assert not decode.pool.any()
    assert "registered ranges" in prefill.engine.why(decode.session)
    assert not prefill.engine.is_lost(decode.session)
    assert send(prefill, decode, [0], [2]) == 0
    assert prefill.engine.why(decode.session) == ""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (PeerLostError("it is gone; bytes of this write may still land: no answer"), UNSETTLED),
        (DeadlineExceededError("the peer could not be connected in time"), FAILED),
        (CancelledError("1 piece failed; bytes of this write may still land: it is slow"), UNSETTLED),
    ],
)
def test_whether_bytes_may_still_land_is_told_of_each_write_by_itself(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    prefill, decode = servers

    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(prefill.engine._addressed, "execute", fail)
        assert send(prefill, decode, [0], [2]) == status
        assert str(error) in prefill.engine.why(decode.session)
    assert send(prefill, decode, [0], [2]) == DONE


def test_a_server_that_has_gone_is_lost_and_the_text_says_what_may_be_wrong(
    servers: tuple[Server, Server],
) -> None:
    prefill, decode = servers
    session = decode.session
    decode.engine.close()
    assert prefill.engine.send_probe(session) == -1
    assert prefill.engine.is_lost(session)
    assert "transfer.bind" in prefill.engine.why(session)
    assert prefill.engine.write("nonsense", blocks([(prefill.address, 1, 1)])) == -1


def test_the_end_of_a_prefill_process_is_noticed(servers: tuple[Server, Server]) -> None:
    prefill, decode = servers
    lost: queue.Queue[Hello] = queue.Queue()
    watch = PrefillWatch(decode.engine.engine, lost.put)
    try:
        assert prefill.engine.send_probe(decode.session) == 0
        assert send(prefill, decode, [1], [1]) == 0
        with pytest.raises(queue.Empty):
            lost.get(timeout=0.6)
        prefill.engine.close()
        assert lost.get(timeout=WAIT_S) == HELLO
    finally:
        watch.close()


def test_a_connection_that_replaces_a_lost_one_is_watched_in_its_place() -> None:
    decode = Server("w")
    lost: queue.Queue[Hello] = queue.Queue()
    watch = PrefillWatch(decode.engine.engine, lost.put)
    try:
        for _ in range(2):
            prefill = Server("r", HELLO)
            assert prefill.engine.send_probe(decode.session) == 0
            prefill.engine.close()
            assert lost.get(timeout=WAIT_S) == HELLO
        assert lost.empty()
    finally:
        watch.close()
        decode.engine.close()


def test_messages_that_are_no_greeting_are_dropped(servers: tuple[Server, Server]) -> None:
    prefill, decode = servers
    lost: queue.Queue[Hello] = queue.Queue()
    watch = PrefillWatch(decode.engine.engine, lost.put)
    try:
        with Engine(TransferOptions()) as stranger:
            peer = stranger.connect(decode.session.partition("@")[2])
            for body in (b"\x80\x04\x95pickle", b"\xff" * 4096, b"\x91" * 5000, b""):
                stranger.send(peer, body)
        assert prefill.engine.send_probe(decode.session) == 0
        prefill.engine.close()
        assert lost.get(timeout=WAIT_S) == HELLO
    finally:
        watch.close()


def test_a_greeting_that_was_not_sent_is_sent_with_the_next_write(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = servers

    def fail(*_: object, **__: object) -> None:
        raise DeadlineExceededError("not sent in time")

    with monkeypatch.context() as broken:
        broken.setattr(prefill.engine.engine, "send", fail)
        assert prefill.engine.send_probe(decode.session) == FAILED
    assert send(prefill, decode, [1], [1]) == DONE
    message = decode.engine.engine.next_message(WAIT_S)
    assert message is not None
    assert msgspec.msgpack.decode(message.body, type=Hello) == HELLO


def test_who_uses_the_name_of_a_rank_ends_nothing_while_the_rank_is_there(
    servers: tuple[Server, Server],
) -> None:
    prefill, decode = servers
    lost: queue.Queue[Hello] = queue.Queue()
    watch = PrefillWatch(decode.engine.engine, lost.put)
    other = Hello("10.9.9.9", 1)
    try:
        assert prefill.engine.send_probe(decode.session) == DONE
        wait_until(lambda: len(watch._heard) == 1, WAIT_S, "the rank being known")
        for hello in (HELLO, other):  # that of another one shows when the first was dealt with
            stranger = PDEngine(TransferOptions(), hello=hello)
            assert stranger.send_probe(decode.session) == DONE
            wait_until(lambda: len(watch._heard) == 2, WAIT_S, "the stranger being heard")
            stranger.close()
            wait_until(lambda: len(watch._heard) == 1, WAIT_S, "the stranger being gone")
        assert lost.get(timeout=WAIT_S) == other
        prefill.engine.close()
        assert lost.get(timeout=WAIT_S) == HELLO
        assert lost.empty()
    finally:
        watch.close()


def test_a_peer_is_one_rank_only(servers: tuple[Server, Server], caplog: pytest.LogCaptureFixture) -> None:
    prefill, decode = servers
    lost: queue.Queue[Hello] = queue.Queue()
    watch = PrefillWatch(decode.engine.engine, lost.put)
    try:
        peer = prefill.engine.reach(decode.session)
        for port in range(20):
            prefill.engine.engine.send(peer, msgspec.msgpack.encode(Hello("10.9.9.9", port)))
        wait_until(lambda: caplog.text.count("second prefill rank") == 20, WAIT_S, "the others being heard")
        prefill.engine.close()
        assert lost.get(timeout=WAIT_S) == HELLO
        watch.close()
        assert lost.empty()
    finally:
        watch.close()


def test_nothing_is_kept_of_servers_that_do_not_come_back(servers: tuple[Server, Server]) -> None:
    prefill, decode = servers
    for _ in range(3):
        other = Server("w")
        peer = prefill.engine.reach(other.session)
        other.engine.close()
        wait_until(lambda peer=peer: not peer.alive, WAIT_S, "the loss of the server")
    assert send(prefill, decode, [1], [1]) == DONE
    assert list(prefill.engine._greeted) == [decode.session]
    for number in range(MOST_FAILURES + 10):
        prefill.engine.note_failure(f"{number}", DeadlineExceededError(f"error {number}"))
    assert len(prefill.engine._failures) == MOST_FAILURES
    assert prefill.engine.why("0") == ""
    assert prefill.engine.why(f"{MOST_FAILURES + 9}")


def test_a_process_that_still_watches_ends_in_order() -> None:
    program = (
        "from kvferry.config import TransferOptions\n"
        "from kvferry_sglang.pd.engine import PDEngine\n"
        "from kvferry_sglang.pd.watch import PrefillWatch\n"
        "engine = PDEngine(TransferOptions())\n"
        "watch = PrefillWatch(engine.engine, print)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_session_counts_as_failed_only_while_it_cannot_be_reached() -> None:
    now = [100.0]
    gone = {"a"}
    sessions = LostSessions(gone.__contains__, lambda: now[0])
    sessions.add("a")
    sessions.add("b")
    assert "a" in sessions
    assert "b" not in sessions, "a request failed, but the server is there"
    now[0] += RETRY_S
    assert "a" not in sessions, "a request may try again"
    sessions.add("a")
    assert "a" in sessions
    sessions.discard("a")
    assert "a" not in sessions
    assert list(sessions) == []
