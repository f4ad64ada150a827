"""LMCache server's L2 adapter: objects between its L1 memory and the store, without a copy in between."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import EncodedObjectKey, KeyEntry, KeyListPage, MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.internal_api import L1MemoryDesc, L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface, L2TaskId
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import create_event_notifier

from kvferry.config import Config
from kvferry.index import KeyIdentity, KeySpace
from kvferry.pool import open_link
from kvferry.transfer import Span
from kvferry_lmcache import _support
from kvferry_lmcache.objects import Objects
from kvferry_lmcache.usage import Ledger

logger = logging.getLogger(__name__)

_LOOKUPS = 2  # lookups at a time
_HEAD = struct.Struct("<8s16sQ")
"""What stands in front of an object's bytes: who wrote it, a digest of its shapes and types, its size."""
_MAGIC = b"KVFL2/1\0"
_ADVICE = (
    "an object in the store has another layout than was asked for and is passed over: servers whose "
    "models differ in more than their names (dtype, chunk size) need different words in pool.namespace"
)


class L2Adapter(L2AdapterInterface):
    """The store as an LMCache server's L2. Thread-safe; tasks end by the deadlines of the section `pool`."""

    def __init__(
        self, adapter_params: Mapping[str, Any], *, l1_memory_desc: L1MemoryDesc | None = None
    ) -> None:
        """`adapter_params`: settings of KVFerry, as `{"store.node": ...}`. Raises ConfigError, and
        KVFerryError if a node of its own cannot be made.
        """
        super().__init__()  # no capacity: the store evicts by itself
        config = _support.adapter_config(adapter_params)
        link = open_link(config, buffers=_memory_of(l1_memory_desc))
        self._objects = Objects(link, _prefix_of(config), config.pool)
        self._ledger: Ledger[ObjectKey] = Ledger()
        self._lookups = ThreadPoolExecutor(_LOOKUPS, "kvferry-lookup")
        self._loads = ThreadPoolExecutor(config.pool.max_concurrent_loads, "kvferry-load")
        self._saves = ThreadPoolExecutor(config.pool.max_concurrent_saves, "kvferry-save")
        self._stored, self._found, self._loaded = (create_event_notifier() for _ in range(3))
        self._lock = threading.Lock()
        self._last_task: L2TaskId = 0
        self._stores: dict[L2TaskId, L2StoreResult] = {}
        self._bitmaps: dict[L2TaskId, Bitmap] = {}
        self._closed = False
        self._lookups.submit(self._objects.ping)  # attach before the first request needs it

    def get_store_event_fd(self) -> int:
        """See `L2AdapterInterface`."""
        return int(self._stored.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        """See `L2AdapterInterface`."""
        return int(self._found.fileno())

    def get_load_event_fd(self) -> int:
        """See `L2AdapterInterface`."""
        return int(self._loaded.fileno())

    # Storing

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2TaskId:
        """Begin to store objects; those that are there already stay as they are."""
        return self._begin(self._saves, self._store, keys, objects)

    def pop_completed_store_tasks(self) -> dict[L2TaskId, L2StoreResult]:
        """Return the store tasks that ended since the last call."""
        with self._lock:
            done, self._stores = self._stores, {}
        return done

    # Looking up

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]
    ) -> L2TaskId:
        """Begin to look objects up. Nothing is locked: what is gone when it is loaded is a miss then."""
        return self._begin(self._lookups, self._look_up, keys)

    def query_lookup_and_lock_result(self, task_id: L2TaskId) -> Bitmap | None:
        """Return once which objects were found; None: not known yet."""
        return self._taken(task_id)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        """Do nothing, see `submit_lookup_and_lock_task`."""

    # Loading

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2TaskId:
        """Begin to read objects into the memory given for them."""
        return self._begin(self._loads, self._load, keys, objects)

    def query_load_result(self, task_id: L2TaskId) -> Bitmap | None:
        """Return once which objects were read; None: not known yet."""
        return self._taken(task_id)

    # The rest

    def delete(self, keys: list[ObjectKey]) -> None:
        """Let objects be absent; for LMCache's own quotas."""
        names = _names(keys)
        there = self._objects.present(names)
        removed = self._objects.remove(names)
        gone = {key: 0 for key, was, done in zip(keys, there, removed, strict=True) if was and done}
        counted = self._ledger.take(key for key, done in zip(keys, removed, strict=True) if done)
        self._tell_gone(gone | counted)

    def get_usage(self) -> AdapterUsage:
        """Return the bytes of what this server stored and the store still has, by salt, and the room of the
        node: 0, for unknown, where there are several. May ask the store, see `Ledger.take_absent`.
        """
        self._tell_gone(self._ledger.take_absent(lambda keys: self._objects.still_present(_names(keys))))
        usage = super().get_usage()
        held, room = self._objects.room()
        total = min(usage.total_bytes_used, held) if room else usage.total_bytes_used
        return dataclasses.replace(usage, total_bytes_used=total, total_capacity_bytes=room)

    def list_l2_keys(
        self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None
    ) -> KeyListPage:
        """Return a page of the objects in the store. Raises ValueError for an impossible page size."""
        if page_size <= 0:
            raise ValueError(f"page_size is {page_size}, it must be positive")
        begin = "" if model_name is None else f"{model_name}@"
        found = self._objects.listed(begin, after=cursor or "", limit=page_size)
        entries = [
            KeyEntry(key, size - _HEAD.size) for name, size in found if (key := _key_of(name)) is not None
        ]
        return KeyListPage(tuple(entries), found[-1][0] if len(found) == page_size else None)

    def report_status(self) -> dict[str, Any]:
        """Return whether the store is there, and what was done, see `Objects.counts`."""
        return {"is_healthy": self._objects.reachable, "type": _support.TYPE, **self._objects.counts}

    def close(self) -> None:
        """Fail what is under way, let go of the store, end the threads. Idempotent."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        pools = (self._lookups, self._loads, self._saves)
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self._objects.close()
        for pool in pools:  # they write into L1's memory until they have ended
            pool.shutdown()
        for notifier in (self._stored, self._found, self._loaded):
            notifier.close()

    def _begin(self, pool: ThreadPoolExecutor, job: Callable[..., None], *arguments: Any) -> L2TaskId:
        with self._lock:
            self._last_task += 1
            task = self._last_task
        pool.submit(job, task, *arguments)
        return task

    def _taken(self, task: L2TaskId) -> Bitmap | None:
        with self._lock:
            return self._bitmaps.pop(task, None)

    # On our threads. Whatever happens, a task ends: LMCache waits for it.

    def _store(self, task: L2TaskId, keys: Sequence[ObjectKey], objects: Sequence[MemoryObj]) -> None:
        result = L2StoreResult(False, 0)
        try:
            result = self._put(keys, objects)
        except Exception:
            logger.exception("storing objects failed unexpectedly")
        with self._lock:
            self._stores[task] = result
        self._stored.notify()

    def _put(self, keys: Sequence[ObjectKey], objects: Sequence[MemoryObj]) -> L2StoreResult:
        values = [[_head_of(each), _bytes_of(each)] for each in objects]
        results = self._objects.put(_names(keys), values)
        stored: dict[ObjectKey, int] = {}  # without what was there already: LMCache is told of each once
        for key, value, result in zip(keys, values, results, strict=True):
            if result.error is None and result.created:
                stored[key] = len(value[1])
        self._tell_gone(self._ledger.take(stored))  # stored anew: it was gone
        if stored:
            self._notify_keys_stored(list(stored), list(stored.values()))
            for key, size in stored.items():
                self._ledger.add(key, size)
        ok = all(result.error is None for result in results)
        return L2StoreResult(ok, sum(stored.values()))

    def _tell_gone(self, sizes: Mapping[ObjectKey, int]) -> None:
        if sizes:
            self._notify_keys_deleted(list(sizes), list(sizes.values()))

    def _look_up(self, task: L2TaskId, keys: Sequence[ObjectKey]) -> None:
        present: Sequence[bool] = ()
        try:
            present = self._objects.present(_names(keys))
        except Exception:
            logger.exception("looking objects up failed unexpectedly")
        self._end(task, len(keys), present)
        self._found.notify()

    def _load(self, task: L2TaskId, keys: Sequence[ObjectKey], objects: Sequence[MemoryObj]) -> None:
        arrived: Sequence[bool] = ()
        try:
            arrived = self._got(keys, objects)
        except Exception:
            logger.exception("loading objects failed unexpectedly")
        loaded = [key for key, there in zip(keys, arrived, strict=False) if there]
        if loaded:
            self._notify_keys_accessed(loaded)
        self._end(task, len(keys), arrived)
        self._loaded.notify()

    def _got(self, keys: Sequence[ObjectKey], objects: Sequence[MemoryObj]) -> list[bool]:
        heads = [bytearray(_HEAD.size) for _ in objects]
        targets = [[head, _bytes_of(each)] for head, each in zip(heads, objects, strict=True)]
        sizes = self._objects.get(_names(keys), targets)
        return [
            size is not None and self._fits(head, each, size)
            for head, each, size in zip(heads, objects, sizes, strict=True)
        ]

    def _fits(self, head: bytearray, memory: MemoryObj, size: int) -> bool:
        """Say whether an object that was read is of the layout of the memory that it was read into."""
        magic, layout, length = _HEAD.unpack(head)
        if magic == _MAGIC and layout == _layout_of(memory) and length == size - _HEAD.size:
            return True
        self._objects.note_unusable("mismatch", _ADVICE)
        return False

    def _end(self, task: L2TaskId, count: int, bits: Sequence[bool]) -> None:
        bitmap = Bitmap(count)
        for index, bit in enumerate(bits):
            if bit:
                bitmap.set(index)
        with self._lock:
            self._bitmaps[task] = bitmap


def _memory_of(l1: L1MemoryDesc | None) -> list[Span]:
    """Return what of L1's memory stays where it is, to be registered."""
    return [] if l1 is None else [Span(l1.ptr, l1.stable_registration_size or l1.size)]


