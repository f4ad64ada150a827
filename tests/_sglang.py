"""SGLang as its connector sees it: host pools in numpy, and the few names of it that are imported."""

from __future__ import annotations

import enum
import hashlib
import importlib
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvferry.pool import PagePool
from kvferry.testing.fake_store import FakeStore

PAGE = 4
LAYERS = 3
DIM = 8


class Tensor(np.ndarray):
    """An array that tells its address as torch's tensors do."""

    def data_ptr(self) -> int:
        return self.ctypes.data

    def is_contiguous(self) -> bool:
        return bool(self.flags.c_contiguous)

    def contiguous(self) -> Tensor:
        return np.ascontiguousarray(self).view(Tensor)


def tensor(*shape: int) -> Tensor:
    return np.zeros(shape, np.uint8).view(Tensor)


class HostPool:
    """Keys and values of `pages` pages; how a page's bytes are arranged in it matters to nobody here, only
    where its pieces are: one per layer and kind in `layer_first`, else one per kind."""

    def __init__(
        self,
        layout: str = "page_first",
        *,
        pages: int = 8,
        heads: int = 2,
        page: int = PAGE,
        dtype: str = "f4",
    ) -> None:
        self.layout, self.page_size, self.size = layout, page, pages * page
        self.head_num, self.head_dim, self.layer_num = heads, DIM, LAYERS
        self.start_layer, self.end_layer, self.dtype = 0, LAYERS, dtype
        self.storage_format_tag = None
        self.row = heads * DIM
        self.kv_buffer = tensor(2, LAYERS * self.size * self.row)

    def get_page_buffer_meta(self, indices: np.ndarray) -> tuple[list[int], list[int]]:
        assert len(indices) % self.page_size == 0
        half, base = self.kv_buffer.nbytes // 2, self.kv_buffer.data_ptr()
        places, sizes = [], []
        for slot in indices.tolist()[:: self.page_size]:
            if self.layout == "layer_first":
                starts = [layer * self.size * self.row + slot * self.row for layer in range(LAYERS)]
                size = self.page_size * self.row
            else:
                starts = [slot * LAYERS * self.row]
                size = LAYERS * self.page_size * self.row
            places += [base + start + kind * half for start in starts for kind in range(2)]
            sizes += [size] * (2 * len(starts))
        return places, sizes

    def get_split_heads_page_buffer_meta(
        self, indices: np.ndarray, parts: int
    ) -> tuple[list[int], list[int]]:
        assert self.layout == "page_head"
        places, sizes = self.get_page_buffer_meta(indices)
        part = sizes[0] // parts
        split = [
            places[at + kind] + number * part
            for at in range(0, len(places), 2)
            for number in range(parts)
            for kind in range(2)
        ]
        return split, [part] * len(split)

    def page_bytes(self, page: int) -> bytes:
        """Everything of a page, whatever the layout: its pieces one behind the other."""
        return b"".join(bytes(piece) for piece in self._pieces(page))

    def fill(self, page: int, seed: int) -> None:
        for number, piece in enumerate(self._pieces(page)):
            piece[:] = np.random.default_rng((seed, number)).integers(0, 256, len(piece), np.uint8)

    def _pieces(self, page: int) -> list[np.ndarray]:
        slots = np.arange(page * self.page_size, (page + 1) * self.page_size)
        base, flat = self.kv_buffer.data_ptr(), self.kv_buffer.reshape(-1)
        return [
            flat[place - base : place - base + size]
            for place, size in zip(*self.get_page_buffer_meta(slots), strict=True)
        ]


class LogicalPool:
    """Slots without bytes, as of models all of whose cache lies in side pools."""

    kv_buffer = None
    page_size, size = PAGE, 8 * PAGE


def slots(pages: Iterable[int], page: int = PAGE) -> np.ndarray:
    """The slots of the tokens of these pages."""
    return np.concatenate([np.arange(each * page, (each + 1) * page) for each in pages]).astype(np.int64)


def hashes(count: int, salt: str = "") -> list[str]:
    """What SGLang calls the pages of a prompt."""
    return [hashlib.sha256(f"{salt}{number}".encode()).hexdigest() for number in range(count)]


def storage_config(**changes: Any) -> SimpleNamespace:
    """As SGLang's HiCacheStorageConfig; `extra`: our settings."""
    # A machine may be slow: no look-up is given up.
    extra = {"pool.node": "own", "pool.lookup_timeout_s": 60, **changes.pop("extra", {})}
    values = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "dcp_size": 1,
        "dcp_rank": 0,
        "is_mla_model": False,
        "should_split_heads": False,
        "tp_lcm_size": None,
        "model_name": "m",
        "enable_storage_metrics": True,
        "extra_config": {"interface_v1": 1, **extra},
    }
    return SimpleNamespace(**{**values, **changes})


