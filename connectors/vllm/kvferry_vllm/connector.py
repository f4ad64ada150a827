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
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvferry.config import apply_log_options, explain_changes, load_config
from kvferry.errors import ConfigError
from kvferry_vllm import _support
from kvferry_vllm.cpu_layout import measure_layout
from kvferry_vllm.geometry import build_geometry, layer_memories
from kvferry_vllm.metadata import StepOrders
from kvferry_vllm.scheduler import EngineFacts, SchedulerHalf, WorkerAddress
from kvferry_vllm.stats import KVFerryPromMetrics, KVFerryStats
from kvferry_vllm.worker import WorkerHalf

_support.check_version(vllm.__version__)

logger = logging.getLogger("kvferry.vllm")


@dataclass
class KVFerryConnectorMetadata(KVConnectorMetadata):
    """One step's orders, scheduler to workers."""

    orders: StepOrders


@dataclass
class KVFerryHandshakeMetadata(KVConnectorHandshakeMetadata):
    """Where a worker's transfer engine is, worker to scheduler."""

    address: WorkerAddress


class KVFerryConnector(KVConnectorBase_V1):
    """Prefill/decode disaggregation: the decode engine pulls a prompt's KV cache from the prefill engine."""

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
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        self._address: WorkerAddress | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerHalf(
                EngineFacts(
                    engine_id=transfer_config.engine_id,
                    block_size=kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size,
                    is_producer=transfer_config.is_kv_producer,
                    is_consumer=transfer_config.is_kv_consumer,
                    lease_s=self._config.handoff.lease_s,
                )
            )
        else:
            self._worker = WorkerHalf(self._config)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Ask for layers that are one run of memory each; latent caches (MLA) are in any layout."""
        model = vllm_config.model_config
        return None if model is None or model.use_mla else "LBHNC"

    # Worker side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Register the KV cache with the transfer engine. Raises KVFerryError: the engine does not start."""
        layers = layer_memories(kv_caches)
        geometry = build_geometry(
            self._vllm_config,
            self._kv_cache_config,
            layers,
            tp_rank=get_tensor_model_parallel_rank(),
            instruction_set=torch.backends.cpu.get_cpu_capability(),
            layout=measure_layout(next(iter(kv_caches.values()))[0]),
        )
        self._address = self._worker_half().register(layers, geometry)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Tell the scheduler half where this worker is."""
        return None if self._address is None else KVFerryHandshakeMetadata(self._address)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Carry out the step's orders; loads go on in threads of their own."""
        metadata = self._get_connector_metadata()
        if not isinstance(metadata, KVFerryConnectorMetadata):
            raise TypeError(f"expected KVFerryConnectorMetadata, got {type(metadata).__name__}")
        self._worker_half().start_step(metadata.orders)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: a request is scheduled only after its load has ended."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Do nothing: the decode engine reads the blocks when the prompt is finished."""

    def wait_for_save(self) -> None:
        """Do nothing: see `save_kv_layer`."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Report what ended: requests whose leases ended, and loads. A failed load names the request, which
        vLLM then computes from its local prefix hit on; no part of an unconfirmed load is used."""
        ended = self._worker_half().take_ended()
        return KVConnectorTransferResults(
            finished_sending=ended.sent, finished_recving=ended.received, failed_recving=ended.failed
        )

    # Scheduler side

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        """Take the workers' addresses, by tensor-parallel rank."""
        self._scheduler_half().set_workers(
            {
                rank: item.address
                for rank, item in metadata.items()
                if isinstance(item, KVFerryHandshakeMetadata)
            }
        )

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

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """See `SchedulerHalf.after_alloc`."""
        self._scheduler_half().after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Hand the step's orders to the workers."""
        return KVFerryConnectorMetadata(self._scheduler_half().take_orders())

    def update_connector_output(self, connector_output: Any) -> None:
        """Take note of ended loads."""
        self._scheduler_half().loads_ended(set(connector_output.finished_recving or ()))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """See `SchedulerHalf.request_finished`."""
        return self._scheduler_half().request_finished(request, block_ids)

    # Both sides

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """Return what happened since the last call, None if nothing did."""
        if self._worker is not None:
            stats = KVFerryStats.of(*self._worker.take_stats())
        else:
            stats = KVFerryStats.of((), self._scheduler_half().take_counts())
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

    def _scheduler_half(self) -> SchedulerHalf:
        if self._scheduler is None:
            raise ConfigError("a scheduler-side method of KVFerryConnector was called in a worker")
        return self._scheduler

    def _worker_half(self) -> WorkerHalf:
        if self._worker is None:
            raise ConfigError("a worker-side method of KVFerryConnector was called in the scheduler")
        return self._worker
