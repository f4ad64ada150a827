"""Decode waited for remote KV without a deadline."""

from __future__ import annotations

from _handoff import Clock, Decode, Prefill
from kvferry.testing import FakeNetwork


def test_twenty_requests_all_end_by_their_deadline() -> None:
    clock = Clock()
    network = FakeNetwork(clock=clock)
    decode = Decode(network, clock, load_timeout_s=30.0)
    prefill = Prefill(network, clock)
    decode.load("d0", prefill.finish("p0", (1,)), (1,))
    remotes = [prefill.finish(f"p{i}", (2 + i % 10,)) for i in range(20)]
    prefill.engine.stopped = True
    started = clock.now
    for index, remote in enumerate(remotes):
        decode.submit(f"d{index}", remote, (index % 10,))
    decode.loads.run(4)  # four threads' worth; the rest stays queued
    clock.now = max(clock.now, started + 31)
    decode.consumer.tick()
    results = decode.consumer.take_results()
    assert sorted(result.request_id for result in results) == sorted(f"d{i}" for i in range(20))
    assert all(result.error is not None for result in results)
    assert decode.consumer.pending() == 0
