"""One worker process of an inference engine: owns the transfer engine, registers the KV cache, carries the
scheduler's orders out and reports what ended.

Runs in the model runner's step: `start_step` and `take_ended` only queue and collect.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from kvferry.config import Config
from kvferry.errors import KVFerryError
from kvferry.handoff import HandoffOrders, HandoffWorker, LoadResult, WorkerAddress
from kvferry.layout import CacheMemory, KVGeometry
from kvferry.pool import LoadParts, PoolBack, PoolLoad, PoolOrders, SavedCounts, memory_of
from kvferry.transfer import Engine

logger = logging.getLogger(__name__)

IDLE_WAIT_S = 0.005
IDLE_POLL_S = 0.0003


class StepOrders(msgspec.Struct, frozen=True):
    """What the scheduler tells its workers in one step; pickles. `pool` None: this engine does not pool.
    `idle`: nothing is computed in this step.
    """

    handoff: HandoffOrders
    pool: PoolOrders | None = None
    idle: bool = False

    @property
    def loads(self) -> bool:
        """Whether a load begins."""
        pooled = self.pool is not None and self.pool.loads
        return bool(pooled or self.handoff.loads or self.handoff.stream_loads)


class Ended(NamedTuple):
    """Request ids whose transfers ended since the last step; each id appears once in its life."""

    sent: set[str]
    received: set[str]  # failed ones included
    failed: set[str]


class WorkerStats(NamedTuple):
    """What happened since the last time it was asked for."""

    handoffs: list[LoadResult]
    handoff_counts: Mapping[str, int]
    pool_loads: list[PoolLoad]
    pool_counts: Mapping[str, int]


class WorkerHalf:
    """One per worker process. `make_engine` and `make_pool` are replaceable for tests; `pools`: whether this
    engine uses the pool."""

    def __init__(
        self,
        config: Config,
        *,
        pools: bool = False,
        make_engine: Callable[..., Any] = Engine,
        make_pool: Callable[..., Any] = PoolBack,
    ) -> None:
        self._config = config
        self._pools = pools
        self._make_engine = make_engine
        self._make_pool = make_pool
        self._engine: Any = None
        self._handoff: HandoffWorker | None = None
        self._pool: PoolBack | None = None
        self._parts = LoadParts()
        self._idle = False
        self._results: list[LoadResult] = []  # for the statistics
        self._pool_loads: list[PoolLoad] = []
        self._saved: SavedCounts | None = None  # taken, and to be reported

    def register(self, memory: CacheMemory, geometry: KVGeometry) -> WorkerAddress:
        """Register the KV cache and start serving. Raises KVFerryError when the engine cannot be set up."""
        self._engine = self._make_engine(self._config.transfer, metadata=geometry.encode())
        regions = {
            region.name: self._engine.register(region.tensor, name=region.name, access="r").id
            for region in memory.regions
        }
        self._handoff = HandoffWorker(
            self._engine,
            geometry,
            regions,
            self._config.handoff,
            allow_remote=bool(self._config.transfer.cluster_secret),
            summary_interval_s=self._config.log.summary_interval_s,
        )
        if self._pools:
            self._pool = self._make_pool(
                self._config,
                memory_of(memory, geometry),
                [region.tensor for region in memory.regions],
                rank=geometry.pp_rank * geometry.tp_size + geometry.tp_rank,
            )
        address = WorkerAddress(self._engine.node_id, str(self._engine.endpoint))
        logger.info(
            "KVFerry node %s serves %d layers, %.1f MiB of KV cache, at %s",
            address.node_id[:12],
            len(memory.places),
            sum(region.length_bytes for region in memory.regions) / 2**20,
            address.endpoint,
        )
        return address

    def begin_step(self, orders: StepOrders) -> None:
        """Take in what the step will compute of streamed prompts; to be called before it does."""
        self._started().begin_step(orders.handoff)

    def layer_written(self, name: str) -> None:
        """Let those who follow a prompt of this step read the layer."""
        if self._handoff is not None:
            self._handoff.streams.layer_written(name)

    def start_step(self, orders: StepOrders) -> None:
        """Carry out the scheduler's orders, except for saves; returns at once."""
        handoff = self._started()
        self._idle = orders.idle
        if orders.loads:  # in few steps, and this is in each one's way
            pooled = () if orders.pool is None else orders.pool.loads
            for loads in (orders.handoff.loads, orders.handoff.stream_loads, pooled):
                self._parts.begin(load.request_id for load in loads)
        handoff.carry_out(orders.handoff)
        if self._pool is not None and orders.pool is not None:
            self._pool.start_loads(orders.pool, idle=orders.idle)

    def end_step(self, orders: StepOrders) -> None:
        """Begin to save what the step computed, and announce it; returns at once."""
        self._started().streams.end_step()
        if self._pool is not None and orders.pool is not None:
            self._pool.worker.start_saves(orders.pool)

    def take_ended(self) -> Ended:
        """Return what ended since the last call.

        In a step that computes nothing, wait a moment for what is under way: an engine that steps on and on
        meanwhile takes the processor from the threads that it waits for.
        """
        ended = self._collect()
        if self._idle:
            until = time.monotonic() + IDLE_WAIT_S
            while not any(ended) and self._under_way() and time.monotonic() < until:
                time.sleep(IDLE_POLL_S)
                ended = self._collect()
        # Before the counts are taken: an engine that hears of a save has its count, and may step no more.
        if self._pool is not None and self._saved is None:
            self._saved = self._pool.worker.take_saved()
        return ended

    def _under_way(self) -> bool:
        return self._parts.pending or (self._pool is not None and self._pool.worker.saving)

    def _collect(self) -> Ended:
        handoff = self._started()
        results = handoff.take_results()
        pooled = [] if self._pool is None else self._pool.worker.take_results()
        if not results and not pooled:
            return Ended(handoff.table.take_ended(), set(), set())
        self._results += results
        self._pool_loads += pooled
        parts = [(result.request_id, result.error is not None) for result in results]
        parts += [(result.request_id, result.error is not None) for result in pooled]
        return Ended(handoff.table.take_ended(), *self._parts.end(parts))

    def take_saved(self) -> SavedCounts | None:
        """Return the saves that ended before the last `take_ended`, each once."""
        saved, self._saved = self._saved, None
        return saved

    def take_stats(self) -> WorkerStats:
        """Return what happened since the last call."""
        counts = {} if self._pool is None else self._pool.worker.take_counts()
        stats = WorkerStats(self._results, self._started().take_counts(), self._pool_loads, counts)
        self._results, self._pool_loads = [], []
        return stats

    def close(self) -> None:
        """Stop serving and free everything; idempotent."""
        pool, self._pool = self._pool, None
        handoff, self._handoff = self._handoff, None
        engine, self._engine = self._engine, None
        for part in (pool, handoff, engine):
            if part is not None:
                part.close()

    def _started(self) -> HandoffWorker:
        if self._handoff is None:
            raise KVFerryError("the KV cache has not been registered yet, or the connector is shut down")
        return self._handoff
