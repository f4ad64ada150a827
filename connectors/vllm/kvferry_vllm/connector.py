"""`KVFerryConnector`, the class that vLLM loads: forwards each call to the scheduler or the worker half."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvferry.config import apply_log_options, explain_changes, load_config
from kvferry.errors import ConfigError
from kvferry.handoff import WorkerAddress
from kvferry.layout import KVGeometry, cache_memory
from kvferry.pool import GroupShape, PoolFront, PoolKeys, SavedCounts, identity_of
from kvferry.worker import StepOrders, WorkerHalf, WorkerStats
from kvferry_vllm import _support
from kvferry_vllm.cpu_layout import measure_layout
from kvferry_vllm.geometry import Ranks, build_geometry
from kvferry_vllm.scheduler import EngineFacts, SchedulerHalf
from kvferry_vllm.specs import reads_ahead, window_of, withheld_tokens
from kvferry_vllm.stats import KVFerryPromMetrics, KVFerryStats

_support.check_version(vllm.__version__)

logger = logging.getLogger("kvferry.vllm")


@dataclass
class KVFerryConnectorMetadata(KVConnectorMetadata):
    """One step's orders, scheduler to workers."""

    orders: StepOrders


@dataclass
class KVFerryHandshakeMetadata(KVConnectorHandshakeMetadata):
    """Where a worker's transfer engine is, and what its KV cache looks like, worker to scheduler."""

    address: WorkerAddress
    geometry: KVGeometry


@dataclass
class KVFerryWorkerMetadata(KVConnectorWorkerMetadata):
    """Which saves ended in a step, workers to scheduler."""

    saved: SavedCounts

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Add another worker's."""
        if isinstance(other, KVFerryWorkerMetadata):
            return KVFerryWorkerMetadata(self.saved.plus(other.saved))
        return self


