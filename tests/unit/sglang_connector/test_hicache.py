from __future__ import annotations

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

import _sglang
from _sglang import HostPool, Lab, LogicalPool, PoolName, PoolTransfer, hashes, slots, storage_config
from kvferry.errors import ConfigError, UnavailableError
from kvferry.pool import PagePool

LAYOUTS = ["layer_first", "page_first", "page_first_direct", "page_head"]


@pytest.fixture
def lab(monkeypatch):
    return Lab(monkeypatch)


def saved(lab, count=3, **config):
    """An engine that has saved pages 0 to `count`, and its pool."""
    pool = config.pop("pool", None) or HostPool()
    for page in range(count):
        pool.fill(page, page)
    backend = lab.engine(pool, **config)
    assert backend.batch_set_v1(hashes(count), slots(range(count))) == [True] * count
    return backend, pool


class TestPages:
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_another_engine_reads_what_one_saved(self, lab, layout):
        _, there = saved(lab, pool=HostPool(layout))
        here = HostPool(layout)
        engine = lab.engine(here)
        assert engine.batch_exists(hashes(5)) == 3
        assert engine.batch_get_v1(hashes(3), slots([6, 1, 4])) == [True] * 3
        assert [here.page_bytes(page) for page in (6, 1, 4)] == [there.page_bytes(page) for page in range(3)]

    def test_pages_that_are_not_there(self, lab):
        _, there = saved(lab)
        here = HostPool()
        engine = lab.engine(here)
        wanted = [hashes(3)[0], "ab" * 32, hashes(3)[2]]
        assert engine.batch_exists(wanted) == 1
        assert engine.batch_get_v1(wanted, slots([0, 1, 2])) == [True, False, True]
        assert here.page_bytes(2) == there.page_bytes(2)

    def test_pages_of_other_layouts_page_sizes_and_ranks_are_not_there(self, lab):
        saved(lab)
        others = [lab.engine(HostPool(layout)) for layout in LAYOUTS if layout != "page_first"]
        others += [lab.engine(HostPool(page=8)), lab.engine(HostPool(dtype="f2"))]
        others += [lab.engine(tp_size=2), lab.engine(pp_rank=1, pp_size=2), lab.engine(attn_cp_size=2)]
        others += [lab.engine(model_name="n"), lab.engine(extra={"pool.namespace": "x"})]
        assert [each.batch_exists(hashes(3)) for each in others] == [0] * len(others)
        assert lab.engine().batch_exists(hashes(3)) == 3

    def test_ranks_of_a_model_whose_cache_they_all_have(self, lab, monkeypatch):
        monkeypatch.setattr(PagePool, "embedded", False)  # a node that they share
        saved(lab, is_mla_model=True, tp_rank=0, tp_size=2)
        assert lab.engine(is_mla_model=True, tp_rank=1, tp_size=2).batch_exists(hashes(3)) == 3

    def test_such_ranks_need_a_node_that_they_share(self, lab):
        with pytest.raises(ConfigError, match="kvferry node"):
            lab.engine(is_mla_model=True, tp_rank=1, tp_size=2)
        assert lab.store.closed

    def test_engines_of_different_widths_share_heads(self, lab):
        _, there = saved(lab, pool=HostPool("page_head", heads=4), should_split_heads=True, tp_lcm_size=2)
        wide = [HostPool("page_head", heads=2) for _ in range(2)]
        engines = [lab.engine(pool, tp_rank=rank, tp_size=2, tp_lcm_size=2) for rank, pool in enumerate(wide)]
        for engine in engines:
            assert engine.batch_exists(hashes(3)) == 3
            assert engine.batch_get_v1(hashes(3), slots(range(3))) == [True] * 3
        for page in range(3):
            found = there.page_bytes(page)  # keys of both halves of the heads, then values
            parts = [found[at : at + len(found) // 4] for at in range(0, len(found), len(found) // 4)]
            assert [pool.page_bytes(page) for pool in wide] == [parts[0] + parts[2], parts[1] + parts[3]]

    def test_a_page_of_which_a_part_is_missing_is_not_there(self, lab):
        engine, _ = saved(lab, pool=HostPool("page_head", heads=4), should_split_heads=True, tp_lcm_size=2)
        del lab.store.objects[list(lab.store.objects)[3]]  # the second part of the second page
        assert engine.batch_exists(hashes(3)) == 1
        assert engine.batch_get_v1(hashes(3), slots(range(3))) == [True, False, True]

    def test_saved_again_is_saved(self, lab):
        engine, pool = saved(lab)
        calls = lab.store.calls["put_runs"]
        assert engine.batch_set_v1(hashes(3), slots(range(3))) == [True] * 3
        assert lab.store.calls["put_runs"] == calls
        pool.fill(3, 3)
        assert engine.batch_set_v1(hashes(4), slots(range(4))) == [True] * 4
        assert len(lab.store.objects) == 4

    def test_pages_know_the_one_before(self, lab):
        engine = lab.engine()
        engine.batch_set_v1(hashes(2), slots([0, 1]))
        info = SimpleNamespace(prefix_keys=hashes(2), extra_info=None)
        engine.batch_set_v1(hashes(3)[2:], slots([2]), info)
        names = list(lab.store.objects)
        assert [found.parent for found in lab.store.objects.values()] == [b"", names[0], names[1]]

    def test_logical_pools_have_all_pages_and_move_nothing(self, lab):
        engine = lab.engine(LogicalPool())
        assert engine.batch_exists(hashes(3)) == 3
        assert engine.batch_set_v1(hashes(3), slots(range(3))) == [True] * 3
        assert engine.batch_get_v1(hashes(3), slots(range(3))) == [True] * 3
        assert not lab.store.objects

    def test_memory_is_registered_once(self, lab):
        lab.engine(side={PoolName.SWA: HostPool()})
        assert lab.store.calls["register"] == 2


class TestWeightsThatAreReplaced:
    @pytest.fixture
    def settings(self):
        return SimpleNamespace(model_path="m", load_format="auto", weight_version="default")

    @pytest.fixture
    def lab(self, monkeypatch, settings):
        return Lab(monkeypatch, settings)

    @pytest.mark.parametrize(
        "change", [{"weight_version": "2"}, {"model_path": "m-2"}, {"load_format": "dummy"}], ids=str
    )
    @pytest.mark.parametrize("by_pieces", [1, 0])
    def test_pages_of_the_old_ones_are_not_there_any_more(self, lab, settings, change, by_pieces):
        engine = lab.engine(side={PoolName.SWA: HostPool()}, extra={"interface_v1": by_pieces})
        values = [_sglang.tensor(16) for _ in range(2)]

        def save():
            if by_pieces:
                return all(engine.batch_set_v1(hashes(2), slots(range(2))))
            return engine.batch_set(hashes(2), values)

        side = PoolTransfer(PoolName.SWA, slots([0]), hashes(1))
        assert save()
        assert engine.batch_set_v2([side]) == {PoolName.SWA: [True]}
        before = dict(vars(settings))
        vars(settings).update(change)
        assert engine.batch_exists(hashes(2)) == 0
        assert engine.batch_get_v1(hashes(2), slots(range(2))) == [False] * 2
        assert engine.batch_get(hashes(1), values[:1]) == [None]
        assert engine.batch_get_v2([side]) == {PoolName.SWA: [False]}
        assert save()
        assert engine.batch_exists(hashes(2)) == 2
        assert lab.engine(extra={"interface_v1": by_pieces}).batch_exists(hashes(2)) == 2
        assert engine.clear()
        assert engine.batch_exists(hashes(2)) == 0
        vars(settings).update(before)  # those of the first weights are other pages, and still there
        assert engine.batch_exists(hashes(2)) == 2

    def test_another_format_of_the_same_weights_makes_no_difference(self, lab, settings):
        engine, _ = saved(lab)
        settings.load_format = "safetensors"
        assert engine.batch_exists(hashes(3)) == 3


class TestTrouble:
    def test_a_store_that_is_down_is_a_miss_and_logged_once(self, lab, caplog):
        engine, _ = saved(lab)
        lab.store.down = UnavailableError("no node")
        for _ in range(3):
            assert engine.batch_exists(hashes(3)) == 0
            assert engine.batch_get_v1(hashes(3), slots(range(3))) == [False] * 3
            assert engine.batch_set_v1(hashes(3), slots(range(3))) == [False] * 3
            assert engine.batch_exists_v2(hashes(3)).kv_hit_pages == 0
        assert (
            len(
                [
                    each
                    for each in caplog.records
                    if "no node" in each.getMessage() and each.levelname == "WARNING"
                ]
            )
            == 3
        )
        lab.store.down = None
        assert engine.batch_exists(hashes(3)) == 3

    @pytest.mark.parametrize("keys", [["not hex"], [None]])
    def test_calls_that_make_no_sense_are_misses(self, lab, keys):
        engine = lab.engine()
        assert engine.batch_exists(keys) == 0
        assert engine.batch_get_v1(keys, slots([0])) == [False]
        assert engine.batch_set_v1(keys, slots([0])) == [False]
        assert engine.batch_set_v1(hashes(1), slots([99])) == [False]
        assert engine.batch_get_v1(hashes(2), slots([0])) == [False, False]
        assert engine.batch_get_v2([PoolTransfer(PoolName.SWA, slots([0]), hashes(1))]) == {
            PoolName.SWA: [False]
        }

    def test_before_a_host_pool_is_known(self, lab):
        backend = lab.module.KVFerryHiCache(storage_config(), {})
        assert backend.batch_exists(hashes(1)) == 0
        assert backend.clear()
        assert backend.batch_set(hashes(1), [_sglang.tensor(4)]) is False

    def test_a_page_of_another_size_is_not_taken(self, lab):
        engine, _ = saved(lab)
        name = next(iter(lab.store.objects))
        lab.store.objects[name] = lab.store.objects[name]._replace(data=b"short")
        assert engine.batch_get_v1(hashes(3), slots(range(3))) == [False, True, True]

    def test_settings_that_are_wrong_are_refused(self, lab):
        with pytest.raises(ConfigError, match=r"store\.dram"):
            lab.engine(extra={"store.drm": 1})

    def test_a_version_that_is_not_supported_is_refused(self, monkeypatch):
        _sglang.install(monkeypatch, version="0.6.0")
        with pytest.raises(Exception, match=r"0\.6\.0"):
            importlib.import_module("kvferry_sglang.hicache")


class TestSeveralPools:
    def engine(self, lab, side=None):
        return lab.engine(
            side=side or {PoolName.SWA: HostPool("layer_first"), PoolName.MAMBA: HostPool(page=1)}
        )

    def test_prefixes_that_can_be_taken_up_again(self, lab):
        engine = self.engine(lab)
        engine.batch_set_v1(hashes(6), slots(range(6)))
        done = engine.batch_set_v2(
            [
                PoolTransfer(PoolName.SWA, slots([0, 1, 2]), hashes(6)[1:4]),
                PoolTransfer(PoolName.MAMBA, slots([0], 1), [hashes(6)[2]]),
                PoolTransfer(PoolName.MAMBA, slots([1], 1), [hashes(6)[3]]),
            ]
        )
        assert done == {PoolName.SWA: [True] * 3, PoolName.MAMBA: [True]}
        swa = PoolTransfer(PoolName.SWA, keys=["", ""], hit_policy="trailing_pages")
        mamba = PoolTransfer(PoolName.MAMBA, keys=[""], hit_policy="trailing_pages")
        assert engine.batch_exists_v2(hashes(8), [swa]).restorable_prefix_pages == [3, 4]
        found = engine.batch_exists_v2(hashes(8), [swa, mamba])
        assert found.kv_hit_pages == 4
        assert found.extra_pool_hit_pages == {PoolName.KV: 6, PoolName.SWA: 4, PoolName.MAMBA: 4}
        assert found.restorable_prefix_pages == [3, 4]
        assert engine.batch_exists_v2(hashes(2)[:1], [swa]).restorable_prefix_pages == []

    def test_a_pool_that_comes_twice_has_all_or_nothing(self, lab):
        engine = self.engine(lab)
        right = PoolTransfer(PoolName.SWA, slots([0]), hashes(1))
        wrong = PoolTransfer(PoolName.SWA, slots([99]), hashes(2)[1:])
        assert engine.batch_set_v2([wrong, right]) == {PoolName.SWA: [False]}
        assert engine.batch_set_v2([right, wrong]) == {PoolName.SWA: [False]}
        assert engine.batch_set_v2([right, right]) == {PoolName.SWA: [True]}
        assert engine.batch_get_v2([wrong, right]) == {PoolName.SWA: [False]}

    def test_a_pool_that_needs_all_pages(self, lab):
        engine = self.engine(lab)
        engine.batch_set_v1(hashes(4), slots(range(4)))
        engine.batch_set_v2([PoolTransfer(PoolName.SWA, slots([0, 1]), hashes(2))])
        found = engine.batch_exists_v2(hashes(4), [PoolTransfer(PoolName.SWA)])
        assert (found.kv_hit_pages, found.restorable_prefix_pages) == (2, [1, 2])

    def test_groups_of_blocks_are_no_condition(self, lab):
        engine = self.engine(lab)
        engine.batch_set_v1(hashes(2), slots([0, 1]))
        found = engine.batch_exists_v2(hashes(2), [PoolTransfer(PoolName.SWA, hit_policy="block_groups")])
        assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (2, {PoolName.KV: 2})

    def test_nothing_is_there(self, lab):
        found = self.engine(lab).batch_exists_v2(hashes(2), [PoolTransfer(PoolName.SWA)])
        assert (found.kv_hit_pages, found.restorable_prefix_pages) == (0, [])

    def test_bytes_of_side_pools(self, lab):
        side = HostPool("layer_first")
        engine = self.engine(lab, {PoolName.SWA: side})
        side.fill(2, 7)
        engine.batch_set_v2([PoolTransfer(PoolName.SWA, slots([2]), hashes(1))])
        there = side.page_bytes(2)
        assert engine.batch_get_v2([PoolTransfer(PoolName.SWA, slots([5]), hashes(1))]) == {
            PoolName.SWA: [True]
        }
        assert side.page_bytes(5) == there
        # of the same name in another pool it is something else
        assert engine.batch_get_v1(hashes(1), slots([0])) == [False]

    def test_states_are_each_ranks_own_though_the_cache_is_not(self, lab, monkeypatch):
        monkeypatch.setattr(PagePool, "embedded", False)
        first, second = (
            lab.engine(side={PoolName.MAMBA: HostPool(page=1)}, is_mla_model=True, tp_rank=rank, tp_size=2)
            for rank in range(2)
        )
        first.batch_set_v1(hashes(1), slots([0]))
        first.batch_set_v2([PoolTransfer(PoolName.MAMBA, slots([0], 1), hashes(1))])
        wanted = [PoolTransfer(PoolName.MAMBA, keys=[""], hit_policy="trailing_pages")]
        assert first.batch_exists_v2(hashes(1), wanted).kv_hit_pages == 1
        assert second.batch_exists_v2(hashes(1), wanted).kv_hit_pages == 0
        assert second.batch_exists(hashes(1)) == 1


class TestBuffers:
    def engine(self, lab):
        return lab.engine(extra={"interface_v1": 0})

    def test_pages_by_buffers(self, lab):
        engine = self.engine(lab)
        values = [np.full(16, number, np.uint8).view(_sglang.Tensor) for number in range(2)]
        assert engine.batch_set(hashes(2), values)
        assert engine.batch_exists(hashes(3)) == 2
        assert engine.exists(hashes(1)[0])
        targets = [_sglang.tensor(16) for _ in range(3)]
        found = engine.batch_get(hashes(3), targets)
        assert [each is not None for each in found] == [True, True, False]
        assert [bytes(each) for each in found[:2]] == [bytes(each) for each in values]
        assert engine.get("ab" * 32, _sglang.tensor(16)) is None
        assert engine.set("ab" * 32, values[0])
        assert engine.get("ab" * 32, _sglang.tensor(16)) is not None

    def test_they_are_not_those_by_pieces(self, lab):
        saved(lab)
        assert self.engine(lab).batch_exists(hashes(3)) == 0

    def test_trouble(self, lab):
        engine = self.engine(lab)
        lab.store.down = UnavailableError("no node")
        assert engine.batch_set(hashes(1), [_sglang.tensor(4)]) is False
        assert engine.batch_get(hashes(1), [_sglang.tensor(4)]) == [None]
        assert engine.batch_get(hashes(1), None) == [None]


class TestAdministration:
    def test_clear_removes_what_is_this_engines(self, lab):
        engine, _ = saved(lab, side={PoolName.SWA: HostPool()})
        engine.batch_set_v2([PoolTransfer(PoolName.SWA, slots([0]), hashes(1))])
        other = lab.engine(model_name="n")
        other.batch_set_v1(hashes(1), slots([0]))
        assert engine.clear()
        assert engine.batch_exists(hashes(3)) == 0
        assert other.batch_exists(hashes(1)) == 1
        assert len(lab.store.objects) == 1
        lab.store.down = UnavailableError("no node")
        assert not engine.clear()

    def test_statistics_are_told_once(self, lab):
        engine, _ = saved(lab)
        engine.batch_get_v1(hashes(4), slots(range(4)))
        stats = engine.get_stats()
        assert (stats.backup_pgs, stats.prefetch_pgs) == ([3], [3])
        assert stats.backup_bandwidth[0] > 0
        assert engine.get_stats().backup_pgs == []

    def test_counts_are_among_sglangs_metrics(self, lab):
        import prometheus_client

        def count(name, **labels):
            return (
                prometheus_client.REGISTRY.get_sample_value(f"sglang:kvferry_pool_{name}_total", labels) or 0
            )

        engine, _ = saved(lab)
        engine.get_stats()
        before = count("saved_blocks", outcome="existed"), count("load_failures", code="internal")
        engine.batch_set_v1(hashes(3), slots(range(3)))
        engine.batch_get_v1(hashes(1), slots([99]))
        engine.get_stats()
        assert count("saved_blocks", outcome="existed") == before[0] + 3
        assert count("load_failures", code="internal") == before[1] + 1

    def test_closed_for_good(self, lab):
        engine, _ = saved(lab)
        engine.close()
        engine.close()
        assert lab.store.closed
        assert engine.batch_exists(hashes(3)) == 0
