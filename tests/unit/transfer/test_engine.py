from __future__ import annotations

import gc
import re
import threading
import weakref

import numpy as np
import pytest

from _engines import engine_pair, move, options, pattern, pieces, wait_until
from kvferry.config import TransferOptions
from kvferry.errors import (
    AccessDeniedError,
    CancelledError,
    ConfigError,
    IdentityMismatchError,
    InvalidArgumentError,
    KVFerryError,
    NotFoundError,
    OutOfRangeError,
    StaleError,
    UnauthenticatedError,
    UnavailableError,
)
from kvferry.transfer import Endpoint, Engine


@pytest.fixture
def pair():
    with engine_pair("tcp") as made:
        yield made


def test_engine_publishes_a_bound_port_and_a_fresh_identity():
    with Engine() as first, Engine() as second:
        assert first.endpoint.port != 0
        assert first.endpoint.is_loopback
        assert re.fullmatch("[0-9a-f]{32}", first.node_id)
        assert first.node_id != second.node_id


def test_engine_close_is_idempotent_and_ends_waits():
    engine = Engine()
    answers = []
    thread = threading.Thread(target=lambda: answers.append(engine.next_message(60.0)))
    thread.start()
    engine.close()
    engine.close()
    thread.join(60)
    assert answers == [None]


def test_engine_is_closed_when_collected_and_then_frees_registered_memory():
    engine = Engine()
    memory = np.zeros(4096, dtype=np.uint8)
    alive = weakref.ref(memory)
    engine.register(memory, name="m", access="rw")
    del memory
    gc.collect()
    assert alive() is not None
    del engine
    gc.collect()
    assert alive() is None


def test_engine_refuses_to_listen_off_loopback_without_a_secret():
    with pytest.raises(KVFerryError, match="secret"):
        Engine(TransferOptions(bind="0.0.0.0:0", advertise="127.0.0.1:0"))


def test_engine_refuses_an_address_in_use(pair):
    with pytest.raises(UnavailableError, match=str(pair.server.endpoint.port)):
        Engine(TransferOptions(bind=str(pair.server.endpoint)))


def test_engine_refuses_an_unread_secret_file():
    with pytest.raises(ConfigError, match="load_config"):
        Engine(TransferOptions(cluster_secret_file="/somewhere"))


def test_register_keeps_the_buffer_until_unregister(pair):
    memory = np.zeros(4096, dtype=np.uint8)
    alive = weakref.ref(memory)
    region = pair.client.register(memory, name="m", access="rw")
    del memory
    gc.collect()
    assert alive() is not None
    region.unregister()
    region.unregister()
    gc.collect()
    assert alive() is None


def test_register_publishes_name_length_and_access(pair):
    region = pair.server.register(bytearray(4097), name="layers.0/k ü", access="w")
    pair.peer.refresh()
    seen = pair.peer.region("layers.0/k ü")
    assert (seen.id, seen.generation, seen.length_bytes) == (region.id, region.generation, 4097)
    assert (seen.access, seen.kind) == ("w", "host")
    assert [info.name for info in pair.peer.regions] == ["layers.0/k ü"]


def test_register_refuses_writing_to_read_only_memory(pair):
    with pytest.raises(InvalidArgumentError, match="bytes is read-only, so access='rw' is impossible"):
        pair.client.register(b"constant", name="x", access="rw")


def test_register_refuses_unknown_access(pair):
    with pytest.raises(InvalidArgumentError, match="access 'x' must be"):
        pair.client.register(bytearray(8), access="x")


def test_register_refuses_a_name_that_is_too_long(pair):
    with pytest.raises(InvalidArgumentError, match="255"):
        pair.client.register(bytearray(8), name="n" * 256)


def test_read_into_read_only_memory_is_refused(pair):
    target = b"constant" * 512
    here = pair.client.register(target, name="const", access="r")
    there = pair.server.register(bytearray(4096), name="m")
    pair.peer.refresh()
    rows = pieces((here.id, there.id, 0, 0, 4096))
    with pytest.raises(InvalidArgumentError, match=f"region {here.id} is read-only memory"):
        pair.client.prepare(pair.peer, rows, "read")
    assert target == b"constant" * 512


def test_memory_that_someone_registered_as_writable_may_be_read_into(pair):
    memory = bytearray(4096)
    view = memoryview(memory).toreadonly()
    here = pair.client.register(view, name="m")
    writable = pair.client.register(memory, name="m")
    assert writable.id == here.id
    there = pair.server.register(b"x" * 4096, name="m")
    pair.peer.refresh()
    rows = pieces((here.id, there.id, 0, 0, 4096))
    move(pair.client, pair.peer, rows).raise_if_failed()
    assert bytes(memory) == b"x" * 4096
    writable.unregister()
    assert here.registered
    assert not writable.registered
    with pytest.raises(InvalidArgumentError, match="read-only memory"):
        pair.client.prepare(pair.peer, rows, "read")