class KVFerryConnector(KVConnectorBase_V1, SupportsHMA):
    """Prefill/decode disaggregation, where the decode engine pulls a prompt's KV cache from the prefill
    engine, and a pool of prefixes that engines share."""

    _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """Check that the engine's set-up is supported and read the options.

        Raises UnsupportedError or ConfigError, with one sentence each.
        """
        super().__init__(vllm_config, role, kv_cache_config)
        _support.check_config(vllm_config)
        _support.check_groups(kv_cache_config)
        transfer_config = vllm_config.kv_transfer_config
        self._config = load_config(
            transfer_config.kv_connector_extra_config, overrides_source="kv_connector_extra_config"
        )
        apply_log_options(self._config.log, own_process=False)
        logger.info("settings: %s", explain_changes(self._config))
        # vLLM's scheduler reads this right after it has made its connector; its default is to fail requests.
        transfer_config.kv_load_failure_policy = self._config.handoff.load_failure
        self._pools = _support.pools(self._config.pool.enabled, vllm_config, kv_cache_config)
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        self._handshake: KVFerryHandshakeMetadata | None = None
        self._block_pool: Any = None
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerHalf(
                EngineFacts(
                    engine_id=transfer_config.engine_id,
                    block_tokens=tuple(
                        group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups
                    ),
                    is_producer=transfer_config.is_kv_producer,
                    is_consumer=transfer_config.is_kv_consumer,
                    lease_s=self._config.handoff.lease_s,
                    save_generated=self._config.pool.save_generated,
                    announces=_support.announces(vllm_config, kv_cache_config),
                    withheld=withheld_tokens(kv_cache_config, vllm_config),
                )
            )
        else:
            self._worker = WorkerHalf(self._config, pools=self._pools)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Say no: what a graph does not announce is read after the step.

        vLLM asks this as it makes its configuration, long before it loads a model: so that is when a wrong
        option is refused. Raises ConfigError.
        """
        load_config(extra_config, overrides_source="kv_connector_extra_config")
        return False

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Ask for layers that are one run of memory each; latent caches (MLA) are in any layout."""
        model = vllm_config.model_config
        return None if model is None or model.use_mla else "LBHNC"

    # Worker side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Register the KV cache with the transfer engine. Raises KVFerryError: the engine does not start."""
        memory = cache_memory(kv_caches)
        geometry = build_geometry(
            self._vllm_config,
            self._kv_cache_config,
            memory,
            ranks=Ranks(get_tensor_model_parallel_rank(), get_pp_group().rank_in_group),
            instruction_set=torch.backends.cpu.get_cpu_capability(),
            measure=measure_layout,
        )
        address = self._worker_half().register(memory, geometry)
        self._handshake = KVFerryHandshakeMetadata(address, geometry)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Tell the scheduler half where this worker is."""
        return self._handshake

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Take the step's orders; those about its own computation come before it computes."""
        super().bind_connector_metadata(connector_metadata)
        self._worker_half().begin_step(self._orders())

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Carry out the step's orders; loads go on in threads of their own."""
        self._worker_half().start_step(self._orders())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: a request is scheduled only after its load has ended."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Announce the layer to those who follow a prompt of this step. Its memory is the host's, written
        when the attention returns; the message is sent by another thread."""
        if self._worker is not None:
            self._worker.layer_written(layer_name)

    def wait_for_save(self) -> None:
        """Begin to save the blocks that the step has filled; vLLM keeps them until `update_connector_output`
        hears that they are saved."""
        self._worker_half().end_step(self._orders())

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Report which saves ended."""
        saved = self._worker_half().take_saved()
        return None if saved is None else KVFerryWorkerMetadata(saved)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Report what ended: requests whose leases ended, and loads. A failed load names the request, which
        vLLM then computes from its local prefix hit on; no part of an unconfirmed load is used."""
        ended = self._worker_half().take_ended()
        return KVConnectorTransferResults(
            finished_sending=ended.sent, finished_recving=ended.received, failed_recving=ended.failed
        )

    # Scheduler side

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Take vLLM's block pool, which keeps blocks while they are being saved."""
        self._block_pool = gpu_block_pool

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Take the workers' addresses, by stage and tensor-parallel rank, and begin to pool."""
        ours = {rank: item for rank, item in metadata.items() if isinstance(item, KVFerryHandshakeMetadata)}
        self._scheduler_half().set_workers(
            {rank: item.address for rank, item in ours.items()}, stages=len({stage for stage, _ in ours}) or 1
        )
        if self._pools and ours:
            front = PoolFront(self._config, self._pool_keys(ours[min(ours)].geometry))
            self._scheduler_half().set_pool(front, self._block_pool, self._config.pool.max_held)

    def _pool_keys(self, geometry: KVGeometry) -> PoolKeys:
        _, hash_tokens = resolve_kv_cache_block_sizes(self._kv_cache_config, self._vllm_config)
        specs = [group.kv_cache_spec for group in self._kv_cache_config.kv_cache_groups]
        identity = identity_of(
            geometry,
            hashing=f"vllm/{self._vllm_config.cache_config.prefix_caching_hash_algo}/{hash_tokens}",
            namespace=self._config.pool.namespace,
            tenant=self._config.store.tenant,
        )
        open_end = reads_ahead(self._vllm_config)
        shapes = [
            GroupShape(spec.block_size, spec.block_size // hash_tokens, window_of(spec), open_end)
            for spec in specs
        ]
        return PoolKeys(identity, shapes, secret=self._config.transfer.cluster_secret)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """A load restores the request's own blocks in every group that takes part in transfers."""
        groups: tuple[int, ...] = self._kv_cache_config.transfer_group_ids
        return groups

    def on_new_request(self, request: Any) -> None:
        """See `SchedulerHalf.on_new_request`."""
        self._scheduler_half().on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """See `SchedulerHalf.matched_tokens`."""
        return self._scheduler_half().matched_tokens(request, num_computed_tokens)

    def get_external_cache_hit_sources(
        self, request: Any, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        """Split a load between the pool, which counts as the host's memory, and a prefill engine."""
        pooled = min(self._scheduler_half().planner.pooled_tokens(request.request_id), num_external_tokens)
        split = {CacheHitSource.HOST: pooled, CacheHitSource.P2P: num_external_tokens - pooled}
        return {source: count for source, count in split.items() if count}

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """See `SchedulerHalf.after_alloc`."""
        self._scheduler_half().after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Hand the step's orders to the workers."""
        self._scheduler_half().scheduled(scheduler_output)
        return KVFerryConnectorMetadata(self._scheduler_half().take_orders())

    def update_connector_output(self, connector_output: Any) -> None:
        """Take note of ended loads and saves."""
        planner = self._scheduler_half().planner
        planner.loads_ended(
            set(connector_output.finished_recving or ()), set(connector_output.failed_recving or ())
        )
        if isinstance(connector_output.kv_connector_worker_meta, KVFerryWorkerMetadata):
            planner.saves_ended(connector_output.kv_connector_worker_meta.saved.ended)

    def has_pending_push_work(self) -> bool:
        """Keep an idle engine stepping while blocks are being saved: it hears of their end in a step."""
        return self._scheduler_half().planner.saves_pending

    def reset_cache(self) -> bool | None:
        """Remove this model's blocks from the pool, for all engines that share them."""
        return self._scheduler_half().planner.forget_pool()

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """See `SchedulerHalf.request_finished`; vLLM calls this one whatever the number of groups."""
        return self._scheduler_half().request_finished(request, block_ids)

    # Both sides

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """Return what happened since the last call, None if nothing did."""
        if self._worker is not None:
            taken = self._worker.take_stats()
        else:
            handoff, pool = self._scheduler_half().planner.take_counts()
            taken = WorkerStats([], handoff, [], pool)
        if not any(taken):  # as after most steps
            return None
        stats = KVFerryStats.of(*taken)
        return None if stats.is_empty() else stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        """Rebuild statistics that came from another process."""
        return KVFerryStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics | None:
        """Register our metrics with vLLM's."""
        return KVFerryPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Stop threads and connections; idempotent."""
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.planner.close()

    def _orders(self) -> StepOrders:
        metadata = self._get_connector_metadata()
        if not isinstance(metadata, KVFerryConnectorMetadata):
            raise TypeError(f"expected KVFerryConnectorMetadata, got {type(metadata).__name__}")
        return metadata.orders

    def _scheduler_half(self) -> SchedulerHalf:
        if self._scheduler is None:
            raise ConfigError("a scheduler-side method of KVFerryConnector was called in a worker")
        return self._scheduler

    def _worker_half(self) -> WorkerHalf:
        if self._worker is None:
            raise ConfigError("a worker-side method of KVFerryConnector was called in the scheduler")
        return self._worker
