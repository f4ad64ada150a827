"""`KVFerryECConnector`: vLLM's encoder cache connector, translated to kvferry.encoder."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import torch
import vllm
from vllm.distributed.ec_transfer.ec_connector.base import (
    ECConnectorBase,
    ECConnectorMetadata,
    ECConnectorRole,
    ECConnectorWorkerMetadata,
)
from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from kvferry.config import apply_log_options, explain_changes, load_config
from kvferry.encoder import (
    EncodedTensor,
    EncoderIdentity,
    EncoderKeys,
    EncoderPlanner,
    EncoderReader,
    EncoderStep,
    EncoderWriter,
    Medium,
)
from kvferry.errors import InvalidArgumentError
from kvferry.pool import StoreLink
from kvferry.store import check_settings, open_store
from kvferry_vllm import _support
from kvferry_vllm.ec_stats import EncoderPromMetrics, EncoderStats

_support.check_version(vllm.__version__)

logger = logging.getLogger("kvferry.vllm.encoder")

# An engine that only loads has its images encoded elsewhere: their outputs may be on their way still.
ON_ITS_WAY_S = 0.2


@dataclass
class KVFerryECMetadata(ECConnectorMetadata):
    """One step's orders, scheduler to workers."""

    step: EncoderStep


@dataclass
class KVFerryECWorkerMetadata(ECConnectorWorkerMetadata):
    """What the workers counted, workers to scheduler."""

    stats: EncoderStats = field(default_factory=EncoderStats)

    def aggregate(self, other: ECConnectorWorkerMetadata) -> ECConnectorWorkerMetadata:
        """Add another worker's counts."""
        assert isinstance(other, KVFerryECWorkerMetadata)  # noqa: S101  (tells the type checker)
        self.stats.aggregate(other.stats)
        return self


