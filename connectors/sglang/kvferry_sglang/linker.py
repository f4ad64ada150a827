"""`KVFerryLinker`: the pool right behind the KV cache, without a level in the host's memory between them.

The cache must lie in the host's memory. Pages are named and moved as in `hicache`; this adds the queues by
which SGLang's scheduler starts loads and hears of saves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import (
    DevicePoolEntry,
    DevicePoolGroup,
    resolve_hybrid_device_pool_group,
)
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker
from sglang.srt.runtime_context import get_parallel

from kvferry.errors import NotFoundError, UnsupportedError
from kvferry.pool import BackgroundJobs
from kvferry_sglang.hicache import KVFerryHiCache

logger = logging.getLogger("kvferry.sglang")

_QUIET_S = 60.0  # for what runs to end, beside the time-outs of its calls


class _DevicePool:
    """A device pool with what a host pool tells of itself."""

    def __init__(self, entry: DevicePoolEntry) -> None:
        pool = entry.device_pool
        rows = min(buffer.shape[0] for buffer in entry.kv_buffer)
        self.page_size = entry.page_size
        self.size = rows * (entry.page_size if entry._row_span == 1 else 1)
        self.layout = f"device {type(pool).__name__}"
        for name in ("dtype", "head_num", "head_dim", "v_head_dim", "start_layer", "end_layer"):
            setattr(self, name, getattr(pool, name, None))
        self.kv_buffer = entry.kv_buffer
        self.get_page_buffer_meta: Callable[..., Any] = entry.get_page_buffer_meta

    def get_hybrid_pool_buffer(self) -> list[Any]:
        """Return the memory of the pool, each allocation once."""
        storages = {
            buffer.untyped_storage().data_ptr(): buffer.untyped_storage() for buffer in self.kv_buffer
        }
        return list(storages.values())


class KVFerryLinker(UnifiedCacheLinker):
    """Loads pages from the pool into the KV cache and saves them from there. Called by the scheduler's
    thread, which waits for the store in `lookup` and `load` only.
    """

    def __init__(
        self,
        server_args: Any,
        params: Any,
        *,
        components: Any,
        extra_config: Mapping[str, Any] | None = None,
        forward_stream: Any = None,
    ) -> None:
        """Find the cache's pools. Raises UnsupportedError if they lie in a device's memory, ConfigError."""
        self.forward_stream = forward_stream
        self._group = _pools_of(params, components)
        self.pools = self._group.entry_map
        devices = {buffer.device.type for entry in self._group.entries for buffer in entry.kv_buffer}
        if devices != {"cpu"}:
            raise UnsupportedError(
                f"KVFerryLinker reads KV caches in the host's memory, and this one is in memory of kind "
                f"{', '.join(sorted(devices))}: use --hicache-storage-backend kvferry instead"
            )
        self._tp_rank, self._tp_size = _ranks(params)
        self._storage = KVFerryHiCache(
            HiCacheStorageConfig(
                tp_rank=self._tp_rank,
                tp_size=self._tp_size,
                pp_rank=params.pp_rank,
                pp_size=params.pp_size,
                attn_cp_rank=params.attn_cp_rank,
                attn_cp_size=params.attn_cp_size,
                is_mla_model=self._group.rank_replicated,
                enable_storage_metrics=False,
                is_page_first_layout=False,
                model_name=server_args.model_path,
                extra_config={"interface_v1": 1, **(extra_config or {})},
            )
        )
        for name, entry in self.pools.items():
            if name == PoolName.KV:
                self._storage.register_mem_pool_host(_DevicePool(entry))
            else:
                self._storage.register_mem_host_pool_v2(_DevicePool(entry), name)
        self._storage.on_host_pools_registered()
        self.layer_done_counter = LayerWiseLoadCounter(self._group.num_layers)
        if PoolName.MAMBA in self.pools:
            params.req_to_token_pool.register_layer_transfer_counter(self.layer_done_counter)
        self._queued: dict[str, list[PoolTransfer]] = {}
        self._jobs = BackgroundJobs()

    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int]:
        """Return after how many pages the prompt can be taken up again: all lengths that this rank can."""
        expanded = self._group.resolve_transfers(transfers)
        keys = next((list(each.keys or ()) for each in expanded if each.name == PoolName.KV), [])
        if not keys:
            return []
        side = [each for each in expanded if each.name != PoolName.KV]
        return self._storage.batch_exists_v2(keys, side).restorable_prefix_pages or []

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        """Queue a load for the next batch. SGLang aborts the requests of a load that fails; so where no other
        rank has to agree, pages that have left the pool since `lookup` are computed instead: False.
        """
        expanded = self._group.resolve_transfers(transfers, allow_partial=True, allow_missing_kv=True)
        if not expanded or (self._tp_size == 1 and not all(map(self._storage.has, expanded))):
            return False
        self._queued[rid] = expanded
        return True

    def cancel_queued_load(self, rid: str) -> bool:
        """Forget a load that has not started."""
        return self._queued.pop(rid, None) is not None

    def start_layer_wise_loading(self) -> int:
        """Start what is queued; return its number for the batch's forward, -1 if there is nothing."""
        if not self._queued:
            return -1
        queued, self._queued = self._queued, {}
        index = int(self.layer_done_counter.update_producer())
        self._jobs.load(lambda: self._load(index, queued))
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """Wait for a batch's loads; whether all of them arrived."""
        return bool(self.layer_done_counter.finish(counter_index))

    def offload(self, transfers: list[PoolTransfer], session_id: str | None = None) -> bool:
        """Queue a save; SGLang keeps the pages as they are until it has ended."""
        expanded = self._group.resolve_transfers(transfers, allow_partial=True)
        if not expanded:
            return False
        if self._group.rank_replicated and self._tp_rank:  # the first rank saves for all
            self._jobs.nothing_to_save()
            return True
        ready = self.record_offload_ready()
        self._jobs.save(lambda: self._save(expanded, ready))
        return True

    def num_completed_offloads(self) -> int:
        """Return how many saves have ended that SGLang has not heard of."""
        return self._jobs.completed_saves()

    def pop_completed_offload(self) -> bool:
        """Return whether the oldest of them succeeded."""
        return self._jobs.pop_completed_save()

    def reset(self) -> None:
        """Drop what is queued, wait for what runs, and begin anew. Raises DeadlineExceededError if something
        still runs after all its time-outs: SGLang must not give the cache to other prompts then.
        """
        self._queued.clear()
        self._jobs.reset(_QUIET_S + len(self.pools) * self._storage.longest_call_s)
        self.layer_done_counter.reset()

    def close(self) -> None:
        """As `reset`, and let go of the cache and the store, also where that raises; idempotent."""
        try:
            self.reset()
        finally:
            self._jobs.close()
            self._storage.close()

    def _load(self, index: int, queued: Mapping[str, list[PoolTransfer]]) -> None:
        try:
            for rid, transfers in queued.items():
                found = self._storage.batch_get_v2(transfers)
                if not all(all(pages) for pages in found.values()):
                    raise NotFoundError(f"pages of request {rid} could not be read from the pool")
        except Exception as error:
            logger.exception("SGLang has to abort the requests of a batch")
            self.layer_done_counter.fail(index, error)  # the batch waits for an answer, whatever happened
            return
        for layer in range(self._group.num_layers):
            self.layer_done_counter.complete(index, layer)

    def _save(self, transfers: list[PoolTransfer], ready: list[Any]) -> bool:
        for event in ready:
            event.synchronize()
        return all(all(pages) for pages in self._storage.batch_set_v2(transfers).values())


