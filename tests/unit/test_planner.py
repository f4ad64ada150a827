"""What of a prompt is loaded from where; no engine takes part."""

from __future__ import annotations

import secrets
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from _pool import BLOCK, Later, at_once, hashes, keys
from kvferry.handoff import HandoffScheduler, Prompt, WorkerAddress
from kvferry.planner import StepPlanner
from kvferry.pool import Lookups, PoolScheduler, names_of
from kvferry.store import Runs
from kvferry.testing.fake_store import FakeStore

TOKENS = list(range(30))
HASHES = hashes(TOKENS)
IDS = [list(range(40, 48))]


def handoff() -> HandoffScheduler:
    scheduler = HandoffScheduler("e", block_tokens=(BLOCK,), is_consumer=True, lease_s=30.0)
    scheduler.set_workers([WorkerAddress(secrets.token_hex(16), "127.0.0.1:1")])
    return scheduler


class Rig:
    """A planner whose pool holds the first `pooled` blocks of the prompt."""

    def __init__(self, pooled: int = 0, *, pools: bool = True, submit=at_once) -> None:
        self.handoff = handoff()
        self.planner = StepPlanner(self.handoff)
        self.closed = 0
        if pools:
            made, store = keys(), FakeStore()
            names = names_of(made.of_blocks(0, HASHES)[:pooled], [0])
            empty = np.zeros(0, np.uint64)
            store.put_runs(names, Runs(empty, empty, np.zeros(pooled, np.int64), []), parents=[b""] * pooled)
            lookups = Lookups(lambda: store, made.groups, ranks=1, submit=submit, timeout_s=60.0)
            front = SimpleNamespace(
                scheduler=PoolScheduler(made, lookups, max_held=0), close=self._close, forget=lambda: True
            )
            self.planner.set_pool(front, lambda _: None, lambda _: None, max_held=100)

    def _close(self) -> None:
        self.closed += 1

    def arrived(self, prefilled: int = 0) -> None:
        """A prompt comes, of which a prefill engine has the first tokens."""
        params = None
        if prefilled:
            there = handoff()
            prompt = Prompt("p", TOKENS, len(TOKENS), (), {"do_remote_decode": True})
            params = there.lease(prompt, prefilled, [list(range(8))])
        self.handoff.arrived(Prompt("r", TOKENS, len(TOKENS), (), params))
        self.planner.arrived("r", HASHES)

    def asked(self, num_computed: int = 0) -> int | None:
        return self.planner.matched_tokens("r", HASHES, num_tokens=len(TOKENS), num_computed=num_computed)


@pytest.mark.parametrize(
    ("pooled", "prefilled", "computed", "wanted", "from_pool", "from_prefill"),
    [
        (0, 0, 0, 0, 0, 0),
        (3, 0, 0, 12, 12, 0),
        (3, 0, 8, 4, 4, 0),
        (3, 0, 12, 0, 0, 0),
        (0, 30, 0, 30, 0, 30),
        (3, 30, 4, 26, 8, 18),
        (3, 30, 16, 14, 0, 14),  # more is here than in the pool
        (7, 30, 0, 30, 28, 2),
        (7, 30, 28, 2, 0, 2),
        (7, 30, 29, 0, 0, 0),  # the last token is computed in any case
    ],
)
def test_each_token_comes_from_one_place(pooled, prefilled, computed, wanted, from_pool, from_prefill):
    rig = Rig(pooled)
    rig.arrived(prefilled)
    assert rig.asked(computed) == wanted
    rig.planner.after_alloc("r", wanted, lambda: IDS)
    assert rig.planner.pooled_tokens("r") == from_pool
    orders = rig.planner.take_orders(idle=True)
    assert orders.idle
    assert [len(load.spans[0].keys) * BLOCK for load in orders.pool.loads] == [from_pool] * bool(from_pool)
    loads = [(load.first_token, load.num_tokens) for load in orders.handoff.loads]
    assert loads == [(computed + from_pool, from_prefill)] * bool(from_prefill)
    given_back = prefilled and not from_prefill
    assert [back.reason for back in orders.handoff.give_backs] == ["done"] * bool(given_back)


def test_an_engine_that_allocates_less_than_it_was_offered():
    rig = Rig(3)
    rig.arrived(30)
    assert rig.asked() == 30
    rig.planner.after_alloc("r", 8, lambda: IDS)
    orders = rig.planner.take_orders(idle=False)
    assert [len(load.spans[0].keys) for load in orders.pool.loads] == [2]
    assert (len(orders.handoff.loads), len(orders.handoff.give_backs)) == (0, 1)


def test_ask_again_while_the_pool_has_not_answered():
    later = Later()
    rig = Rig(3, submit=later.submit)
    rig.arrived(30)
    assert rig.asked() is None
    later.run_all()
    assert rig.asked() == 30


def test_a_step_without_anything_to_do_waits_for_an_answer(monkeypatch):
    later = Later()
    rig = Rig(3, submit=later.submit)
    rig.arrived()
    assert rig.asked() is None
    rig.planner.take_orders(idle=False)  # a step that computes does not wait
    assert rig.asked() is None
    monkeypatch.setattr("kvferry.pool.lookup.GRACE_S", 600.0)
    timer = threading.Timer(0.05, later.run_all)
    timer.start()
    rig.planner.take_orders(idle=True)
    assert rig.asked() == 12
    rig.planner.after_alloc("r", 12, lambda: IDS)
    rig.planner.take_orders(idle=True)  # a load begins: that is not held up, nor is there anybody to wait for
    timer.join(60.0)


def test_without_a_pool():
    rig = Rig(pools=False)
    assert not rig.planner.pools
    rig.arrived(30)
    assert rig.asked() == 30
    rig.planner.after_alloc("r", 30, lambda: IDS)
    rig.planner.computes("r", HASHES, 30, lambda: IDS)
    orders = rig.planner.take_orders(idle=False)
    assert (orders.pool, len(orders.handoff.loads)) == (None, 1)
    rig.planner.finished("r")
    assert rig.planner.take_orders(idle=False).handoff.cancels == ("r",)
    assert not rig.planner.saves_pending
    assert rig.planner.forget_pool()
    rig.planner.saves_ended({1: 1})
    rig.planner.close()
    assert rig.planner.take_counts() == ({}, {})


def test_a_request_that_ends_leaves_nothing_behind():
    rig = Rig(3)
    rig.arrived()
    assert rig.asked() == 12
    rig.planner.after_alloc("r", 12, lambda: IDS)
    rig.planner.take_orders(idle=False)
    rig.planner.finished("r", HASHES, 0)
    assert rig.planner.take_orders(idle=False).pool.cancels == ("r",)
    assert rig.planner.pooled_tokens("r") == 0
    rig.planner.close()
    assert rig.closed == 1
