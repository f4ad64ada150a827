"""`KVFerryHiCache`, the class that SGLang loads for HiCache's third level.

SGLang's threads call it: one looks up, one reads into the host pools, one writes from them. Each call moves
bytes straight between a host pool and the store. None of them raises: what cannot be had is a miss, what
cannot be saved is not saved, and both are counted.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import sglang.version
import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

from kvferry.config import apply_log_options, explain_changes
from kvferry.errors import ConfigError, KVFerryError
from kvferry.handoff import WarningThrottle
from kvferry.pool import PagePool
from kvferry.store import Runs, runs_of
from kvferry_sglang import _support
from kvferry_sglang.hits import ALL_PAGES, PoolPages, boundaries, common, longest
from kvferry_sglang.identity import ModelFacts, PageNames, facts_of, shard_of
from kvferry_sglang.live.weights import replaced_settings
from kvferry_sglang.memory import PageMemory
from kvferry_sglang.settings import config_of, server_args
from kvferry_sglang.stats import Rates, StorageCounters

_support.check_version(sglang.version.__version__)

logger = logging.getLogger("kvferry.sglang")

# Pools whose bytes differ from rank to rank even where the model's own cache is the same on all of them.
_ALWAYS_SHARDED = (PoolName.MAMBA,)
_DRAFTS = (PoolName.DRAFT, PoolName.DRAFT_INDEXER, PoolName.DRAFT_SWA)


T = TypeVar("T")


class _Pool:
    """One host pool of SGLang: where its pages are, and what they are called."""

    def __init__(self, memory: PageMemory, named: Callable[[], PageNames]) -> None:
        self.memory = memory
        self._named = named

    @property
    def names(self) -> PageNames:
        """The names now: the weights may be replaced while the server runs. One call takes them once."""
        return self._named()


class KVFerryHiCache(HiCacheStorage):
    """HiCache's third level in KVFerry's pool. Thread-safe."""

    def __init__(self, storage_config: HiCacheStorageConfig, _kwargs: Any = None) -> None:
        """Read the settings, bring a node along if there is none. Raises KVFerryError: SGLang has none."""
        self._storage = storage_config
        self._config = config_of(storage_config.extra_config)
        apply_log_options(self._config.log, own_process=False)
        logger.info("settings: %s", explain_changes(self._config))
        self._server_args = server_args()
        self._lock = threading.Lock()
        self._pools: dict[str, _Pool] = {}
        self._flat: Callable[[], PageNames] | None = None
        self._logical = False
        self._warnings = WarningThrottle()
        self._rates = Rates()
        self._counters = StorageCounters()
        self._store = PagePool(self._config)
        if self._store.embedded and storage_config.is_mla_model and storage_config.tp_size > 1:
            self._store.close()
            raise ConfigError(
                "one rank saves this model's cache for all, and a node that each rank brings along would be "
                "no other rank's: start `kvferry node` on this machine before SGLang"
            )

    # Set-up, called in this order when it is attached

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Take the host pool of the model's own cache."""
        super().register_mem_pool_host(mem_pool_host)
        self._logical = getattr(mem_pool_host, "kv_buffer", None) is None
        if self._logical:  # only its side pools have bytes
            return
        parts = 1
        if self._storage.should_split_heads:
            parts = int(self._storage.tp_lcm_size or 1) // self._storage.tp_size
        pool = self._add(PoolName.KV, mem_pool_host, parts)
        layout = f"flat {pool.memory.describe()}"
        self._flat = self._named(mem_pool_host, layout, PoolName.KV, pool.memory.page)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Take a further host pool; the first one comes again."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if host_pool_name != PoolName.KV:
            self._add(host_pool_name, host_pool, 1)

    def on_host_pools_registered(self) -> None:
        """Open the way to the store, before the first request needs it."""
        self._store.attach()

    # Pages of the model's own cache

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """Return how many pages are there, from the first on."""
        return self._safely("look-up", 0, lambda: self._found(keys))

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Read pages into the host pool; return for each whether it is all there."""
        if self._logical:
            return [True] * len(keys)
        return self._read(PoolName.KV, keys, host_indices)

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Write pages from the host pool; return for each whether it is in the store now."""
        if self._logical:
            return [True] * len(keys)
        return self._write(PoolName.KV, keys, host_indices, _before(extra_info))

    # Pages of several pools

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """Say after which prefixes the prompt can be taken up again, by what each pool needs there."""
        nothing = PoolTransferResult(0, {}, [])
        return self._safely("look-up", nothing, lambda: self._restorable(keys, pool_transfers or []))

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Read pages into host pools; return for each pool's pages whether they are all there."""
        return _by_name(
            (each.name, self._read(each.name, each.keys or [], each.host_indices)) for each in transfers
        )

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Write pages from host pools; return for each pool's pages whether they are in the store now."""
        before = _before(extra_info)
        return _by_name(
            (each.name, self._write(each.name, each.keys or [], each.host_indices, before))
            for each in transfers
        )

    def has(self, transfer: PoolTransfer) -> bool:
        """Say whether all pages of a transfer are there."""

        def found() -> bool:
            names = self._pool(transfer.name).names.of(transfer.keys or [])
            return bool(self._store.present(names).all())

        return self._safely("look-up", False, found)

    # Pages one behind the other in buffers of SGLang's, where `interface_v1` is not set

    def exists(self, key: str) -> bool:
        """Say whether a page is there."""
        return self.batch_exists([key]) == 1

    def get(
        self, key: str, target_location: torch.Tensor | None = None, target_sizes: Any = None
    ) -> torch.Tensor | None:
        """Read a page into the buffer and return that; None if it is not there."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        """Read pages into buffers; return each, or None where it is not there."""
        targets = list(target_locations or [None] * len(keys))

        def read() -> list[bool]:
            return self._store.load(self._flat_names().of(keys), runs_of(targets, writable=True))

        loaded = self._safely("read", [False] * len(keys), read)
        return [target if ok else None for target, ok in zip(targets, loaded, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Write a page; return whether it is in the store now."""
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Write pages; return whether all are in the store now."""

        def write() -> bool:
            naming = self._flat_names()
            names = naming.of(keys)
            buffers = [value.contiguous() for value in values]
            saved = self._store.save(
                names,
                runs_of(buffers, writable=False),
                parents=naming.parents(names, None),
                tag=self._tag,
            )
            return all(saved)

        return self._safely("write", False, write)

    # Administration

    def clear(self) -> bool:
        """Remove this engine's pages from the pool, for all engines that share them."""
        removed = self._store.forget(self._tag)
        logger.info("removed %s pages from the pool", "no" if removed is None else removed)
        return removed is not None

    def get_stats(self) -> Any:
        """Return SGLang's statistics of reads and writes since the last call."""
        self._safely("count", None, lambda: self._counters.add(self._store.take_counts()))
        return self._rates.take()

    def close(self) -> None:
        """Let go of the host pools and of the store; idempotent. A node that came along ends."""
        self._store.close()

    @property
    def longest_call_s(self) -> float:
        """The time after which a call for one pool has ended, as the settings say."""
        return max(self._config.pool.load_timeout_s, self._config.pool.save_timeout_s)

    # Within

    def _add(self, name: PoolName, host_pool: Any, parts: int) -> _Pool:
        memory = PageMemory(host_pool, parts=parts, tensor=torch.from_numpy)
        names = self._named(host_pool, f"{name} {memory.describe()}", name, memory.page, parts)
        pool = _Pool(memory, names)
        with self._lock:
            self._pools[str(name)] = pool
        for buffer in memory.buffers:
            self._store.keep(buffer)
        return pool

    def _named(
        self, host_pool: Any, layout: str, name: PoolName, page: int, parts: int = 1
    ) -> Callable[[], PageNames]:
        replicated = self._storage.is_mla_model and not (
            name in _ALWAYS_SHARDED or isinstance(host_pool, MHATokenToKVPoolHost)
        )
        shard = shard_of(self._storage, replicated=replicated)

        @functools.lru_cache(maxsize=2)  # calls that began before the weights were replaced still end
        def make(facts: ModelFacts) -> PageNames:
            if name in _DRAFTS:
                facts = facts._replace(model=f"{facts.model} {facts.draft}")
            return PageNames(self._config, facts, shard, page=page, layout=layout, parts=parts)

        make(self._facts())  # raises now what it would raise later
        return lambda: make(self._facts())

    def _facts(self) -> ModelFacts:
        return facts_of(self._server_args, self._storage.model_name or "", replaced_settings())

    @property
    def _tag(self) -> str:
        with self._lock:
            first = next(iter(self._pools.values()), None)
        return "kv-none" if first is None else first.names.tag

    def _pool(self, name: Any) -> _Pool:
        with self._lock:
            pool = self._pools.get(str(name))
        if pool is None:
            raise ConfigError(f"SGLang has not registered the host pool {name}")
        return pool

    def _flat_names(self) -> PageNames:
        if self._flat is None:
            raise ConfigError("SGLang has not registered a host pool with pages")
        return self._flat()

    def _found(self, keys: list[str]) -> int:
        if self._logical:
            return len(keys)
        names = self._pool(PoolName.KV).names if self._by_pieces else self._flat_names()
        return self._store.hits(names.of(keys)) // names.parts

    @property
    def _by_pieces(self) -> bool:
        extra = self._storage.extra_config or {}
        return bool(extra.get("interface_v1"))

    def _restorable(self, keys: list[str], transfers: Sequence[PoolTransfer]) -> PoolTransferResult:
        pages = self._found(keys)
        hits: dict[str, int] = {PoolName.KV: pages} if pages else {}
        if not pages:
            return PoolTransferResult(0, hits, [])
        allowed = []
        for each in transfers:
            if each.hit_policy == "block_groups":  # another form of pages that are counted already
                continue
            found = self._store.present(self._pool(each.name).names.of(keys[:pages]))
            policy = str(getattr(each.hit_policy, "value", each.hit_policy) or ALL_PAGES)
            ends = boundaries(PoolPages(found, policy, len(each.keys or ()) or 1))
            allowed.append(ends)
            if longest(ends):
                hits[each.name] = longest(ends)
        restorable = common(pages, allowed)
        return PoolTransferResult(
            longest(restorable), hits, [int(end) + 1 for end in np.flatnonzero(restorable)]
        )

    def _read(self, name: Any, keys: list[str], indices: torch.Tensor | None) -> list[bool]:
        def read() -> list[bool]:
            pool, runs = self._where(name, keys, indices)
            names, started = pool.names, time.perf_counter()
            found = _by_page(self._store.load(names.of(keys), runs), names.parts)
            if name == PoolName.KV:
                self._rates.read(sum(found), pool.memory.page_bytes, time.perf_counter() - started)
            return found

        return self._safely("read", [False] * len(keys), read)

    def _write(
        self, name: Any, keys: list[str], indices: torch.Tensor | None, before: str | None
    ) -> list[bool]:
        def write() -> list[bool]:
            pool, runs = self._where(name, keys, indices)
            naming = pool.names
            names = naming.of(keys)
            parents = naming.parents(names, before)
            started = time.perf_counter()
            saved = _by_page(self._store.save(names, runs, parents=parents, tag=self._tag), naming.parts)
            if name == PoolName.KV:
                self._rates.written(sum(saved), pool.memory.page_bytes, time.perf_counter() - started)
            return saved

        return self._safely("write", [False] * len(keys), write)

    def _where(self, name: Any, keys: list[str], indices: torch.Tensor | None) -> tuple[_Pool, Runs]:
        pool = self._pool(name)
        return pool, pool.memory.runs([] if indices is None else indices, len(keys))

    def _safely(self, what: str, default: T, job: Callable[[], T]) -> T:
        """Do `job`; whatever it raises is logged and counted, and the answer is `default`."""
        try:
            return job()
        except (KVFerryError, ValueError) as error:
            logger.log(self._warnings.level((what, type(error))), "a %s was skipped: %s", what, error)
        except Exception:
            if self._warnings.level((what, "bug")) == logging.WARNING:
                logger.exception("a %s failed unexpectedly", what)
        self._counters.skipped(what)
        return default


def _before(extra_info: HiCacheStorageExtraInfo | None) -> str | None:
    """Return the hash of the page before a call's first one, where SGLang passes it."""
    keys = extra_info.prefix_keys if extra_info is not None else None
    return keys[-1] if keys else None


def _by_name(results: Iterable[tuple[PoolName, list[bool]]]) -> dict[str, list[bool]]:
    """Return results by pool. One that comes twice has the last one's, and none if an earlier one failed."""
    found: dict[str, list[bool]] = {}
    for name, pages in results:
        found[name] = pages if all(found.get(name, ())) else [False] * len(pages)
    return found


def _by_page(values: Sequence[bool], parts: int) -> list[bool]:
    """Return for each page whether all of its parts are all right."""
    return [all(values[at : at + parts]) for at in range(0, len(values), parts)]
