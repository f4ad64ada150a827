"""Both halves of one engine that pools, and hands off besides; the pool's store is a fake."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from _pool import Later, hashes
from _vllm_engine import VllmEngine
from _vllm_shapes import BLOCK, Blocks, Status, kv_cache_config, request
from kvferry.errors import UnsupportedError
from kvferry.testing import FakeNetwork
from kvferry.testing.fake_store import FakeStore
from kvferry_vllm import _support


@pytest.fixture
def network() -> FakeNetwork:
    return FakeNetwork()


@pytest.fixture
def engines(network):
    store = FakeStore()
    made = [VllmEngine(network, store), VllmEngine(network, store)]
    yield made
    for engine in made:
        engine.close()


def asked(name: str, tokens: int, params: Any = None, **changes: Any) -> Any:
    prompt = list(range(100, 100 + tokens))
    return request(name, prompt, params, block_hashes=hashes(prompt, BLOCK), **changes)


def computed(engine: VllmEngine, name: str, tokens: int, blocks: list[int], params: Any = None) -> Any:
    """A request that is computed in one step and saved."""
    one = asked(name, tokens, params)
    engine.scheduler.on_new_request(one)
    assert engine.scheduler.matched_tokens(one, 0) == (0, False)
    engine.scheduler.after_alloc(one, Blocks(blocks), 0)
    engine.step({name: tokens}, blocks)
    one.num_computed_tokens = tokens
    return one


def test_saved_by_one_engine_and_loaded_by_the_other(engines):
    first, second = engines
    computed(first, "a", 70, [4, 5, 6])
    assert first.block_pool.held() == [4, 5]
    assert first.scheduler.planner.saves_pending
    first.report_saved()
    assert first.block_pool.held() == []
    assert not first.scheduler.planner.saves_pending
    for tensor in second.caches.values():
        tensor.array[:] = 0
    one = asked("b", 100)
    second.scheduler.on_new_request(one)
    assert second.scheduler.matched_tokens(one, 0) == (64, True)
    second.scheduler.after_alloc(one, Blocks([9, 10, 11, 12]), 64)
    assert second.scheduler.planner.pooled_tokens("b") == 64
    ended = second.step()
    assert (ended.received, ended.failed) == ({"b"}, set())
    for source, target in ((4, 9), (5, 10)):
        assert np.array_equal(first.block(source), second.block(target))
    assert not second.block(11).any()
    second.scheduler.after_alloc(one, Blocks([9, 10, 11, 12]), 0)  # vLLM's second call
    assert second.step().received == set()


def test_own_cache_pool_and_prefill_engine_share_the_work(engines):
    first, second = engines
    one = computed(first, "a", 70, [4, 5, 6], {"do_remote_decode": True})
    one.status = Status.FINISHED_LENGTH_CAPPED
    held, params = first.scheduler.request_finished(one, ([4, 5, 6],))
    assert held
    first.step()
    two = asked("b", 70, params)
    second.scheduler.on_new_request(two)
    assert second.scheduler.matched_tokens(two, 32) == (38, True)
    second.scheduler.after_alloc(two, Blocks([9, 10, 11]), 38)
    assert second.scheduler.planner.pooled_tokens("b") == 32
    ended, received = second.step(), set()
    while not received:  # the hand-off has threads of its own
        received = ended.received
        assert ended.failed == set()
        ended = second.step()
    assert received == {"b"}
    for source, target in ((5, 10), (6, 11)):
        assert np.array_equal(first.block(source), second.block(target))
    stats = second.worker.take_stats()
    assert [load.blocks for load in stats.pool_loads] == [1]
    assert [load.bytes for load in stats.handoffs] == [stats.pool_loads[0].bytes]


def test_a_prompt_that_the_pool_has_needs_no_hand_off(engines):
    first, second = engines
    one = computed(first, "a", 64, [4, 5], {"do_remote_decode": True})
    one.status = Status.FINISHED_LENGTH_CAPPED
    _, params = first.scheduler.request_finished(one, ([4, 5],))
    two = asked("b", 64, params)
    second.scheduler.on_new_request(two)
    assert second.scheduler.matched_tokens(two, 0) == (64, True)
    second.scheduler.after_alloc(two, Blocks([9, 10]), 64)
    orders = second.scheduler.take_orders()
    assert not orders.handoff.loads
    assert [back.reason for back in orders.handoff.give_backs] == ["done"]
    assert len(orders.pool.loads) == 1


def test_a_failed_part_fails_the_load_and_the_pool_is_not_asked_again(engines, network):
    first, second = engines
    one = computed(first, "a", 70, [4, 5, 6], {"do_remote_decode": True})
    one.status = Status.FINISHED_LENGTH_CAPPED
    _, params = first.scheduler.request_finished(one, ([4, 5, 6],))
    first.worker.close()  # the prefill engine dies; the pool lives
    two = asked("b", 70, params)
    second.scheduler.on_new_request(two)
    assert second.scheduler.matched_tokens(two, 0) == (70, True)
    second.scheduler.after_alloc(two, Blocks([9, 10, 11]), 70)
    ended = second.step()
    while not ended.received:
        ended = second.step()
    assert (ended.received, ended.failed) == ({"b"}, {"b"})
    assert second.scheduler.matched_tokens(two, 0) == (0, False)


def test_generated_blocks_are_saved_or_not(network):
    for wanted, blocks in ((True, [4, 5, 6]), (False, [4, 5])):
        engine = VllmEngine(network, FakeStore(), save_generated=wanted)
        one = computed(engine, "a", 70, [4, 5, 6])
        one.block_hashes = hashes(range(100, 200), BLOCK)
        engine.step({"a": 30}, [4, 5, 6, 7])
        assert engine.block_pool.held() == blocks
        engine.worker.close()


def test_a_request_that_vllm_refused_is_not_looked_up(engines):
    first, _ = engines
    one = asked("a", 70, abort_immediately=True)
    first.scheduler.on_new_request(one)
    assert first.scheduler.matched_tokens(one, 0) == (0, False)
    first.scheduler.request_finished(one, ([],))
    assert first.scheduler.planner.take_counts() == ({}, {})


def test_an_idle_step_waits_a_moment_for_what_is_under_way(network, monkeypatch):
    monkeypatch.setattr("kvferry.worker.IDLE_WAIT_S", 60.0)
    engine = VllmEngine(network, FakeStore())
    assert engine.step() == (set(), set(), set())  # nothing is under way
    loads = Later()
    engine.worker._pool.worker._submit_load = loads.submit
    computed(engine, "a", 70, [4, 5, 6])
    one = asked("b", 70)
    engine.scheduler.on_new_request(one)
    engine.scheduler.matched_tokens(one, 0)
    engine.scheduler.after_alloc(one, Blocks([9, 10, 11]), 64)
    timer = threading.Timer(0.05, loads.run_all)
    timer.start()
    assert engine.step().received == {"b"}
    timer.join()
    engine.worker.close()


def test_a_save_is_not_reported_before_its_count(network):
    """vLLM takes the counts of a step, then what was saved, and an idle engine may take no further step."""
    engine = VllmEngine(network, FakeStore())
    saves = Later()
    engine.worker._pool.worker._submit_save = saves.submit
    computed(engine, "a", 70, [4, 5, 6])
    assert engine.worker.take_stats().pool_counts == {}
    saves.run_all()
    engine.report_saved()
    assert engine.block_pool.held() == [4, 5]
    engine.step()
    assert engine.worker.take_stats().pool_counts["saved_blocks|saved"] == 2
    engine.report_saved()
    assert engine.block_pool.held() == []
    engine.worker.close()


class TestSupport:
    def config(self, role: str = "kv_both", algorithm: str = "sha256") -> Any:
        return SimpleNamespace(
            kv_transfer_config=SimpleNamespace(kv_role=role),
            cache_config=SimpleNamespace(prefix_caching_hash_algo=algorithm),
        )

    @pytest.mark.parametrize(
        ("enabled", "role", "expected"),
        [
            ("auto", "kv_both", True),
            ("auto", "kv_producer", False),
            ("auto", "kv_consumer", False),
            ("on", "kv_producer", True),
            ("off", "kv_both", False),
        ],
    )
    def test_who_pools(self, enabled, role, expected):
        assert _support.pools(enabled, self.config(role), kv_cache_config()) is expected

    def test_hashes_that_differ_from_process_to_process_are_refused(self, monkeypatch):
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
        with pytest.raises(UnsupportedError, match=r"xxhash.*pool\.enabled"):
            _support.pools("auto", self.config(algorithm="xxhash"), kv_cache_config())
        assert not _support.pools("off", self.config(algorithm="xxhash"), kv_cache_config())
        monkeypatch.setenv("PYTHONHASHSEED", "7")
        assert _support.pools("auto", self.config(algorithm="xxhash"), kv_cache_config())
