"""Cases 4.3, 4.4, 4.7 and 4.9 for SGLang's HiCache pages, on a real store: sgl-project/sglang#8324 (errors
were logged and the output was wrong), #36926; kvcache-ai/Mooncake#551, #3331; LMCache/LMCache#690, #3151.

Each page of a batch has a result of its own, in order; what failed is never a hit; nothing raises into
SGLang's threads; and a page is found by nobody whose bytes would be different.
"""

from __future__ import annotations

import importlib

import pytest

import _sglang
from _sglang import PAGE, HostPool, PoolName, PoolTransfer, hashes, slots, storage_config
from kvferry.config import load_config
from kvferry.pool import PagePool
from kvferry.store import open_embedded


class Site:
    """SGLang's servers on one machine, with one node for all of them."""

    def __init__(self, monkeypatch):
        _sglang.install(monkeypatch)
        self.module = importlib.import_module("kvferry_sglang.hicache")
        self.store = open_embedded(load_config({"store.dram": "8MiB"}, environ={}))
        monkeypatch.setattr(
            self.module, "PagePool", lambda config: PagePool(config, open_node=lambda _config: self.store)
        )

    def server(self, pool, side=None, **config):
        backend = self.module.KVFerryHiCache(storage_config(**config))
        backend.register_mem_pool_host(pool)
        for name, host_pool in (side or {}).items():
            backend.register_mem_host_pool_v2(host_pool, name)
        backend.on_host_pools_registered()
        return backend


@pytest.fixture
def site(monkeypatch):
    made = Site(monkeypatch)
    yield made
    made.store.close()


def test_each_page_of_a_batch_has_its_own_result(site):
    there, here = HostPool(pages=10), HostPool(pages=10)
    for page in range(10):
        there.fill(page, page)
        here.fill(page, 100 + page)
    writer, reader = site.server(there), site.server(here)
    names = hashes(10)
    kept = [names[page] for page in (0, 2, 3, 5, 7, 8, 9)]
    assert writer.batch_set_v1(kept, slots([0, 2, 3, 5, 7, 8, 9])) == [True] * 7
    other = site.server(HostPool(page=PAGE, pages=4), extra={"pool.namespace": "other"})
    assert other.batch_exists(kept) == 0
    wanted = [*names[:9], names[3]]  # three missing, and one of them twice
    before = here.page_bytes(9)
    assert reader.batch_get_v1(wanted, slots(range(10))) == [
        True, False, True, True, False, True, False, True, True, True,
    ]  # fmt: skip
    for page in (0, 2, 3, 5, 7, 8):
        assert here.page_bytes(page) == there.page_bytes(page)
    assert here.page_bytes(9) == there.page_bytes(3) != before


def test_a_batch_of_what_is_and_is_not_there_is_all_saved(site):
    pool = HostPool(pages=6)
    server = site.server(pool)
    server.batch_set_v1(hashes(3), slots(range(3)))
    assert server.batch_set_v1([*hashes(6), hashes(1)[0]], slots([*range(6), 0])) == [True] * 7
    assert server.batch_exists(hashes(6)) == 6


def test_what_fails_is_never_a_hit(site):
    server = site.server(HostPool(), side={PoolName.SWA: HostPool()})
    assert server.batch_set_v1(hashes(4), slots(range(4))) == [True] * 4
    window = PoolTransfer(PoolName.SWA, keys=["", ""], hit_policy="trailing_pages")
    site.store.close()
    for _ in range(2):
        assert server.batch_exists(hashes(4)) == 0
        assert server.batch_exists_v2(hashes(4), [window]).kv_hit_pages == 0
        assert server.batch_get_v1(hashes(4), slots(range(4))) == [False] * 4
        assert server.batch_get_v2([PoolTransfer(PoolName.SWA, slots([0]), hashes(1))]) == {
            PoolName.SWA: [False]
        }
        assert server.batch_set_v1(hashes(4), slots(range(4))) == [False] * 4


def test_a_prompt_is_taken_up_again_only_where_all_pools_can(site):
    server = site.server(HostPool(), side={PoolName.SWA: HostPool(), PoolName.MAMBA: HostPool(page=1)})
    server.batch_set_v1(hashes(6), slots(range(6)))
    server.batch_set_v2([PoolTransfer(PoolName.SWA, slots([0, 1, 2]), hashes(6)[2:5])])
    server.batch_set_v2([PoolTransfer(PoolName.MAMBA, slots([0], 1), [hashes(6)[3]])])
    window = PoolTransfer(PoolName.SWA, keys=["", ""], hit_policy="trailing_pages")
    state = PoolTransfer(PoolName.MAMBA, keys=[""], hit_policy="trailing_pages")
    assert server.batch_exists_v2(hashes(6), [window]).restorable_prefix_pages == [4, 5]
    assert server.batch_exists_v2(hashes(6), [window, state]).restorable_prefix_pages == [4]


OTHERS = {
    "layout": {"pool": HostPool("page_first_direct")},
    "page size": {"pool": HostPool(page=2 * PAGE)},
    "data type": {"pool": HostPool(dtype="f2")},
    "heads": {"pool": HostPool(heads=4)},
    "tensor parallelism": {"tp_size": 2},
    "rank": {"tp_size": 2, "tp_rank": 1},
    "stage": {"pp_size": 2, "pp_rank": 1},
    "model": {"model_name": "other"},
    "namespace": {"extra": {"pool.namespace": "other"}},
    "tenant": {"extra": {"store.tenant": "other"}},
}


@pytest.mark.parametrize("what", OTHERS)
def test_pages_are_not_found_by_whom_they_do_not_fit(site, what):
    assert site.server(HostPool()).batch_set_v1(hashes(2), slots([0, 1])) == [True, True]
    other = dict(OTHERS[what])
    server = site.server(other.pop("pool", HostPool()), **other)
    assert server.batch_exists(hashes(2)) == 0
    assert site.server(HostPool()).batch_exists(hashes(2)) == 2
