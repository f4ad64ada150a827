from __future__ import annotations

import pickle

import numpy as np
import pytest

from _pool import BLOCK, Later, at_once, hashes, keys
from kvferry.pool import GroupShape, LoadParts, Lookups, PoolScheduler, names_of
from kvferry.store import Runs
from kvferry.testing.fake_store import FakeStore

TOKENS = list(range(30))
HASHES = hashes(TOKENS)  # 7 whole blocks
BLOCKS = [[11, 12, 13, 14, 15, 16, 17, 18]]


class Rig:
    def __init__(self, *shapes, ranks=1, max_held=100, submit=at_once) -> None:
        self.store = FakeStore()
        self.keys = keys(*shapes, ranks=ranks)
        lookups = Lookups(lambda: self.store, self.keys.groups, ranks=ranks, submit=submit, timeout_s=5.0)
        self.scheduler = PoolScheduler(self.keys, lookups, max_held=0, node="there")
        self.held: list[int] = []
        self.scheduler.bind(self.held.extend, self.released, max_held=max_held)

    def released(self, block_ids) -> None:
        for block in block_ids:
            self.held.remove(block)

    def stored(self, blocks: int, group: int = 0) -> None:
        names = names_of(self.keys.of_blocks(group, HASHES)[:blocks], range(self.keys.ranks))
        empty = np.zeros(0, np.uint64)
        runs = Runs(empty, empty, np.zeros(len(names), np.int64), [])
        self.store.put_runs(names, runs, parents=[b""] * len(names))

    def computed(self, tokens: int, request: str = "r", blocks=BLOCKS) -> list:
        self.scheduler.computed(request, HASHES, tokens, lambda: blocks)
        return list(self.scheduler.take_orders().saves)


def test_load_what_is_stored_and_save_what_is_new():
    rig = Rig()
    rig.stored(3)
    rig.scheduler.arrived("r", HASHES)
    assert rig.scheduler.matched("r", HASHES) == 3 * BLOCK
    rig.scheduler.load("r", BLOCK, 2 * BLOCK, BLOCKS)  # the first block is in the engine's own cache
    orders = rig.scheduler.take_orders()
    (job,) = orders.loads
    (span,) = job.spans
    made = rig.keys.of_blocks(0, HASHES)
    assert (job.request_id, span.block_ids, span.keys) == ("r", (12, 13), tuple(made[1:3]))
    assert (orders.node, orders.tag) == ("there", rig.keys.tag)
    rig.scheduler.loads_ended({"r"}, set())
    (save,) = rig.computed(18)  # 4 blocks and a half
    assert save.spans[0].block_ids == (14,)
    assert save.spans[0].parents == (made[2],)
    assert rig.computed(19) == []
    (save,) = rig.computed(30)
    assert save.spans[0].block_ids == (15, 16, 17)
    assert sorted(rig.held) == [14, 15, 16, 17]
    assert rig.scheduler.saves_pending
    rig.scheduler.finished("r", HASHES, 30)
    rig.scheduler.saves_ended({1: 1, 2: 1, 77: 1})
    assert rig.held == []
    assert not rig.scheduler.saves_pending
    assert rig.scheduler.take_counts() == {"lookups|hit": 1}


def test_blocks_are_held_until_every_rank_has_saved_them():
    rig = Rig(ranks=2)
    rig.scheduler.arrived("r", HASHES)
    rig.computed(8)
    rig.scheduler.saves_ended({1: 1})
    assert rig.held == [11, 12]
    rig.scheduler.saves_ended({1: 1})
    assert rig.held == []


def test_a_block_that_another_request_is_saving_is_not_saved_twice():
    rig = Rig()
    for name in ("r", "s"):
        rig.scheduler.arrived(name, HASHES)
    assert len(rig.computed(8, "r")) == 1
    assert rig.computed(8, "s") == []
    (save,) = rig.computed(12, "s")
    assert save.spans[0].block_ids == (13,)


def test_only_so_many_blocks_are_held():
    rig = Rig(max_held=2)
    rig.scheduler.arrived("r", HASHES)
    assert len(rig.computed(8)) == 1
    assert rig.computed(16) == []
    rig.scheduler.saves_ended({1: 1})
    (save,) = rig.computed(17)
    assert save.spans[0].block_ids == (13, 14)
    rig.scheduler.finished("r", HASHES, 30)
    assert rig.scheduler.take_counts()["saved_blocks|skipped"] == 3


def test_a_step_that_fills_more_than_may_be_held_is_saved_bit_by_bit():
    rig = Rig(max_held=3)
    rig.scheduler.arrived("r", HASHES)
    (save,) = rig.computed(28)  # the whole prompt in one step
    assert save.spans[0].block_ids == (11, 12, 13)
    assert rig.computed(29) == []
    rig.scheduler.saves_ended({1: 1})
    (save,) = rig.computed(29)
    assert save.spans[0].block_ids == (14, 15, 16)
    rig.scheduler.saves_ended({2: 1})
    (save,) = rig.computed(30)
    assert save.spans[0].block_ids == (17,)
    rig.scheduler.finished("r", HASHES, 30)
    assert "saved_blocks|skipped" not in rig.scheduler.take_counts()


def test_what_does_not_fit_any_more_is_counted():
    rig = Rig(max_held=3)
    rig.scheduler.arrived("r", HASHES)
    assert len(rig.computed(30)) == 1
    rig.scheduler.finished("r", HASHES, 30)
    assert rig.scheduler.take_counts()["saved_blocks|skipped"] == 4