def _pools_of(params: Any, components: Any) -> DevicePoolGroup:
    """Return where pages lie in the cache. SGLang knows that of models with several pools only."""
    cache, page = params.token_to_kv_pool_allocator.get_kvcache(), params.page_size
    plain = isinstance(cache, MHATokenToKVPool) or type(cache) is MLATokenToKVPool
    if not plain or params.sidecar_draft_device_pools:
        return resolve_hybrid_device_pool_group(
            kvcache=cache, page_size=page, params=params, components=components
        )
    layers = range(cache.layer_num)
    buffers = cache.kv_buffer if isinstance(cache, MLATokenToKVPool) else [*cache.k_buffer, *cache.v_buffer]
    entry = DevicePoolEntry(
        name=PoolName.KV,
        indices_from_pool=PoolName.KV,
        device_pool=cache,
        components=[buffers],
        layer_mapping={layer: tuple(range(layer, len(buffers), len(layers))) for layer in layers},
        page_size=page,
        rows_are_pages=False,
    )
    replicated = isinstance(cache, MLATokenToKVPool)
    return DevicePoolGroup([entry], len(layers), page, rank_replicated=replicated)


def _ranks(params: Any) -> tuple[int, int]:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 0, int(get_parallel().tp_size)
    group = params.attn_tp_cache_group or params.tp_cache_group
    return torch.distributed.get_rank(group=group), torch.distributed.get_world_size(group=group)
