from __future__ import annotations

import numpy as np
import pytest

from _pool import LAYERS, ROW, Later, Memory, at_once, hashes, keys, value
from kvferry.config import load_config
from kvferry.errors import (
    CancelledError,
    DeadlineExceededError,
    InternalError,
    OutOfRangeError,
    UnavailableError,
)
from kvferry.pool import (
    BlockSpan,
    GroupMemory,
    LoadJob,
    PoolLimits,
    PoolOrders,
    PoolWorker,
    SavedCounts,
    SaveJob,
    StoreLink,
)
from kvferry.store import Store, open_embedded
from kvferry.testing.fake_store import FakeStore

HASHES = hashes(range(40))
MADE = keys().of_blocks(0, HASHES)


def span(blocks: list[int], first: int = 0) -> BlockSpan:
    end = first + len(blocks)
    parents = tuple(MADE[index - 1] if index else b"" for index in range(first, end))
    return BlockSpan(0, tuple(MADE[first:end]), tuple(blocks), parents)


def save(blocks: list[int], first: int = 0, job: int = 1) -> PoolOrders:
    return PoolOrders("", "kv-tag", saves=(SaveJob(job, (span(blocks, first),)),))


def load(blocks: list[int], first: int = 0, request: str = "r") -> PoolOrders:
    return PoolOrders("", "kv-tag", loads=(LoadJob(request, (span(blocks, first),)),))


class Rig:
    def __init__(
        self,
        store,
        *,
        loads=at_once,
        saves=at_once,
        clock=None,
        limits=PoolLimits(),  # noqa: B008
        **options,
    ) -> None:
        self.memory = Memory(16)
        if clock is not None:
            options["clock"] = clock
        self.worker = PoolWorker(
            lambda: store, [self.memory.group], rank=0, loads=loads, saves=saves, limits=limits, **options
        )

    def written(self, blocks: list[int], first: int = 0) -> None:
        for index, block in enumerate(blocks, start=first):
            self.memory.write(block, HASHES[index])


@pytest.fixture(params=["fake", "real"])
def store(request):
    if request.param == "fake":
        yield FakeStore()
    else:
        with open_embedded(load_config({"store": {"dram": 32 << 20}}, environ={})) as opened:
            yield opened


@pytest.mark.parametrize(
    ("members", "in_place", "checked", "noticed"),
    [
        (2, True, False, True),
        (2, True, True, False),
        (1, True, False, False),
        (1, False, False, True),
    ],
    ids=["other hosts", "the transfer checks", "one node", "one node on another host"],
)
def test_bytes_from_other_hosts_are_checked(members, in_place, checked, noticed):
    """Where other nodes take part a network may have had the bytes, unless that has checked them itself."""
    store = FakeStore()
    store.members = ["node"] * members
    store.in_place = in_place
    link = StoreLink(lambda: store, checked=checked)
    link.attach()
    rig = Rig(store, local=link.local, verify=link.verify)
    rig.written([3, 1])
    rig.worker.start_saves(save([3, 1]))
    store.spoiled = {list(store.objects)[1]}
    rig.worker.start_loads(load([7, 8]))
    (result,) = rig.worker.take_results()
    assert (result.error is not None and result.error.code == "data_corrupt") is noticed


def test_saved_here_and_loaded_there(store):
    one, two = Rig(store), Rig(store)
    one.written([3, 1, 2])
    one.worker.start_saves(save([3, 1, 2]))
    assert one.worker.take_saved() == SavedCounts({1: 1})
    assert one.worker.take_saved() is None
    two.worker.start_loads(load([9, 8, 7]))
    (result,) = two.worker.take_results()
    assert (result.request_id, result.error, result.blocks, result.bytes) == ("r", None, 3, 3 * LAYERS * ROW)
    assert [two.memory.read(block) for block in (9, 8, 7)] == [value(each) for each in HASHES[:3]]
    assert two.memory.read(6) == bytes(LAYERS * ROW)
    assert one.worker.take_counts() == {"saved_blocks|saved": 3, "saved_bytes": 3 * LAYERS * ROW}
    assert two.worker.take_counts() == {"loads|loaded": 1, "loaded_bytes": 3 * LAYERS * ROW}


def test_what_is_there_is_not_written_again(store):
    rig = Rig(store)
    rig.written([1, 2, 3])
    rig.worker.start_saves(save([1, 2], job=1))
    rig.worker.start_saves(save([1, 2, 3], job=2))
    assert rig.worker.take_saved() == SavedCounts({1: 1, 2: 1})
    counts = rig.worker.take_counts()
    assert counts["saved_blocks|saved"] == 3
    assert counts["saved_blocks|existed"] == 2