def _prefix_of(config: Config) -> str:
    identity = KeyIdentity(
        tenant=config.store.tenant,
        extra={"namespace": config.pool.namespace} if config.pool.namespace else {},
    )
    return f"lmcache-l2/{KeySpace(identity, secret=config.transfer.cluster_secret).root.hex()}/"


def _names(keys: Sequence[ObjectKey]) -> list[str]:
    return [_name_of(key) for key in keys]


def _name_of(key: ObjectKey) -> str:
    """Return an object's name; LMCache keeps `@` out of the texts in it."""
    name = f"{key.model_name}@{key.kv_rank:08x}@{key.object_group_id:x}@{key.chunk_hash.hex()}"
    return f"{name}@{key.cache_salt}" if key.cache_salt else name


def _key_of(name: str) -> EncodedObjectKey | None:
    """Return the key of a name; None: it is not one that `_name_of` made."""
    model, *rest = name.split("@")
    if len(rest) not in (3, 4):
        return None
    try:
        return EncodedObjectKey(rest[2], model, int(rest[0], 16), int(rest[1], 16), *rest[3:])
    except ValueError:
        return None


def _bytes_of(chunk: MemoryObj) -> memoryview:
    return memoryview(chunk.byte_array).cast("B")


def _head_of(chunk: MemoryObj) -> bytes:
    return _HEAD.pack(_MAGIC, _layout_of(chunk), _bytes_of(chunk).nbytes)


def _layout_of(chunk: MemoryObj) -> bytes:
    """Return a digest of the shapes, types and format of an object."""
    meta = chunk.metadata
    shapes = meta.shapes if meta.shapes is not None else [meta.shape]
    dtypes = meta.dtypes if meta.dtypes is not None else [meta.dtype]
    text = repr(([tuple(shape) for shape in shapes], [str(each) for each in dtypes], str(meta.fmt)))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
