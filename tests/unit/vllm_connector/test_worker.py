"""Both halves of two engines, with real threads, over the fake transfer engine."""

from __future__ import annotations

import time

import numpy as np
import pytest

from _vllm_engine import VllmEngine
from _vllm_shapes import BLOCK, Blocks, Status, request
from kvferry.errors import DataCorruptError, KVFerryError
from kvferry.testing import FakeNetwork

LONG_BEFORE_S = 10.0  # a lease ends by itself after 30 s: what is freed sooner was given back
SILENCE_S = 4.0  # whoever waits for a silent peer waits 5 s


@pytest.fixture
def network():
    return FakeNetwork()


@pytest.fixture
def engines(network):
    made = [VllmEngine(network), VllmEngine(network)]
    for engine in made:
        engine.step()  # no request finishes before its engine's first step
    yield made
    for engine in made:
        engine.close()


PROMPT = list(range(70))


def prefill(engine, request_id="p1", blocks=(4, 5, 6)):
    done = request(
        request_id,
        PROMPT,
        {"do_remote_decode": True},
        num_computed_tokens=70,
        status=Status.FINISHED_LENGTH_CAPPED,
    )
    _, params = engine.scheduler.request_finished(done, (list(blocks),))
    return params


def admit(engine, params, request_id="d1", blocks=(9, 10, 11)):
    asked = request(request_id, PROMPT, params)
    engine.scheduler.on_new_request(asked)
    assert engine.scheduler.matched_tokens(asked, 0) == (70, True)
    engine.scheduler.after_alloc(asked, Blocks(list(blocks)), 70)
    return asked


def test_hand_off(engines):
    p, d = engines
    for tensor in p.caches.values():
        tensor.array += 1000
    params = prefill(p)
    admit(d, params)
    ended = d.until(lambda ended: ended.received)
    assert ended.received == {"d1"}
    assert ended.failed == set()
    assert ended.sent == set()
    for source, target in zip((4, 5, 6), (9, 10, 11), strict=True):
        assert np.array_equal(d.block(target), p.block(source))
    assert p.until(lambda ended: ended.sent).sent == {"p1"}
    results = d.worker.take_stats().handoffs
    assert [(result.request_id, result.bytes) for result in results] == [("d1", 3 * 2 * 2 * BLOCK * 8 * 4)]
    assert p.step().sent == set()
    assert d.step().received == set()
    assert p.worker.take_stats().handoff_counts["done"] == 1


def test_failed_load_is_received_and_failed(engines, network):
    p, d = engines

    def corrupt(transfer):
        raise DataCorruptError("checksum of piece 0 is wrong")

    network.before_transfer = corrupt
    admit(d, prefill(p))
    ended = d.until(lambda ended: ended.received)
    assert ended.received == ended.failed == {"d1"}
    assert p.until(lambda ended: ended.sent).sent == {"p1"}
    assert p.worker.take_stats().handoff_counts["aborted"] == 1


def test_abort_while_loading(engines, network):
    p, d = engines
    network.hold = True
    asked = admit(d, prefill(p))
    d.until(lambda _: network.held)
    asked.status = Status.FINISHED_ABORTED
    d.scheduler.request_finished(asked, ([9, 10, 11],))
    ended = d.until(lambda ended: ended.received)
    assert ended.received == {"d1"}
    assert p.until(lambda ended: ended.sent).sent == {"p1"}


def test_rejected_request_frees_the_prefill_engine_long_before_its_lease_ends(engines):
    p, d = engines
    asked = request("d1", PROMPT, prefill(p))
    d.scheduler.on_new_request(asked)
    d.step()
    p.step()
    d.scheduler.request_finished(asked, ([],))
    d.step()
    p.until(lambda ended: ended.sent == {"p1"}, timeout_s=LONG_BEFORE_S)
    assert p.worker.take_stats().handoff_counts["rejected"] == 1


def test_the_step_is_never_blocked_by_a_silent_peer(engines):
    p, d = engines
    params = [prefill(p, f"p{i}", (i,) * 3) for i in range(8)]
    p.step()
    p.transfer.stopped = True
    received = []
    for index, each in enumerate(params):
        admit(d, each, f"d{index}")
        started = time.monotonic()
        received += d.step().received
        assert time.monotonic() - started < SILENCE_S
    deadline = time.monotonic() + 20
    while len(received) < 8 and time.monotonic() < deadline:
        received += d.step().received
        time.sleep(0.01)
    assert sorted(received) == [f"d{index}" for index in range(8)]


def test_an_engines_own_lease_is_given_back_without_a_connection(engines):
    p, _ = engines
    asked = request("d1", PROMPT, prefill(p))
    p.scheduler.on_new_request(asked)
    assert p.until(lambda ended: ended.sent, timeout_s=LONG_BEFORE_S).sent == {"p1"}
    assert p.transfer.peers() == []


def test_expired_lease_is_reported_once(network):
    p = VllmEngine(network, handoff={"lease_s": 1.0})
    try:
        prefill(p)
        assert p.until(lambda ended: ended.sent, timeout_s=5.0).sent == {"p1"}
        assert p.worker.take_stats().handoff_counts["expired"] == 1
        assert p.step().sent == set()
    finally:
        p.worker.close()


def test_shut_down_twice_and_used_afterwards(network):
    engine = VllmEngine(network)
    engine.close()
    engine.close()
    with pytest.raises(KVFerryError, match="shut down"):
        engine.worker.take_ended()