def test_the_saves_of_a_step_are_one_call_of_the_store(store, monkeypatch):
    """Many requests add a block in the same step; what does not fit into one batch is a call of its own."""
    calls = []
    put = type(store).put_runs
    monkeypatch.setattr(
        type(store), "put_runs", lambda *a, **k: calls.append(len(a[1])) or put(*a, **k), raising=True
    )
    monkeypatch.setattr("kvferry.pool.worker.BATCH_BYTES", 3 * LAYERS * ROW)
    rig = Rig(store)
    rig.written([1, 2, 3, 4])
    jobs = tuple(SaveJob(10 + index, (span([1 + index], index),)) for index in range(4))
    rig.worker.start_saves(PoolOrders("", "kv-tag", saves=jobs))
    assert calls == [3, 1]
    assert not rig.worker.saving
    assert rig.worker.take_saved() == SavedCounts({10: 1, 11: 1, 12: 1, 13: 1})
    rig.worker.start_loads(load([8, 9, 10, 11]))
    assert [each.error for each in rig.worker.take_results()] == [None]
    assert [rig.memory.read(block) for block in (8, 9, 10, 11)] == [value(each) for each in HASHES[:4]]


def test_a_missing_block_fails_the_load_and_says_how_far_it_came(store):
    rig = Rig(store)
    rig.written([1, 2])
    rig.worker.start_saves(save([1, 2]))
    rig.worker.start_loads(load([4, 5, 6, 7]))
    (result,) = rig.worker.take_results()
    assert result.error is not None
    assert (result.error.code, result.blocks, result.cancelled) == ("not_found", 2, False)
    assert rig.worker.take_counts()["load_failures|not_found"] == 1


def test_ranks_have_parts_of_their_own(store):
    zero, one = Rig(store), Rig(store)
    one.worker._rank = 1
    zero.written([1])
    zero.worker.start_saves(save([1]))
    one.worker.start_loads(load([1]))
    assert one.worker.take_results()[0].error.code == "not_found"


def test_chains_and_tags_are_told_to_the_store():
    store = FakeStore()
    rig = Rig(store)
    rig.worker.start_saves(save([1, 2, 3], first=0))
    rig.worker.start_saves(save([4, 5], first=3, job=2))
    names = [made + b"\0\0" for made in MADE[:5]]
    assert [store.objects[name].parent for name in names] == [b"", *names[:4]]
    assert {found.tags for found in store.objects.values()} == {("kv-tag",)}


def test_a_block_of_another_size_is_not_used():
    store = FakeStore()
    rig = Rig(store)
    rig.worker.start_saves(save([1]))
    (name,) = store.objects
    store.objects[name] = store.objects[name]._replace(data=b"short")
    rig.worker.start_loads(load([2]))
    assert rig.worker.take_results()[0].error.code == "data_corrupt"


def test_a_store_that_is_gone_ends_everything_at_once():
    store = FakeStore()
    store.down = UnavailableError("gone")
    rig = Rig(store)
    rig.worker.start_saves(save([1]))
    rig.worker.start_loads(load([1]))
    assert rig.worker.take_saved() == SavedCounts({1: 1})
    assert rig.worker.take_results()[0].error is store.down
    assert rig.worker.take_counts()["save_failures|unavailable"] == 1


def test_bugs_do_not_keep_requests_or_blocks():
    class Broken(FakeStore):
        def exists_many(self, names, *, timeout_s=None):
            raise ZeroDivisionError

        get_runs_into = exists_many

    rig = Rig(Broken())
    rig.worker.start_saves(save([1]))
    rig.worker._store = lambda: 1 // 0
    rig.worker.start_loads(load([1]))
    assert rig.worker.take_saved() == SavedCounts({1: 1})
    assert isinstance(rig.worker.take_results()[0].error, InternalError)


def test_blocks_outside_the_cache_and_unknown_groups_are_refused():
    rig = Rig(FakeStore())
    rig.worker.start_loads(load([16]))
    rig.worker.start_loads(PoolOrders(loads=(LoadJob("g", (BlockSpan(1, (MADE[0],), (1,), (b"",)),)),)))
    assert [type(result.error) for result in rig.worker.take_results()] == [OutOfRangeError] * 2


def test_deadlines_count_the_time_in_the_queue():
    now, loads, saves = [0.0], Later(), Later()
    rig = Rig(FakeStore(), loads=loads.submit, saves=saves.submit, clock=lambda: now[0])
    rig.worker.start_loads(load([1]))
    rig.worker.start_saves(save([1]))
    now[0] = 31.0
    loads.run_all()
    saves.run_all()
    assert rig.worker.take_results()[0].error.code == "deadline_exceeded"
    assert rig.worker.take_saved() == SavedCounts({1: 1})
    assert rig.worker.take_counts()["save_failures|deadline_exceeded"] == 1


def test_a_cancelled_load_ends_between_two_batches(monkeypatch):
    monkeypatch.setattr("kvferry.pool.worker.BATCH_BYTES", LAYERS * ROW)
    store, loads = FakeStore(), Later()
    rig = Rig(store, loads=loads.submit)
    rig.worker.start_saves(save([1, 2, 3]))
    take = store.get_runs_into

    def cancel_then_take(names, runs, **options):
        rig.worker.start_loads(PoolOrders(cancels=("r", "unknown")))
        return take(names, runs, **options)

    monkeypatch.setattr(store, "get_runs_into", cancel_then_take)
    rig.worker.start_loads(load([4, 5, 6]))
    rig.worker.start_loads(load([4, 5, 6]))  # twice: once is enough
    loads.run_all()
    (result,) = rig.worker.take_results()
    assert (type(result.error), result.blocks, result.cancelled) == (CancelledError, 1, True)
    assert rig.worker.take_counts()["loads|cancelled"] == 1


