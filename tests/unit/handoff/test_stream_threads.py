"""Both workers as an engine uses them, threads and all, on fake engines."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from _handoff import BLOCK_TOKENS, LAYERS, Memory, geometry
from _streaming import digest_of, stream_id
from kvferry.config.schema import HandoffOptions
from kvferry.handoff import (
    Chunk,
    Ending,
    HandoffOrders,
    HandoffWorker,
    LeaseAddress,
    LeaseIssuer,
    Opening,
    RemotePrefill,
    StreamAddress,
    StreamLoad,
    StreamRequest,
    Streams,
    content_digest,
)
from kvferry.testing import FakeNetwork

BLOCKS, LOCAL = (2, 5, 7), (1, 3, 4)
TOKENS = 3 * BLOCK_TOKENS
WAIT_S = 30.0


class Side:
    def __init__(self, network: FakeNetwork) -> None:
        self.memory = Memory()
        self.engine = network.engine(geometry().encode())
        regions = self.memory.register(self.engine)
        self.worker = HandoffWorker(self.engine, geometry(), regions, HandoffOptions(), allow_remote=False)
        self.issuer = LeaseIssuer()
        self.orders(BEGIN)

    def orders(self, orders: dict[str, object]) -> None:
        made = HandoffOrders(self.issuer.authority, self.issuer.issued_through, **orders)
        self.worker.begin_step(made)
        self.worker.carry_out(made)


BEGIN: dict[str, object] = {}


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    network = FakeNetwork()
    prefill, decode = Side(network), Side(network)
    yield prefill, decode
    for side in (prefill, decode):
        side.worker.close()


def until(condition) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def follow(prefill: Side, decode: Side) -> None:
    prefill.orders({"openings": (Opening(stream_id(1), digest_of(1)),)})
    address = StreamAddress(stream_id(1), (prefill.engine.node_id,), (prefill.engine.endpoint,))
    decode.orders(
        {
            "follows": (StreamRequest("d1", address, digest_of(1), TOKENS),),
            "stream_loads": (StreamLoad("d1", (LOCAL,), 0, TOKENS),),
        }
    )


def ending(prefill: Side) -> Ending:
    lease = prefill.issuer.issue(content_digest((BLOCKS,), TOKENS, digest_of(1)))
    address = LeaseAddress(lease, (prefill.engine.node_id,), (prefill.engine.endpoint,), digest_of(1))
    return Ending(stream_id(1), 0, RemotePrefill(address, (BLOCKS,), TOKENS))


def test_layers_arrive_before_the_step_has_ended(sides) -> None:
    prefill, decode = sides
    follow(prefill, decode)
    prefill.orders({"chunks": (Chunk(stream_id(1), 0, BLOCKS, TOKENS),)})
    for layer in range(LAYERS):
        prefill.memory.data[layer, BLOCKS] = 9
        prefill.worker.streams.layer_written(f"layer.{layer}")
        until(lambda layer=layer: (decode.memory.data[layer, LOCAL] == 9).all())
    prefill.worker.streams.layer_written("of another model's")
    prefill.worker.streams.end_step()
    last = ending(prefill)
    prefill.orders({"endings": (last,), "leases": ((last.remote.address.lease, "p1"),)})
    results = []
    until(lambda: results.extend(decode.worker.take_results()) or results)
    assert [(one.request_id, one.error) for one in results] == [("d1", None)]
    assert results[0].early_bytes == results[0].bytes > 0
    until(lambda: prefill.worker.table.take_ended() == {"p1"})


def test_an_aborted_prefill_fails_the_load(sides) -> None:
    prefill, decode = sides
    follow(prefill, decode)
    prefill.orders({"chunks": (Chunk(stream_id(1), 0, BLOCKS[:1], BLOCK_TOKENS),)})
    prefill.worker.streams.end_step()
    prefill.orders({"endings": (Ending(stream_id(1), 0, None, "the request was aborted"),)})
    results = []
    until(lambda: results.extend(decode.worker.take_results()) or results)
    assert results[0].error.code == "stale"


def test_a_cancel_ends_the_load_and_the_lease(sides) -> None:
    prefill, decode = sides
    follow(prefill, decode)
    decode.orders({"cancels": ("d1",)})
    results = []
    until(lambda: results.extend(decode.worker.take_results()) or results)
    assert results[0].cancelled
    last = ending(prefill)
    prefill.orders({"endings": (last,), "leases": ((last.remote.address.lease, "p1"),)})
    until(lambda: prefill.worker.table.take_ended() == {"p1"})


def test_a_stream_of_our_own_is_not_kept(sides) -> None:
    prefill, _ = sides
    prefill.orders({"openings": (Opening(stream_id(1), digest_of(1)),)})
    prefill.orders({"own_streams": (stream_id(1),)})
    last = ending(prefill)
    prefill.orders({"endings": (last,), "leases": ((last.remote.address.lease, "p1"),)})
    until(lambda: prefill.worker.table.take_ended() == {"p1"})


def test_closing_gives_up_what_is_followed(sides) -> None:
    prefill, decode = sides
    follow(prefill, decode)
    decode.worker.close()
    results = decode.worker.take_results()
    assert [one.cancelled for one in results] == [True]


class Counting:
    """A side of the streams of which one thing happens between two ticks."""

    def take_counts(self) -> dict[str, int]:
        return {"streams_watched": 1}

    def expire(self) -> None:
        pass

    def tick(self) -> None:
        pass


def test_no_count_is_lost_between_the_thread_and_the_step() -> None:
    """Counts are added by one thread and taken by another one."""
    streams = Streams([], Counting(), lambda _post: Counting())
    ticks, total = 20_000, Counter()
    ticking = threading.Thread(target=lambda: [streams._tick() for _ in range(ticks)])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        ticking.start()
        while ticking.is_alive():
            total.update(streams.take_counts())
        ticking.join(WAIT_S)
    finally:
        sys.setswitchinterval(interval)
    total.update(streams.take_counts())
    assert total == {"streams_watched": 2 * ticks}
