"""Both halves of one vLLM engine with one worker, on stand-ins: vLLM's shapes, the fake transfer engine, and
a fake store if it pools."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from _pool import at_once
from _vllm_shapes import BLOCK, NUM_BLOCKS, kv_cache_config, kv_caches, vllm_config
from kvferry.config import load_config
from kvferry.layout import KVGeometry, cache_memory
from kvferry.pool import GroupShape, Lookups, PoolKeys, PoolLimits, PoolScheduler, PoolWorker, identity_of
from kvferry.testing import FakeNetwork
from kvferry.testing.fake_store import FakeStore
from kvferry.worker import Ended, WorkerHalf
from kvferry_vllm.geometry import Ranks, build_geometry
from kvferry_vllm.scheduler import EngineFacts, SchedulerHalf


def geometry_of(caches: Any, *specs: Any, config: Any = None, **changes: Any) -> KVGeometry:
    """The geometry of caches of these specs; of one rank with opaque blocks, unless `changes` say else."""
    values = {"ranks": Ranks(), "instruction_set": "AVX2", "measure": lambda _block: "OPAQUE", **changes}
    groups = kv_cache_config(*specs, layers=len(caches) // max(1, len(specs)))
    return build_geometry(config or vllm_config(), groups, cache_memory(caches), **values)


class BlockPool:
    """vLLM's block pool, as far as saves use it."""

    def __init__(self, count: int) -> None:
        self.blocks = [SimpleNamespace(block_id=index, ref_cnt=1) for index in range(count)]

    def touch(self, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt -= 1

    def held(self) -> list[int]:
        return [block.block_id for block in self.blocks if block.ref_cnt > 1]


class VllmEngine:
    """One engine; `store`: it pools, in the calling thread. `transfer`: its transfer engine."""

    def __init__(
        self,
        network: FakeNetwork,
        store: FakeStore | None = None,
        *,
        save_generated: bool = True,
        **options: object,
    ) -> None:
        self.caches = kv_caches()
        self.block_pool = BlockPool(NUM_BLOCKS)
        geometry = geometry_of(self.caches)
        config = load_config(options, environ={})

        def make_engine(_options: Any, metadata: bytes) -> Any:
            self.transfer = network.engine(metadata)
            return self.transfer

        def make_pool(_config: Any, blocks: Any, _buffers: Any, *, rank: int) -> Any:
            worker = PoolWorker(
                lambda: store, blocks, rank=rank, loads=at_once, saves=at_once, limits=PoolLimits()
            )
            return SimpleNamespace(worker=worker, start_loads=worker.start_loads, close=lambda: None)

        self.worker = WorkerHalf(
            config, pools=store is not None, make_engine=make_engine, make_pool=make_pool
        )
        self.scheduler = SchedulerHalf(
            EngineFacts("e", (BLOCK,), True, True, config.handoff.lease_s, save_generated)
        )
        self.scheduler.set_workers({0: self.worker.register(cache_memory(self.caches), geometry)})
        if store is not None:
            keys = PoolKeys(identity_of(geometry, hashing="sha256"), [GroupShape(BLOCK)])
            lookups = Lookups(lambda: store, keys.groups, ranks=1, submit=at_once, timeout_s=1.0)
            front = SimpleNamespace(scheduler=PoolScheduler(keys, lookups, max_held=0), close=lambda: None)
            self.scheduler.set_pool(front, self.block_pool, 1.0)

    def step(self, scheduled: dict[str, int] | None = None, blocks: list[int] | None = None) -> Ended:
        """A step that computes so many tokens of each request, which have these blocks."""
        state = SimpleNamespace(get_block_ids=lambda _: (blocks,))
        self.scheduler.scheduled(
            SimpleNamespace(num_scheduled_tokens=scheduled or {}, kv_connector_block_state=state)
        )
        orders = self.scheduler.take_orders()
        self.worker.start_step(orders)
        self.worker.end_step(orders)
        ended = self.worker.take_ended()
        self.scheduler.planner.loads_ended(ended.received, ended.failed)
        return ended

    def until(self, what: Callable[[Ended], bool], timeout_s: float = 10.0) -> Ended:
        """Step until `what(ended)` is true; return the ended that made it so."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            ended = self.step()
            if what(ended):
                return ended
            time.sleep(0.005)
        raise AssertionError("not within the time allowed")

    def report_saved(self) -> None:
        """Tell the scheduler which saves ended."""
        saved = self.worker.take_saved()
        self.scheduler.planner.saves_ended({} if saved is None else saved.ended)

    def block(self, block: int) -> np.ndarray:
        """The content of a block, by layer."""
        return np.stack([tensor.array[block] for tensor in self.caches.values()])

    def close(self) -> None:
        self.worker.close()
        self.scheduler.planner.close()