def test_peer_region_refuses_a_name_that_several_regions_have(pair):
    memory = bytearray(8192)
    first = pair.server.register(memoryview(memory)[:4096], name="twice")
    second = pair.server.register(memoryview(memory)[4096:], name="twice")
    pair.peer.refresh()
    with pytest.raises(
        InvalidArgumentError, match=rf"2 regions 'twice' \(ids {first.id}, {second.id}\).*Peer.regions"
    ):
        pair.peer.region("twice")
    second.unregister()
    pair.peer.refresh()
    assert pair.peer.region("twice").id == first.id


def test_peer_region_unknown_name_says_what_to_do(pair):
    with pytest.raises(NotFoundError, match=r"has no region 'nope'; refresh\(\)"):
        pair.peer.region("nope")


def test_allocated_memory_is_zeroed_and_gone_after_unregister(pair):
    region = pair.client.allocate(5000, name="arena", access="rw")
    assert bytes(region.memory) == bytes(5000)
    region.memory[4999] = 7
    region.unregister()
    with pytest.raises(StaleError, match="'arena' has no view"):
        _ = region.memory


def test_connect_accepts_text_and_endpoint(pair):
    again = pair.client.connect(Endpoint(str(pair.server.endpoint)))
    assert again.node_id == pair.server.node_id
    assert pair.client.connect(str(pair.server.endpoint)).node_id == pair.server.node_id


def test_connect_refuses_another_node_naming_both(pair):
    expected = "ab" * 16
    with pytest.raises(IdentityMismatchError) as caught:
        pair.client.connect(pair.server.endpoint, expected=expected)
    assert expected in str(caught.value)
    assert pair.server.node_id in str(caught.value)


def test_connect_refuses_a_malformed_node_id(pair):
    with pytest.raises(InvalidArgumentError, match="32"):
        pair.client.connect(pair.server.endpoint, expected="not hex")
    with pytest.raises(InvalidArgumentError, match="zeros"):  # not "whoever answers"
        pair.client.connect(pair.server.endpoint, expected="0" * 32)


def test_endpoint_says_that_it_is_no_url():
    with pytest.raises(InvalidArgumentError, match="no URL"):
        Endpoint("http://127.0.0.1:8000")


def test_connect_to_nobody_fails_within_the_timeout():
    with Engine() as engine, Engine() as gone:
        endpoint = gone.endpoint
        gone.close()
        with pytest.raises(UnavailableError, match=str(endpoint)):
            engine.connect(endpoint, timeout_s=2.0)


def test_connect_needs_the_same_secret_on_both_sides():
    secret, other = "s" * 16, "t" * 16
    with (
        Engine(options("tcp", cluster_secret=secret)) as server,
        Engine(options("tcp", cluster_secret=secret)) as friend,
        Engine(options("tcp", cluster_secret=other)) as stranger,
        Engine(options("tcp")) as naive,
    ):
        assert friend.connect(server.endpoint).node_id == server.node_id
        for engine in (stranger, naive):
            with pytest.raises(UnauthenticatedError) as caught:
                engine.connect(server.endpoint)
            assert secret not in str(caught.value)


def test_peers_are_equal_when_they_are_the_same_connection(pair):
    assert pair.client.peer(pair.peer.handle) == pair.peer
    assert pair.client.peers() == [pair.peer]
    assert hash(pair.client.peers()[0]) == hash(pair.peer)
    assert pair.client.peer(10**9) is None
    assert pair.peer != pair.server.peers()[0]


def test_metadata_reaches_new_and_refreshing_peers():
    with Engine(metadata=b"\x00first\xff") as server, Engine() as client:
        peer = client.connect(server.endpoint)
        assert peer.metadata == b"\x00first\xff"
        server.set_metadata(b"second")
        assert client.connect(server.endpoint).metadata == b"second"
        peer.refresh()
        assert peer.metadata == b"second"


def test_metadata_longer_than_64_kib_is_refused():
    with Engine(metadata=bytes(65536)) as engine, pytest.raises(InvalidArgumentError, match="65537"):
        engine.set_metadata(bytes(65537))


def test_messages_travel_both_ways_in_order(pair):
    for number in range(100):
        pair.client.send(pair.peer, b"\x00message %d" % number)
    received = [pair.server.next_message(5.0) for _ in range(100)]
    assert [message.body for message in received] == [b"\x00message %d" % n for n in range(100)]
    pair.server.send(received[0].peer, b"answer")
    answer = pair.client.next_message(5.0)
    assert answer.body == b"answer"
    assert pair.client.peer(answer.peer) == pair.peer


