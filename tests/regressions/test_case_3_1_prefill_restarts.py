"""Prefill restarted behind the same address; decode kept the old one's ports and keys."""

from __future__ import annotations

from _handoff import Clock, Decode, Prefill
from kvferry.testing import FakeNetwork


def test_at_most_the_first_request_after_the_swap_falls_back() -> None:
    clock = Clock()
    network = FakeNetwork(clock=clock)
    decode = Decode(network, clock)
    prefill = Prefill(network, clock)
    for round_number in range(20):
        assert decode.load(f"a{round_number}", prefill.finish("p1", (3,)), (7,)).error is None
        under_way = prefill.finish("p2", (4,))
        prefill.engine.close()
        prefill = Prefill(network, clock, endpoint=prefill.engine.endpoint)
        assert decode.load(f"b{round_number}", under_way, (8,)).error is not None
        after = prefill.finish("p3", (5,))
        assert decode.load(f"c{round_number}", after, (9,)).error is None
        assert decode.memory.values((9,)) == prefill.memory.values((5,))
        prefill.table.take_ended()
