"""Attacks on the port of a live engine: each is cut off, costs little, and the engine serves on."""

from __future__ import annotations

import contextlib
import pickle
import struct

import numpy as np
import pytest

import _wire as wire
from _engines import Child, move, options, pattern, pieces, wait_until
from kvferry.transfer import Engine

SIZE = 1 << 20


@pytest.fixture(scope="module")
def victim():
    """A child engine with one region to read and one that may only be written."""
    regions = [
        {"name": "m", "length": SIZE, "access": "r", "seed": 8},
        {"name": "w", "length": 4096, "access": "w", "seed": 9},
    ]
    with Child(regions, transports=["tcp"], idle_probe_s=2.0) as child:
        yield child


@pytest.fixture(autouse=True)
def still_serving(victim):
    """After each attack: alive, descriptors and threads are back, an honest peer reads right bytes."""
    before = victim.ask("status")
    yield
    assert victim.process.poll() is None
    with Engine(options("tcp")) as honest:
        near = np.zeros(SIZE, dtype=np.uint8)
        here = honest.register(near, name="near")
        peer = honest.connect(victim.endpoint, expected=victim.node_id)
        assert move(honest, peer, pieces((here.id, peer.region("m").id, 0, 0, SIZE))).error is None
        np.testing.assert_array_equal(near, pattern(SIZE, 8))
    wait_until(lambda: victim.ask("peers") == 0, what="departure of all peers")
    wait_until(lambda: victim.ask("status")["fds"] <= before["fds"], what="close of all descriptors")
    wait_until(lambda: victim.ask("status")["threads"] <= before["threads"] + 1, what="end of all threads")


class Bomb:
    def __reduce__(self):
        return (print, ("executed",))


