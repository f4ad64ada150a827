"""Attacks on connections whose nodes share a secret: tags and TLS let them do no more than end it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import _wire as wire
from _engines import Child, move, options, pattern, pieces, wait_until
from kvferry.errors import UnauthenticatedError
from kvferry.transfer import Endpoint, Engine

SECRET = "a secret of the whole cluster"
OTHER = "a secret of somebody else"
SIZE = 1 << 16
CERTIFICATES = Path(__file__).resolve().parents[2] / "native/tests/data/tls"


def certificates(issuer: str = "ca", trusted: str = "ca") -> dict[str, str | bool]:
    """Options of a node with a certificate of `issuer` that accepts those of `trusted`."""
    return {
        "tls": True,
        "tls_cert_file": str(CERTIFICATES / f"node-of-{issuer}.pem"),
        "tls_key_file": str(CERTIFICATES / "node-key.pem"),
        "tls_ca_file": str(CERTIFICATES / f"{trusted}.pem"),
    }


@pytest.fixture(scope="module")
def victim() -> Iterator[Child]:
    """A child engine with a secret and a region that peers may read and write."""
    regions = [{"name": "m", "length": SIZE, "access": "rw", "seed": 8}]
    with Child(regions, transports=["tcp"], cluster_secret=SECRET, idle_probe_s=2.0) as child:
        yield child


def dropped(child: Child, reason: str) -> int:
    return child.ask("counters").get(f"dropped_connections_{reason}_total", 0)


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


ONE, TWO = b"pay alice", b"pay mally"
Frames = Callable[[wire.Member], bytes]


def _spliced(member: wire.Member) -> bytes:
    first, second = member.tagged(wire.MESSAGE, ONE), member.tagged(wire.MESSAGE, TWO)
    return first[: wire.HEADER.size] + second[wire.HEADER.size :]


def _reordered(member: wire.Member) -> bytes:
    first, second = member.tagged(wire.PING, request=1), member.tagged(wire.PING, request=2)
    return second + first


def _left_out(member: wire.Member) -> bytes:
    member.tagged(wire.PING, request=1)
    return member.tagged(wire.PING, request=2)


def _of_another_connection(member: wire.Member) -> bytes:
    with wire.Member(member.endpoint, member.secret) as other:
        other.handshake(wire.CONTROL)
        return other.tagged(wire.PING, request=1)


FORGERIES: dict[str, Frames] = {
    "repeated": lambda m: m.tagged(wire.PING, request=1) * 2,
    "reordered": _reordered,
    "left-out": _left_out,
    "spliced": _spliced,
    "bit-of-the-header": lambda m: flipped(m.tagged(wire.MESSAGE, ONE), 16),
    "bit-of-the-body": lambda m: flipped(m.tagged(wire.MESSAGE, ONE), 26),
    "bit-of-the-tag": lambda m: flipped(m.tagged(wire.MESSAGE, ONE), -1 % (24 + len(ONE) + 16)),
    "type-changed": lambda m: flipped(m.tagged(wire.PING, request=1), 5),
    "untagged": lambda _: wire.frame(wire.MESSAGE, ONE) + bytes(wire.TAG_BYTES),
    "untagged-error": lambda _: wire.frame(wire.ERROR, bytes([9, 0, 0, 0])) + bytes(wire.TAG_BYTES),
    "of-another-connection": _of_another_connection,
}


def test_an_independent_client_follows_the_documented_tags(victim: Child) -> None:
    with wire.Member(victim.endpoint, SECRET.encode()) as member:
        member.handshake(wire.CONTROL)
        for request in range(1, 4):
            member.send(member.tagged(wire.PING, request=request))
            assert member.receive_tagged()[0] in (wire.PING, wire.PONG)


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_control_frames_end_the_connection_and_are_counted(victim: Child, name: str) -> None:
    before = dropped(victim, "forged_frame")
    with wire.Member(victim.endpoint, SECRET.encode()) as member:
        member.handshake(wire.CONTROL)
        member.send(FORGERIES[name](member))
        assert member.closed()
    wait_until(lambda: dropped(victim, "forged_frame") == before + 1, what="count of the forgery")


def test_what_the_other_side_sent_is_not_taken_back(victim: Child) -> None:
    before = dropped(victim, "forged_frame")
    with wire.Member(victim.endpoint, SECRET.encode()) as member:
        member.handshake(wire.CONTROL)
        member.send(member.tagged(wire.PING, request=1))
        member.send(member._exactly(wire.HEADER.size + wire.TAG_BYTES))  # its PONG
        assert member.closed()
    wait_until(lambda: dropped(victim, "forged_frame") == before + 1, what="count of the forgery")


def test_a_cut_frame_is_not_acted_upon(victim: Child) -> None:
    received = victim.ask("counters")["received_messages_total"]
    with wire.Member(victim.endpoint, SECRET.encode()) as member:
        member.handshake(wire.CONTROL)
        member.send(member.tagged(wire.MESSAGE, ONE)[:-1])
    wait_until(lambda: victim.ask("peers") == 0, what="departure of the peer")
    assert victim.ask("counters")["received_messages_total"] == received


@contextlib.contextmanager
def data_connection(child: Child) -> Iterator[wire.Member]:
    node = os.urandom(16)
    secret = SECRET.encode()
    with wire.Member(child.endpoint, secret) as control, wire.Member(child.endpoint, secret) as data:
        control.handshake(wire.CONTROL, node)
        data.handshake(wire.TCP_DATA, node)
        yield data


def test_a_changed_request_moves_nothing(victim: Child) -> None:
    """A WRITE whose offset was changed on the way, and a READ that was repeated."""
    before = dropped(victim, "forged_frame")
    target = wire.request(wire.piece(1, 1, 0, 16))
    with data_connection(victim) as data:
        changed = flipped(data.tagged(wire.WRITE, target, request=wire.REQUEST), wire.HEADER.size + 8 + 8)
        data.send(changed + b"\xee" * 16)
        assert data.closed()
    assert (
        bytes.fromhex(victim.ask("bytes", name="m", offset=0, length=32)) == pattern(SIZE, 8)[:32].tobytes()
    )
    with data_connection(victim) as data:
        data.send(data.tagged(wire.READ, target, request=wire.REQUEST) * 2)
        assert data.closed()
    wait_until(lambda: dropped(victim, "forged_frame") == before + 2, what="count of the forgeries")


def test_another_secret_is_refused_by_both_ends(victim: Child) -> None:
    with Engine(options("tcp", cluster_secret=OTHER)) as engine, pytest.raises(UnauthenticatedError):
        engine.connect(victim.endpoint)
    with wire.Attacker(victim.endpoint) as attacker:
        attacker.send(wire.frame(wire.HELLO, wire.hello(wire.CONTROL, has_secret=True)))
        assert attacker.receive()[0] == wire.HELLO_ACK
        attacker.send(wire.frame(wire.AUTH, os.urandom(32)))
        assert attacker.receive()[0] == wire.ERROR
        assert attacker.closed()


# TLS


@pytest.fixture(scope="module")
def library() -> str:
    """The library for TLS. Skips only where the host has none: one that is there must be usable."""
    from kvferry import _native

    try:
        ctypes.CDLL("libssl.so.3")
    except OSError as error:
        pytest.skip(f"OpenSSL 3 is not installed: {error}")
    return _native.tls_library()


@pytest.fixture(scope="module")
def tls_victim(library: str) -> Iterator[Child]:
    regions = [{"name": "m", "length": SIZE, "access": "rw", "seed": 8}]
    with Child(regions, transports=["tcp"], cluster_secret=SECRET, tls=True, idle_probe_s=2.0) as child:
        yield child


def expect_served(child: Child, endpoint: Endpoint | str | None = None, **others: object) -> str:
    """An honest peer reads right bytes; the note about its transport."""
    with Engine(options("tcp", cluster_secret=SECRET, **others)) as engine:
        near = np.zeros(SIZE, dtype=np.uint8)
        here = engine.register(near, name="near")
        peer = engine.connect(endpoint or child.endpoint, expected=child.node_id)
        assert move(engine, peer, pieces((here.id, peer.region("m").id, 0, 0, SIZE))).error is None
        np.testing.assert_array_equal(near, pattern(SIZE, 8))
        return peer.transport_note


def test_tls_by_a_key_from_the_secret_is_used_and_told(tls_victim: Child) -> None:
    assert "TLS 1.3 with a shared key" in expect_served(tls_victim, tls=True)


def test_tls_by_certificates_is_used_and_told(library: str) -> None:
    regions = [{"name": "m", "length": SIZE, "seed": 8}]
    with Child(regions, transports=["tcp"], cluster_secret=SECRET, **certificates()) as child:
        assert "TLS 1.3 with certificates" in expect_served(child, **certificates())
        for wrong in (certificates("other-ca"), certificates("ca", "other-ca"), {"tls": True}):
            with (
                Engine(options("tcp", cluster_secret=SECRET, **wrong)) as engine,
                pytest.raises(UnauthenticatedError, match="TLS"),
            ):
                engine.connect(child.endpoint)
        # A right certificate does not stand in for the secret.
        with (
            Engine(options("tcp", cluster_secret=OTHER, **certificates())) as engine,
            pytest.raises(UnauthenticatedError, match="secret"),
        ):
            engine.connect(child.endpoint)


def test_tls_with_a_key_of_another_secret_is_refused(tls_victim: Child) -> None:
    with (
        Engine(options("tcp", cluster_secret=OTHER, tls=True)) as engine,
        pytest.raises(UnauthenticatedError, match="cluster_secret"),
    ):
        engine.connect(tls_victim.endpoint)
    wait_until(lambda: dropped(tls_victim, "unauthenticated") >= 1, what="count of the refusal")


@pytest.mark.parametrize(("near", "far"), [(True, False), (False, True)])
def test_no_downgrade_and_both_settings_are_named(library: str, near: bool, far: bool) -> None:
    with (
        Engine(options("tcp", cluster_secret=SECRET, tls=far)) as server,
        Engine(options("tcp", cluster_secret=SECRET, tls=near)) as client,
    ):
        with pytest.raises(UnauthenticatedError) as refused:
            client.connect(server.endpoint)
        words = {True: "on", False: "off"}
        assert "transfer.tls is" in str(refused.value)
        assert all(word in str(refused.value) for word in words.values())
        wait_until(lambda: server.counters().get("dropped_connections_unauthenticated_total", 0) == 1)


def test_a_plain_member_of_the_cluster_is_told_before_it_says_anything(tls_victim: Child) -> None:
    with wire.Attacker(tls_victim.endpoint) as attacker:
        attacker.send(wire.frame(wire.HELLO, wire.hello(wire.CONTROL, has_secret=True)))
        kind, body = attacker.receive()
        assert kind == wire.ERROR
        assert b"transfer.tls is on" in body
        assert attacker.closed()


HALF_A_CLIENT_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(100)
TLS_GARBAGE = {
    "handshake-then-noise": b"\x16" + os.urandom(4096),
    "handshake-then-zeros": b"\x16\x03\x01" + bytes(4096),
    "longest-record": b"\x16\x03\x01\xff\xff" + bytes(70_000),
    "hello-with-a-lie-about-its-length": bytes.fromhex("1603010005010000ff0303") + bytes(600),
    "alert": b"\x15\x03\x01\x00\x02\x02\x28",
    "application-data": b"\x17\x03\x03\x00\x20" + bytes(32),
    "http": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("name", TLS_GARBAGE)
def test_garbage_instead_of_a_tls_handshake_is_cut_off(tls_victim: Child, name: str) -> None:
    with wire.Attacker(tls_victim.endpoint) as attacker:
        attacker.send(TLS_GARBAGE[name])
        with contextlib.suppress(OSError):
            attacker.socket.shutdown(socket.SHUT_WR)
        assert attacker.closed()
    expect_served(tls_victim, tls=True)


def test_slow_callers_are_cut_off_at_the_deadline_of_the_handshake(tls_victim: Child) -> None:
    """One byte at a time does not buy more time than the handshake has in all."""
    before = dropped(tls_victim, "handshake_timeout")
    started = time.monotonic()
    callers = [wire.Attacker(tls_victim.endpoint, timeout_s=0.1) for _ in range(3)]
    try:
        for place in range(len(HALF_A_CLIENT_HELLO)):
            for caller in callers:
                caller.send(HALF_A_CLIENT_HELLO[place : place + 1])
            if dropped(tls_victim, "handshake_timeout") == before + 3 or time.monotonic() - started > 60:
                break
            time.sleep(0.2)
        assert dropped(tls_victim, "handshake_timeout") == before + 3
    finally:
        for caller in callers:
            caller.socket.close()
    expect_served(tls_victim, tls=True)


class Relay:
    """Stands between a client and an engine; `spoil` sees each piece of what the client sends."""

    def __init__(self, target: Endpoint | str, spoil: Callable[[bytes], bytes]) -> None:
        address = Endpoint(target) if isinstance(target, str) else target
        self._target, self._spoil = (address.host, address.port), spoil
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.endpoint = Endpoint(f"127.0.0.1:{self._listener.getsockname()[1]}")
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target, timeout=60)
                self._sockets += [near, far]
                for source, sink, spoil in ((near, far, self._spoil), (far, near, bytes)):
                    self._threads.append(threading.Thread(target=self._pass, args=(source, sink, spoil)))
                    self._threads[-1].start()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket, spoil: Callable[[bytes], bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(spoil(data))
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(60)


@pytest.mark.parametrize("tls", [False, True])
def test_spoiled_bytes_on_the_way_end_the_connection_and_deliver_nothing(library: str, tls: bool) -> None:
    """A relay changes one bit of a message between two honest engines."""
    spoiling = threading.Event()
    with (
        Engine(options("tcp", cluster_secret=SECRET, tls=tls)) as server,
        Relay(
            server.endpoint, lambda data: flipped(data, len(data) - 20) if spoiling.is_set() else data
        ) as relay,
        Engine(options("tcp", cluster_secret=SECRET, tls=tls)) as client,
    ):
        peer = client.connect(relay.endpoint)
        client.send(peer, b"first")
        assert server.next_message(timeout_s=10).body == b"first"
        spoiling.set()
        client.send(peer, b"second " * 10)
        assert server.next_message(timeout_s=0.5) is None
        wait_until(lambda: server.counters().get("dropped_connections_forged_frame_total", 0) == 1)
        wait_until(lambda: not peer.alive)


def test_repeated_tls_records_deliver_nothing_twice(library: str) -> None:
    repeat = threading.Event()
    with (
        Engine(options("tcp", cluster_secret=SECRET, tls=True)) as server,
        Relay(server.endpoint, lambda data: data * 2 if repeat.is_set() else data) as relay,
        Engine(options("tcp", cluster_secret=SECRET, tls=True)) as client,
    ):
        peer = client.connect(relay.endpoint)
        client.send(peer, b"before")  # when it is there, nothing of the handshake is under way any more
        before = server.next_message(timeout_s=10)
        assert before is not None
        assert before.body == b"before"
        repeat.set()
        client.send(peer, b"once")
        assert server.next_message(timeout_s=10).body == b"once"
        assert server.next_message(timeout_s=0.5) is None
        wait_until(lambda: server.counters().get("dropped_connections_forged_frame_total", 0) == 1)


def test_nothing_readable_crosses_the_network_with_tls(library: str) -> None:
    seen: list[bytes] = []
    words = b"the quick brown fox jumps over the lazy dog"

    def look(data: bytes) -> bytes:
        seen.append(data)
        return data

    for tls in (False, True):
        seen.clear()
        with (
            Engine(options("tcp", cluster_secret=SECRET, tls=tls)) as server,
            Relay(server.endpoint, look) as relay,
            Engine(options("tcp", cluster_secret=SECRET, tls=tls)) as client,
        ):
            client.send(client.connect(relay.endpoint), words)
            assert server.next_message(timeout_s=10).body == words
        assert (words in b"".join(seen)) is not tls
        assert (struct.pack("<4s", wire.MAGIC) in b"".join(seen)) is not tls