class KVFerryECConnector(ECConnectorBase):
    """Encoder outputs are put into the store once, and loaded by every engine that sees the same image."""

    def __init__(self, vllm_config: Any, role: ECConnectorRole) -> None:
        """Read the options. Raises ConfigError, with one sentence; the store need not be there yet."""
        super().__init__(vllm_config, role)
        options = vllm_config.ec_transfer_config.ec_connector_extra_config
        config = load_config(options, overrides_source="ec_connector_extra_config")
        apply_log_options(config.log, own_process=False)
        logger.info("settings: %s", explain_changes(config))
        model = vllm_config.model_config
        identity = EncoderIdentity(
            model=model.model,
            revision=model.revision or "",
            dtype=str(model.dtype),
            tenant=config.store.tenant,
            settings={"quantization": str(model.quantization)},
        )
        keys = EncoderKeys(identity, secret=config.transfer.cluster_secret)
        self._wait_s, self._stats = config.encoder.wait_s, EncoderStats()
        check_settings(config)
        self._link = StoreLink(
            lambda: open_store(config), consequence="encoder outputs are neither shared nor reused"
        )
        self._reader: EncoderReader | None = None
        self._writer: EncoderWriter | None = None
        room = config.encoder.staging
        if role is ECConnectorRole.WORKER:
            if self.is_producer and get_tensor_model_parallel_rank() == 0:  # all ranks have the same outputs
                self._writer = EncoderWriter(self._link, keys, capacity_bytes=room)
            return
        if self.is_consumer:
            self._reader = EncoderReader(self._link, keys, capacity_bytes=room, wait_s=self._wait_s)
        self._planner = EncoderPlanner(self._reader, publishes=self.is_producer)

    # Worker side

    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: Any) -> None:
        """Put what the scheduler fetched into the engine's cache."""
        device = self._vllm_config.device_config.device
        for name, tensor in self._step().loads.items():
            if name not in encoder_cache:
                encoder_cache[name] = _to_torch(tensor).to(device)

    def start_save_caches(self, **kwargs: Any) -> None:
        """Store what this engine encoded in an earlier step, should the store have forgotten it."""
        encoder_cache: dict[str, torch.Tensor] = kwargs["encoder_cache"]
        for name in self._step().publish:
            if name in encoder_cache:
                self.save_caches(encoder_cache, name)

    def save_caches(self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **kwargs: Any) -> None:
        """Have an output stored, behind the engine's back."""
        if self._writer is None:
            return
        tensor = encoder_cache[mm_hash].detach().cpu().contiguous()
        try:
            self._writer.save(mm_hash, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor)
        except InvalidArgumentError as error:
            logger.warning("the encoder output %s is not shared: %s", mm_hash, error)

    def build_connector_worker_meta(self) -> ECConnectorWorkerMetadata | None:
        """Send what was counted to the scheduler."""
        counts = self._writer.take_counts() if self._writer is not None else {}
        return KVFerryECWorkerMetadata(EncoderStats.of(counts)) if counts else None

    # Scheduler side

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Say whether the request can be scheduled; False while the store is asked, for a bounded time."""
        params = request.ec_transfer_params  # a client may have sent anything
        promised = params if isinstance(params, dict) else ()
        grace_s = 0.0 if self.is_producer else ON_ITS_WAY_S
        return self._planner.settled(
            Medium(
                each.identifier,
                each.mm_position.get_num_embeds(),
                self._wait_s if each.identifier in promised else grace_s,
            )
            for each in request.mm_features
            if each.mm_position.offset + each.mm_position.length > num_computed_tokens
        )

    def has_cache_item(self, identifier: str) -> bool:
        """Say whether an output is at hand, so that the encoder need not run."""
        return self._planner.has(identifier)

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        """See `EncoderPlanner.allocated`."""
        self._planner.allocated(request.mm_features[index].identifier)

    def build_connector_meta(self, scheduler_output: Any) -> ECConnectorMetadata:
        """Hand the step's orders to the workers."""
        return KVFerryECMetadata(self._planner.take_step(scheduler_output.free_encoder_mm_hashes))

    def update_connector_output(self, connector_output: Any) -> None:
        """Take the workers' counts in."""
        if isinstance(connector_output.ec_connector_worker_meta, KVFerryECWorkerMetadata):
            self._stats.aggregate(connector_output.ec_connector_worker_meta.stats)

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """Tell the proxy which outputs an encoding engine has made; nothing has to be kept for that."""
        if not self.is_producer or not request.mm_features:
            return False, None
        return False, {each.identifier: {} for each in request.mm_features}

    # Both sides

    def get_ec_connector_stats(self) -> ECConnectorStats | None:
        """Return what happened since the last call, None if nothing did; workers report to the scheduler."""
        if self._role is ECConnectorRole.WORKER:
            return None
        stats, self._stats = self._stats, EncoderStats()
        if self._reader is not None:
            stats.aggregate(EncoderStats.of(self._reader.take_counts()))
        return None if stats.is_empty() else stats

    @classmethod
    def build_ec_connector_stats(cls, data: dict[str, Any] | None = None) -> ECConnectorStats | None:
        """Rebuild statistics that came from another process."""
        return EncoderStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *arguments: Any) -> ECConnectorPromMetrics | None:
        """Register our metrics with vLLM's."""
        return EncoderPromMetrics(*arguments)

    def shutdown(self) -> None:
        """Stop threads and leave the store; idempotent."""
        for part in (self._reader, self._writer, self._link):
            if part is not None:
                part.close()

    def _step(self) -> EncoderStep:
        metadata = self._get_connector_metadata()
        if not isinstance(metadata, KVFerryECMetadata):
            raise TypeError(f"expected KVFerryECMetadata, got {type(metadata).__name__}")
        return metadata.step


def _to_torch(tensor: EncodedTensor) -> torch.Tensor:
    data = tensor.data if tensor.data.flags.writeable else tensor.data.copy()
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    return torch.from_numpy(data).view(dtype).reshape(tensor.shape)