def test_several_groups_share_the_room():
    """Blocks of one size and of twice that: as many tokens of all of them as may be held."""
    rig = Rig(GroupShape(BLOCK), GroupShape(2 * BLOCK, hashes_per_block=2), max_held=4)
    rig.scheduler.arrived("r", HASHES)
    (save,) = rig.computed(28, blocks=[BLOCKS[0], [31, 32, 33, 34]])
    assert [span.block_ids for span in save.spans] == [(11, 12, 13), (31,)]
    rig.scheduler.saves_ended({1: 1})
    (save,) = rig.computed(28, blocks=[BLOCKS[0], [31, 32, 33, 34]])
    assert [span.block_ids for span in save.spans] == [(14, 15), (32,)]  # the next token would be two more


def test_an_engines_own_cache_fills_the_pool_again():
    """Blocks that the pool has lost are saved again when a request finds them in the engine."""
    rig = Rig()
    rig.stored(1)
    rig.scheduler.arrived("r", HASHES)
    assert rig.scheduler.matched("r", HASHES) == BLOCK
    (save,) = rig.computed(17)  # 16 tokens of it were not computed in this step
    assert save.spans[0].block_ids == (12, 13, 14)


def test_a_failed_load_is_not_tried_again_and_its_blocks_saved():
    rig = Rig()
    rig.stored(3)
    rig.scheduler.arrived("r", HASHES)
    rig.scheduler.matched("r", HASHES)
    rig.scheduler.load("r", 0, 3 * BLOCK, BLOCKS)
    rig.scheduler.loads_ended({"r", "unknown"}, {"r"})
    assert rig.scheduler.matched("r", HASHES) == 0
    (save,) = rig.computed(12)
    assert save.spans[0].block_ids == (11, 12, 13)


def test_a_preempted_request_asks_anew():
    rig = Rig()
    rig.scheduler.arrived("r", HASHES[:4])
    assert rig.scheduler.matched("r", HASHES[:4]) == 0
    rig.scheduler.load("r", 0, 0, BLOCKS)
    rig.scheduler.loads_ended({"r"}, set())
    rig.stored(6)
    assert rig.scheduler.matched("r", HASHES) == 6 * BLOCK


def test_aborted_while_it_asks_or_loads():
    later = Later()
    rig = Rig(submit=later.submit)
    rig.stored(3)
    rig.scheduler.arrived("asks", HASHES)
    assert rig.scheduler.matched("asks", HASHES) is None
    rig.scheduler.finished("asks")
    rig.scheduler.arrived("loads", HASHES)
    later.run_all()
    assert rig.scheduler.matched("loads", HASHES) == 3 * BLOCK
    rig.scheduler.load("loads", 0, 3 * BLOCK, BLOCKS)
    rig.scheduler.take_orders()
    rig.scheduler.finished("loads")
    assert rig.scheduler.take_orders().cancels == ("loads",)
    rig.scheduler.loads_ended({"loads"}, set())
    rig.scheduler.finished("loads")
    assert rig.computed(30, "loads") == []


def test_windows_load_and_save_what_they_still_have():
    rig = Rig(GroupShape(BLOCK), GroupShape(BLOCK, window_tokens=6))
    blocks = [[1, 2, 3, 4, 5], [0, 0, 6, 7, 8]]  # 0: left behind by the window
    rig.scheduler.arrived("r", HASHES)
    (save,) = rig.computed(20, blocks=blocks)
    assert [span.block_ids for span in save.spans] == [(1, 2, 3, 4, 5), (6, 7, 8)]
    rig.scheduler.load("r", 0, 16, blocks)
    (load,) = rig.scheduler.take_orders().loads
    assert [span.block_ids for span in load.spans] == [(1, 2, 3, 4), (6, 7)]
    assert sorted(rig.held) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_forgotten_blocks_are_saved_again():
    rig = Rig()
    rig.scheduler.arrived("r", HASHES)
    rig.computed(8)
    rig.scheduler.saves_ended({1: 1})
    rig.scheduler.forget_saved()
    (save,) = rig.computed(12)
    assert save.spans[0].block_ids == (11, 12, 13)


def test_orders_travel_between_processes():
    rig = Rig()
    rig.scheduler.arrived("r", HASHES)
    rig.scheduler.computed("r", HASHES, 8, lambda: BLOCKS)
    orders = rig.scheduler.take_orders()
    assert pickle.loads(pickle.dumps(orders)) == orders


class TestParts:
    def test_ended_with_the_last_part(self):
        parts = LoadParts()
        parts.begin(["a", "b"])
        parts.begin(["a"])
        assert parts.end([("a", False), ("b", True)]) == ({"b"}, {"b"})
        assert parts.end([("a", False)]) == ({"a"}, set())

    @pytest.mark.parametrize("order", [(True, False), (False, True), (True, True)])
    def test_one_failed_part_fails_all(self, order):
        parts = LoadParts()
        parts.begin(["a"])
        parts.begin(["a"])
        assert parts.end([("a", order[0])]) == (set(), set())
        assert parts.end([("a", order[1])]) == ({"a"}, {"a"})
        parts.begin(["a"])
        assert parts.end([("a", False)]) == ({"a"}, set())