class TestAtOnce:
    """An idle step loads what is near itself."""

    @pytest.fixture(autouse=True)
    def time_enough(self, monkeypatch):
        """A machine that stands still for a moment must not make a load a slow one."""
        monkeypatch.setattr("kvferry.pool.worker.AT_ONCE_S", 30.0)

    def rig(self, store):
        self.loads = Later()
        rig = Rig(store, loads=self.loads.submit, clock=lambda: 0.0)
        rig.worker._local = lambda: store
        rig.written([1, 2])
        rig.worker.start_saves(save([1, 2]))
        return rig

    def test_in_the_calling_thread(self, store):
        rig = self.rig(store)
        rig.worker.start_loads(load([4, 5]), idle=True)
        rig.worker.start_loads(load([6], first=2, request="s"), idle=True)
        assert not self.loads.jobs
        one, two = rig.worker.take_results()
        assert (one.error, one.blocks) == (None, 2)
        assert rig.memory.read(5) == value(HASHES[1])
        assert two.error.code == "not_found"

    def test_bugs_do_not_reach_the_step(self, store):
        rig = self.rig(store)
        rig.worker._store = lambda: 1 // 0
        rig.worker.start_loads(load([4]), idle=True)
        assert isinstance(rig.worker.take_results()[0].error, InternalError)

    def test_not_while_others_compute_nor_from_afar(self, store):
        rig = self.rig(store)
        rig.worker.start_loads(load([4]), idle=False)
        rig.worker._local = lambda: None
        rig.worker.start_loads(load([5], request="s"), idle=True)
        assert len(self.loads.jobs) == 2

    def test_what_takes_too_long_goes_to_a_thread(self):
        store = FakeStore()
        rig = self.rig(store)
        store.down = DeadlineExceededError("slow")
        rig.worker.start_loads(load([4, 5]), idle=True)
        store.down = None
        assert len(self.loads.jobs) == 1
        self.loads.run_all()
        assert [(result.error, result.blocks) for result in rig.worker.take_results()] == [(None, 2)]

    def test_after_a_slow_one_others_go_to_threads_for_a_while(self):
        store, now = FakeStore(), [0.0]
        rig = self.rig(store)
        rig.worker._clock = lambda: now[0]
        rig.worker._at_once_from = 0.0

        def slowly(names, runs, **options):
            now[0] += 0.03
            return FakeStore.get_runs_into(store, names, runs, **options)

        store.get_runs_into = slowly
        for name in ("a", "b"):
            rig.worker.start_loads(load([4], request=name), idle=True)
        assert len(self.loads.jobs) == 1
        now[0] += 2.0
        rig.worker.start_loads(load([4], request="c"), idle=True)
        assert [result.request_id for result in rig.worker.take_results()] == ["a", "c"]


def test_closed_executors_end_what_comes():
    closed = Later()
    closed.closed = True
    rig = Rig(FakeStore(), loads=closed.submit, saves=closed.submit)
    rig.worker.start_loads(load([1]))
    rig.worker.start_saves(save([1]))
    assert rig.worker.take_results()[0].cancelled
    assert rig.worker.take_saved() == SavedCounts({1: 1})


def test_a_stage_without_layers_of_a_group_has_parts_of_no_bytes(store):
    """Its parts are looked for like all others, so they must be there."""
    rig = Rig(store)
    none = np.zeros(0, np.uint64)
    rig.worker._memory = (GroupMemory(none, none, none, 16),)
    rig.worker.start_saves(save([1, 2]))
    assert rig.worker.take_counts()["saved_blocks|saved"] == 2
    rig.worker.start_loads(load([4, 5]))
    (result,) = rig.worker.take_results()
    assert (result.error, result.blocks, result.bytes) == (None, 2, 0)


def test_batches_of_a_long_chain(monkeypatch, store):
    monkeypatch.setattr("kvferry.pool.worker.BATCH_BYTES", 3 * LAYERS * ROW)
    rig = Rig(store)
    rig.written(list(range(8)))
    rig.worker.start_saves(save(list(range(8))))
    before = [rig.memory.read(block) for block in range(8)]
    for layer in rig.memory.layers:
        layer[:] = 0
    rig.worker.start_loads(load([*range(8, 16)]))
    assert rig.worker.take_results()[0].blocks == 8
    assert [rig.memory.read(block) for block in range(8, 16)] == before
    if isinstance(store, Store):
        assert np.all(rig.memory.layers[0][:8] == 0)


def test_counts_of_two_workers_add_up():
    assert SavedCounts({1: 1, 2: 1}).plus(SavedCounts({2: 1, 3: 1})) == SavedCounts({1: 1, 2: 2, 3: 1})