def test_message_of_a_mebibyte_travels_and_a_larger_one_is_refused(pair):
    body = pattern(1 << 20).tobytes()
    pair.client.send(pair.peer.handle, body)
    assert pair.server.next_message(5.0).body == body
    with pytest.raises(InvalidArgumentError):
        pair.client.send(pair.peer, body + b"x")


def test_send_to_an_unknown_peer_is_refused(pair):
    with pytest.raises(NotFoundError):
        pair.client.send(10**9, b"x")


def test_next_message_without_message_returns_none(pair):
    assert pair.client.next_message(0.0) is None
    assert pair.client.next_message(0.01) is None


def test_negative_times_are_refused(pair):
    for call in (
        lambda: pair.client.send(pair.peer, b"x", timeout_s=-1.0),
        lambda: pair.client.connect(pair.server.endpoint, timeout_s=float("nan")),
    ):
        with pytest.raises(InvalidArgumentError, match="is not possible"):
            call()


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.zeros((2, 5), dtype=np.int32), "element format"),
        (np.zeros((2, 5), dtype=np.int64), "element format"),
        (np.zeros(5, dtype=np.uint64), "1 dimensions"),
        (np.zeros((2, 4), dtype=np.uint64), "4 columns"),
        (np.zeros((4, 5), dtype=np.uint64)[::2], "gaps"),
        (np.zeros((5, 4), dtype=np.uint64).T, "gaps"),
        (np.full((1, 5), 2**32, dtype=np.uint64), "names region 4294967296"),
    ],
)
def test_prepare_refuses_arrays_of_another_form(pair, array, what):
    with pytest.raises(InvalidArgumentError, match=what):
        pair.client.prepare(pair.peer, array, "read")


def test_prepare_accepts_any_uint64_buffer(pair):
    there = pair.server.register(bytearray(64), name="m")
    here = pair.client.register(bytearray(64), name="m")
    pair.peer.refresh()
    rows = memoryview(pieces((here.id, there.id, 0, 0, 64)))
    plan = pair.client.prepare(pair.peer, rows, "read")
    assert (plan.op, plan.bytes, plan.pieces, plan.runs) == ("read", 64, 1, 1)


def test_prepare_checks_regions_ranges_and_access(pair):
    here = pair.client.register(bytearray(100), name="h")
    pair.server.register(bytearray(100), name="r", access="r")
    pair.server.register(bytearray(100), name="w", access="w")
    pair.peer.refresh()
    read, write = pair.peer.region("r").id, pair.peer.region("w").id
    top = 2**64 - 1
    for row, op, error in [
        ((here.id, read, 0, 0, 101), "read", OutOfRangeError),
        ((here.id, read, 1, 0, 100), "read", OutOfRangeError),
        ((here.id, read, 0, top, 2), "read", OutOfRangeError),
        ((here.id, read, 0, 50, top - 20), "read", OutOfRangeError),
        ((here.id, 4000, 0, 0, 1), "read", NotFoundError),
        ((4000, read, 0, 0, 1), "read", NotFoundError),
        ((0, read, 0, 0, 1), "read", NotFoundError),
        ((here.id, write, 0, 0, 1), "read", AccessDeniedError),
        ((here.id, read, 0, 0, 1), "write", AccessDeniedError),
    ]:
        with pytest.raises(error):
            pair.client.prepare(pair.peer, pieces(row), op)
    with pytest.raises(InvalidArgumentError, match="op 'copy'"):
        pair.client.prepare(pair.peer, pieces((here.id, read, 0, 0, 1)), "copy")


def test_closing_an_engine_cancels_what_is_under_way(pair):
    there = pair.server.register(bytearray(1 << 20), name="m")
    with Engine(options("tcp", fault_plan="tcp:hang")) as client:
        here = client.register(bytearray(1 << 20), name="m")
        peer = client.connect(pair.server.endpoint)
        plan = client.prepare(peer, pieces((here.id, there.id, 0, 0, 1 << 20)), "read")
        transfer = client.submit(plan)
        assert not transfer.settled
        client.close()
        assert transfer.settled
        assert isinstance(transfer.error, CancelledError)


def test_two_engines_of_a_process_are_independent(pair):
    there = pair.server.register(pattern(4096), name="m")
    with Engine(options("tcp")) as third:
        peer = third.connect(pair.server.endpoint)
        here = third.register(bytearray(4096), name="m")
        pair.client.close()
        assert move(third, peer, pieces((here.id, there.id, 0, 0, 4096))).error is None


def test_peer_reports_its_loss(pair):
    assert pair.peer.alive
    pair.server.close()
    wait_until(lambda: not pair.peer.alive, what="loss of the peer")
    assert isinstance(pair.peer.error, KVFerryError)
    with pytest.raises(KVFerryError):
        pair.peer.refresh()