GARBAGE = {
    "0xff": b"\xff" * (10 << 20),
    "zeros": bytes(1 << 16),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100f6010000f20303") + bytes(200),
    "pickle": pickle.dumps(Bomb()),
    "nested-msgpack": b"\x91" * 10_000,
    "bad-magic": wire.frame(wire.HELLO, wire.hello(wire.CONTROL), magic=b"KVF2"),
    "bad-version": wire.frame(wire.HELLO, wire.hello(wire.CONTROL), version=9),
    "bad-crc": wire.frame(wire.HELLO, wire.hello(wire.CONTROL), crc=1),
    "bad-flags": wire.frame(wire.HELLO, wire.hello(wire.CONTROL), flags=0xFFFF),
    "unknown-type": wire.frame(250),
    "huge-length": wire.frame(wire.HELLO, length=0xFFFFFFFF),
    "too-long-for-its-type": wire.frame(wire.HELLO, bytes(2000)),
    "short-hello": wire.frame(wire.HELLO, b"\x01\x01\x01"),
    "long-hello": wire.frame(wire.HELLO, wire.hello(wire.CONTROL) + b"x"),
    "no-common-version": wire.frame(wire.HELLO, wire.hello(wire.CONTROL, versions=(7, 9))),
    "unknown-purpose": wire.frame(wire.HELLO, wire.hello(77)),
    "shm-attach-over-tcp": wire.frame(wire.HELLO, wire.hello(wire.SHM_ATTACH)),
    "message-before-hello": wire.frame(wire.MESSAGE, b"let me in"),
    "read-before-hello": wire.frame(wire.READ, wire.request(wire.piece(1, 1, 0, 10))),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_instead_of_a_handshake_is_cut_off(victim, name):
    with wire.Attacker(victim.endpoint) as attacker:
        attacker.send(GARBAGE[name])
        assert attacker.closed()


def test_a_peer_that_skips_its_proof_is_cut_off(victim):
    with wire.Attacker(victim.endpoint) as attacker:
        attacker.send(wire.frame(wire.HELLO, wire.hello(wire.CONTROL)))
        assert attacker.receive()[0] == wire.HELLO_ACK
        attacker.send(wire.frame(wire.REGIONS_REQUEST))
        assert attacker.closed()


def test_a_refusal_of_another_identity_names_both(victim):
    with wire.Attacker(victim.endpoint) as attacker:
        attacker.send(wire.frame(wire.HELLO, wire.hello(wire.CONTROL, expected=b"\xab" * 16)))
        kind, body = attacker.receive()
        assert kind == wire.ERROR
        assert b"ab" * 16 in body
        assert victim.node_id.encode() in body
        assert attacker.closed()


CONTROL_LIES = {
    "hello-again": wire.frame(wire.HELLO, wire.hello(wire.CONTROL)),
    "read-on-control": wire.frame(wire.READ, wire.request(wire.piece(1, 1, 0, 10))),
    "unasked-answer": wire.frame(wire.READ_DATA, bytes(24)),
    "body-where-none-belongs": wire.frame(wire.PING, b"x"),
    "message-too-long": wire.frame(wire.MESSAGE, length=(1 << 20) + 1),
    "bad-crc": wire.frame(wire.MESSAGE, b"hello", crc=7),
    "regions-lie": wire.frame(wire.REGIONS, struct.pack("<II", 0, 0xFFFFFFFF)),
}


@pytest.mark.parametrize("name", CONTROL_LIES)
def test_lies_on_a_control_connection_are_cut_off(victim, name):
    with wire.Attacker(victim.endpoint) as attacker:
        attacker.handshake(wire.CONTROL)
        attacker.send(CONTROL_LIES[name])
        assert attacker.closed()


def test_data_connections_are_for_known_peers_or_only_read_what_is_allowed(victim):
    """Address-like offsets, stale ids, overflowing lengths: an error or the end, never foreign bytes."""
    top = 2**64 - 1
    lies = [
        wire.piece(1, 1, top, 2),
        wire.piece(1, 1, SIZE, 1),
        wire.piece(1, 1, SIZE - 1, 2),
        wire.piece(1, 1, 0x7F0000000000, 4096),
        wire.piece(1, 2, 0, 16),
        wire.piece(1, 0, 0, 16),
        wire.piece(0, 1, 0, 16),
        wire.piece(4000, 1, 0, 16),
        wire.piece(2, 1, 0, 16),
    ]
    for lie in lies:
        with wire.data_connection(victim.endpoint) as attacker:
            attacker.send(wire.frame(wire.READ, wire.request(lie), request=wire.REQUEST))
            answer = attacker.receive()
            if answer is None or answer[0] == wire.ERROR:
                continue
            kind, body = answer
            assert kind == wire.READ_DATA
            payload, count, _reserved = struct.unpack_from("<QII", body)
            assert (payload, count) == (0, 1), lie
            assert body[16] != 0, "an error code"


MALFORMED_REQUESTS = {
    "no-pieces": wire.request(),
    "count-lies-high": wire.request(wire.piece(1, 1, 0, 16), count=500),
    "count-lies-huge": wire.request(wire.piece(1, 1, 0, 16), count=0xFFFFFFFF),
    "count-lies-low": wire.request(wire.piece(1, 1, 0, 16), wire.piece(1, 1, 0, 16), count=1),
    "too-many": wire.request(*[wire.piece(1, 1, 0, 1)] * 513),
    "empty-piece": wire.request(wire.piece(1, 1, 0, 0)),
    "sum-overflows": wire.request(wire.piece(1, 1, 0, 2**63), wire.piece(1, 1, 0, 2**63)),
    "more-than-a-request-may": wire.request(wire.piece(1, 1, 0, (16 << 20) + 1)),
    "cut": wire.request(wire.piece(1, 1, 0, 16))[:-1],
}


@pytest.mark.parametrize("kind", [wire.READ, wire.WRITE])
@pytest.mark.parametrize("name", MALFORMED_REQUESTS)
def test_malformed_requests_end_the_connection(victim, name, kind):
    with wire.data_connection(victim.endpoint) as attacker:
        attacker.send(wire.frame(kind, MALFORMED_REQUESTS[name], request=wire.REQUEST))
        assert attacker.closed()


def test_writing_where_only_reading_is_allowed_changes_nothing(victim):
    with wire.data_connection(victim.endpoint) as attacker:
        attacker.send(
            wire.frame(wire.WRITE, wire.request(wire.piece(1, 1, 0, 16)), request=wire.REQUEST) + b"\xee" * 16
        )
        answer = attacker.receive()
        assert answer is None or answer[0] in (wire.ERROR, wire.WRITE_ACK)
    shown = victim.ask("bytes", name="m", offset=0, length=16)
    assert bytes.fromhex(shown) == pattern(SIZE, 8)[:16].tobytes()


def test_a_hundred_peers_that_say_nothing_are_cut_off(victim):
    attackers = [wire.Attacker(victim.endpoint, timeout_s=20.0) for _ in range(100)]
    assert all(attacker.closed() for attacker in attackers)
    for attacker in attackers:
        attacker.socket.close()


def test_peers_that_never_read_cost_a_bounded_buffer(victim):
    before = victim.ask("status")["rss_kib"]
    ask = wire.frame(wire.READ, wire.request(wire.piece(1, 1, 0, SIZE)), request=wire.REQUEST)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            attacker = stack.enter_context(wire.data_connection(victim.endpoint))
            attacker.socket.settimeout(0.2)
            with contextlib.suppress(TimeoutError):  # the server stops taking requests: that is the point
                for _request in range(20_000):
                    attacker.send(ask)
        assert victim.ask("status")["rss_kib"] - before < 64 << 10


def test_half_open_peers_are_noticed_by_probing(victim):
    """A control connection whose other end never answers a PING is given up."""
    with wire.Attacker(victim.endpoint, timeout_s=20.0) as attacker:
        attacker.handshake(wire.CONTROL)
        assert attacker.closed()


def test_refused_connections_are_counted_with_a_reason(victim):
    before = victim.ask("counters")
    for _ in range(3):
        with wire.Attacker(victim.endpoint) as attacker:
            attacker.send(GARBAGE["http"])
            assert attacker.closed()
    after = victim.ask("counters")
    name = "dropped_connections_malformed_handshake_total"
    assert after[name] - before.get(name, 0) == 3
    assert after["dropped_connections_total"] - before["dropped_connections_total"] == 3


def test_more_connections_than_allowed_are_refused():
    with Child(transports=["tcp"], max_connections=8) as child:
        attackers = [wire.Attacker(child.endpoint) for _ in range(8)]
        try:
            for attacker in attackers:
                attacker.handshake(wire.CONTROL)
            with wire.Attacker(child.endpoint) as one_more:
                one_more.send(wire.frame(wire.HELLO, wire.hello(wire.CONTROL)))
                assert one_more.closed()
        finally:
            for attacker in attackers:
                attacker.socket.close()
        wait_until(lambda: child.ask("peers") == 0, what="departure of all peers")
        with Engine(options("tcp")) as honest:
            assert honest.connect(child.endpoint).node_id == child.node_id
