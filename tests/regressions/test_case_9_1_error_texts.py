"""Errors carried a number, and one line per key, thousands of them."""

from __future__ import annotations

import logging

from _handoff import Clock, Decode, Prefill
from kvferry.testing import FakeNetwork


def test_a_failed_load_says_code_request_peer_time_limit_and_what_to_do(caplog) -> None:
    clock = Clock()
    network = FakeNetwork(clock=clock)
    decode, prefill = Decode(network, clock), Prefill(network, clock)
    remote = prefill.finish("p1", (3,))
    clock.now += 31
    prefill.table.expire()
    with caplog.at_level(logging.WARNING):
        decode.load("d1", remote, (7,))
    (line,) = caplog.messages
    for part in (
        "request=d1",
        "code=stale",
        prefill.engine.endpoint,
        remote.address.lease,
        "handoff.lease_s",
    ):
        assert part in line


def test_a_timeout_names_the_setting_and_the_limit(caplog) -> None:
    clock = Clock()
    network = FakeNetwork(clock=clock)
    decode, prefill = Decode(network, clock), Prefill(network, clock)
    decode.submit("d1", prefill.finish("p1", (3,)), (7,))
    clock.now += 31
    decode.consumer.tick()
    (result,) = decode.consumer.take_results()
    for part in ("d1", prefill.engine.endpoint, "30.0 s", "handoff.load_timeout_s"):
        assert part in str(result.error)


def test_a_thousand_failures_of_one_kind_are_one_warning(caplog) -> None:
    clock = Clock()
    network = FakeNetwork(clock=clock)
    decode, prefill = Decode(network, clock), Prefill(network, clock)
    remote = prefill.finish("p1", (3,))
    prefill.engine.close()
    with caplog.at_level(logging.WARNING):
        for index in range(1000):
            decode.load(f"d{index}", remote, (7,))
    assert len(caplog.messages) == 1
