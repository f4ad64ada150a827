"""The worker half: owns the transfer engine, registers the KV cache, carries orders out, reports what ended.

Runs in the model runner's step: `start_step` and `take_ended` only queue and collect. Free of vLLM imports.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kvferry.config import Config
from kvferry.errors import KVFerryError
from kvferry.handoff import HandoffWorker, LoadResult
from kvferry.layout import KVGeometry
from kvferry.transfer import Engine
from kvferry_vllm.geometry import LayerMemory
from kvferry_vllm.metadata import StepOrders
from kvferry_vllm.scheduler import WorkerAddress

logger = logging.getLogger("kvferry.vllm.worker")


class Ended(NamedTuple):
    """Request ids whose transfers ended since the last step; each id appears once in its life."""

    sent: set[str]
    received: set[str]  # failed ones included
    failed: set[str]


class WorkerHalf:
    """One per worker process. `make_engine` is replaceable for tests."""

    def __init__(self, config: Config, *, make_engine: Callable[..., Any] = Engine) -> None:
        self._config = config
        self._make_engine = make_engine
        self._engine: Any = None
        self._handoff: HandoffWorker | None = None
        self._results: list[LoadResult] = []  # for the statistics

    def register(self, layers: list[LayerMemory], geometry: KVGeometry) -> WorkerAddress:
        """Register the KV cache and start serving. Raises KVFerryError when the engine cannot be set up."""
        self._engine = self._make_engine(self._config.transfer, metadata=geometry.encode())
        regions = {
            layer.name: self._engine.register(layer.tensor, name=layer.name, access="r").id
            for layer in layers
        }
        self._handoff = HandoffWorker(
            self._engine,
            geometry,
            regions,
            self._config.handoff,
            allow_remote=bool(self._config.transfer.cluster_secret),
            summary_interval_s=self._config.log.summary_interval_s,
        )
        address = WorkerAddress(self._engine.node_id, str(self._engine.endpoint))
        logger.info(
            "KVFerry node %s serves %d layers, %.1f MiB of KV cache, at %s",
            address.node_id[:12],
            len(layers),
            sum(layer.length_bytes for layer in layers) / 2**20,
            address.endpoint,
        )
        return address

    def start_step(self, orders: StepOrders) -> None:
        """Carry out the scheduler's orders; returns at once."""
        handoff = self._started()
        handoff.table.admit(orders.authority, orders.issued_through, orders.leases)
        for watch in orders.watches:
            handoff.consumer.watch(watch.request_id, watch.address)
        for load in orders.loads:
            handoff.consumer.submit(load)
        for give_back in orders.give_backs:
            if self._engine.node_id in give_back.address.node_ids:
                handoff.table.release(give_back.address.lease, give_back.reason)
            else:
                handoff.consumer.release(give_back.request_id, give_back.address, give_back.reason)
        for request_id in orders.cancels:
            handoff.consumer.cancel(request_id)

    def take_ended(self) -> Ended:
        """Return what ended since the last call."""
        handoff = self._started()
        results = handoff.take_results()
        self._results += results
        received = {result.request_id for result in results}
        failed = {result.request_id for result in results if result.error is not None}
        return Ended(handoff.table.take_ended(), received, failed)

    def take_stats(self) -> tuple[list[LoadResult], Mapping[str, int]]:
        """Return the loads that ended, and what was counted, since the last call."""
        results, self._results = self._results, []
        return results, self._started().take_counts()

    def close(self) -> None:
        """Stop serving and free everything; idempotent."""
        handoff, self._handoff = self._handoff, None
        engine, self._engine = self._engine, None
        if handoff is not None:
            handoff.close()
        if engine is not None:
            engine.close()

    def _started(self) -> HandoffWorker:
        if self._handoff is None:
            raise KVFerryError("the KV cache has not been registered yet, or the connector is shut down")
        return self._handoff