class PoolName(enum.StrEnum):
    KV = "kv"
    MAMBA = "mamba"
    SWA = "swa"
    DRAFT = "draft"
    DRAFT_INDEXER = "draft_indexer"
    DRAFT_SWA = "draft_swa"


@dataclass
class PoolTransfer:
    name: PoolName
    host_indices: Any = None
    keys: list[str] | None = None
    hit_policy: str = "all_pages"


@dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict[str, int]
    restorable_prefix_pages: list[int] | None = None


@dataclass
class StorageMetrics:
    prefetch_pgs: list[int] = field(default_factory=list)
    backup_pgs: list[int] = field(default_factory=list)
    prefetch_bandwidth: list[float] = field(default_factory=list)
    backup_bandwidth: list[float] = field(default_factory=list)


class HiCacheStorage:
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        self.registered_pools = {**getattr(self, "registered_pools", {}), host_pool_name: host_pool}


class MHATokenToKVPoolHost(HostPool):
    """What SGLang's ordinary host pools are instances of."""


class Parallel:
    """As SGLang's parallel context: one rank, which agrees with itself."""

    class attn_tp_group:
        @staticmethod
        def broadcast_object(thing: Any) -> Any:
            return thing


class Hooks:
    """As SGLang's HookRegistry: what was registered, by target."""

    registered: dict[str, Any] = {}

    @classmethod
    def register(cls, target: str, hook: Any, _kind: Any) -> None:
        cls.registered[target] = hook


def install(
    monkeypatch: pytest.MonkeyPatch, server_args: Any = None, version: str = "0.5.23", settings: Any = None
) -> None:
    """Let the names that the connector imports be found; no SGLang and no torch is needed. `settings`: those
    that SGLang changes while it runs, in one."""

    def published() -> Any:
        if settings is None:
            raise ValueError("not published")
        return settings

    Hooks.registered = {}
    modules: dict[str, dict[str, Any]] = {
        "torch": {"from_numpy": np.asarray},
        "sglang": {},
        "sglang.version": {"__version__": version},
        "sglang.srt": {},
        "sglang.srt.mem_cache": {},
        "sglang.srt.mem_cache.hicache_storage": {
            "HiCacheStorage": HiCacheStorage,
            "HiCacheStorageConfig": SimpleNamespace,
            "HiCacheStorageExtraInfo": SimpleNamespace,
            "PoolName": PoolName,
            "PoolTransfer": PoolTransfer,
            "PoolTransferResult": PoolTransferResult,
        },
        "sglang.srt.mem_cache.pool_host": {},
        "sglang.srt.mem_cache.pool_host.mha": {"MHATokenToKVPoolHost": MHATokenToKVPoolHost},
        "sglang.srt.observability": {},
        "sglang.srt.observability.metrics_collector": {"StorageMetrics": StorageMetrics},
        "sglang.srt.plugins": {},
        "sglang.srt.plugins.hook_registry": {
            "HookRegistry": Hooks,
            "HookType": SimpleNamespace(AROUND="around"),
        },
        "sglang.srt.runtime_context": {
            "get_server_args": lambda: server_args,
            "get_memory": lambda: server_args,
            "get_model": published,
            "get_parallel": lambda: Parallel,
            "get_serving": published,
        },
    }
    for name, contents in modules.items():
        module = types.ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    for name in ("names", "hicache", "plugin", "live.weights", "live.roles"):
        monkeypatch.delitem(sys.modules, f"kvferry_sglang.{name}", raising=False)


class Lab:
    """Engines that share one store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: Any = None) -> None:
        install(monkeypatch, settings=settings)
        self.module = importlib.import_module("kvferry_sglang.hicache")
        self.store = FakeStore()
        monkeypatch.setattr(
            self.module, "PagePool", lambda config: PagePool(config, open_node=lambda _config: self.store)
        )

    def engine(self, pool: Any = None, side: Any = None, **config: Any) -> Any:
        """A backend that is attached, with its host pools."""
        backend = self.module.KVFerryHiCache(storage_config(**config), {})
        pool = HostPool() if pool is None else pool
        backend.register_mem_pool_host(pool)
        backend.register_mem_host_pool_v2(pool, PoolName.KV)
        for name, host_pool in (side or {}).items():
            backend.register_mem_host_pool_v2(host_pool, name)
        backend.on_host_pools_registered()
        return backend
