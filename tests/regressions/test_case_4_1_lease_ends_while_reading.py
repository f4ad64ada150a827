"""A lease ended while its blocks were read, and they were reused under the reader."""

from __future__ import annotations

import random

from _handoff import Clock, Decode, Prefill
from kvferry.errors import StaleError
from kvferry.testing import FakeNetwork

ROUNDS = 1000


def test_the_reader_gets_the_right_bytes_or_nothing() -> None:
    clock = Clock()
    network = FakeNetwork(clock=clock)
    decode, prefill = Decode(network, clock), Prefill(network, clock, lease_s=2.0)
    pick = random.Random(4)
    seen = {True: 0, False: 0}
    for index in range(ROUNDS):
        remote = prefill.finish(f"p{index}", (3, 4))
        right = prefill.memory.values((3, 4))

        def slow(transfer):
            clock.now += pick.choice([0.0, 1.0, 1.9, 2.1, 5.0])
            prefill.table.expire()
            if prefill.table.take_ended():  # the engine reuses the blocks for another prompt
                prefill.memory.fill(4, 0xEE)

        network.before_transfer = slow
        result = decode.load(f"d{index}", remote, (7, 8))
        prefill.table.take_ended()
        seen[result.error is None] += 1
        if result.error is None:
            assert decode.memory.values((7, 8)) == right
        else:
            assert isinstance(result.error, StaleError)
    assert min(seen.values()) > 100
