"""An abort leaked in every stage somewhere. Random schedules: unit/handoff/test_conservation.py."""

from __future__ import annotations

import pytest

from _handoff import Clock, Decode, Prefill
from kvferry.testing import FakeNetwork


@pytest.mark.parametrize("stage", ["waiting", "queued", "connecting", "reading", "confirmed", "reported"])
def test_the_lease_ends_and_the_request_ends_once(stage: str) -> None:
    clock = Clock()
    network = FakeNetwork(clock=clock)
    decode, prefill = Decode(network, clock), Prefill(network, clock)
    remote = prefill.finish("p1", (3,))
    decode.consumer.watch("d1", remote.address)
    results = []
    if stage == "waiting":
        decode.consumer.release("d1", remote.address, "rejected")
    else:
        decode.submit("d1", remote, (7,))
    if stage == "queued":
        decode.consumer.cancel("d1")
    if stage == "connecting":
        real_connect = decode.engine.connect

        def connect(*args, **kwargs):
            decode.consumer.cancel("d1")
            return real_connect(*args, **kwargs)

        decode.engine.connect = connect
    if stage == "reading":
        network.before_transfer = lambda transfer: decode.consumer.cancel("d1")
    decode.loads.run()
    if stage == "reported":
        results += decode.consumer.take_results()
    if stage in ("confirmed", "reported"):
        decode.consumer.cancel("d1")
    decode.chores.run()
    results += decode.consumer.take_results()
    assert len(results) == (0 if stage == "waiting" else 1)
    assert prefill.table.take_ended() == {"p1"}
    assert prefill.table.held() == decode.consumer.pending() == 0
