"""LMCache's remote connector: chunks of KV between its memory and the store.

On one host they move without a copy in between. LMCache's memory is not registered with the store, so that
bytes from other hosts take one more copy.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
from lmcache.utils import CacheEngineKey
from lmcache.v1.exceptions import IrrecoverableException
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.protocol import RemoteMetadata
from lmcache.v1.storage_backend.connector import ConnectorAdapter, ConnectorContext
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from kvferry.config import Config
from kvferry.errors import KVFerryError
from kvferry.index import KeyIdentity, KeySpace
from kvferry.pool import open_link
from kvferry_lmcache import _support
from kvferry_lmcache.objects import Objects

T = TypeVar("T")
Chunks = list[MemoryObj | None]
Keys = list[CacheEngineKey]

_MAX_SHAPES = 64  # sizes of chunks whose shapes are remembered
_LOOKUPS = 2  # lookups at a time
_ADVICE = (
    "an object in the store is not a chunk of this engine's KV and is passed over: engines whose chunks "
    "differ need different words in pool.namespace"
)


class Adapter(ConnectorAdapter):
    """What LMCache loads by `module_path` and `class_name`."""

    def __init__(self) -> None:
        super().__init__(_support.URL)

    def can_parse(self, url: str) -> bool:
        """See `ConnectorAdapter.can_parse`."""
        return _support.is_ours(url)

    def create_connector(self, context: ConnectorContext) -> RemoteConnector:
        """Make the connector; it attaches to the store when it is needed. Raises IrrecoverableException, with
        one sentence, if the settings are wrong: LMCache would go on without storage after any other.
        """
        try:
            config = _support.plugin_config(context.url, context.config.extra_config)
            return Connector(config, context)
        except KVFerryError as error:
            raise IrrecoverableException(str(error)) from error


class _Shape(NamedTuple):
    """How LMCache allocates a chunk."""

    shapes: Sequence[Any]
    dtypes: Sequence[Any]
    format: Any


class Connector(RemoteConnector):
    """One process's way to the store. Thread-safe; its awaitable calls run on threads of their own."""

    def __init__(self, config: Config, context: ConnectorContext) -> None:
        super().__init__(context.config, context.metadata)
        self._objects = Objects(open_link(config), _prefix_of(config, context), config.pool)
        self._memory = context.local_cpu_backend
        self._head_bytes = self.remote_metadata_bytes if self.save_chunk_meta else 0
        self._whole = _Shape(self.meta_shapes, self.meta_dtypes, self.meta_fmt)
        self._shapes = {self.full_chunk_size_bytes: self._whole}
        self._lookups = ThreadPoolExecutor(_LOOKUPS, "kvferry-lookup")
        self._loads = ThreadPoolExecutor(config.pool.max_concurrent_loads, "kvferry-load")
        self._saves = ThreadPoolExecutor(config.pool.max_concurrent_saves, "kvferry-save")

    @property
    def counts(self) -> dict[str, int]:
        """See `Objects.counts`."""
        return self._objects.counts

    # Asking

    def exists_sync(self, key: CacheEngineKey) -> bool:
        """Say whether the chunk is there."""
        return self._objects.present([key.to_string()])[0]

    async def exists(self, key: CacheEngineKey) -> bool:
        """Say whether the chunk is there."""
        return await self._on(self._lookups, self.exists_sync, key)

    def support_batched_contains(self) -> bool:
        """Yes."""
        return True

    def batched_contains(self, keys: Keys) -> int:
        """Return how many of the chunks, from the first on, are there."""
        return self._objects.leading(_names(keys))

    async def batched_async_contains(self, lookup_id: str, keys: Keys, pin: bool = False) -> int:
        """As `batched_contains`. Nothing is pinned: a chunk that is gone by then is computed."""
        return await self._on(self._lookups, self.batched_contains, keys)

    def support_ping(self) -> bool:
        """Yes."""
        return True

    async def ping(self) -> int:
        """Return 0 if the store's node answers, else 1."""
        return 0 if await self._on(self._lookups, self._objects.ping) else 1

    async def list(self) -> list[str]:
        """Return the keys of all chunks of engines like this one."""
        return [name for name, _ in await self._on(self._lookups, self._objects.listed)]

    def remove_sync(self, key: CacheEngineKey) -> bool:
        """Let the chunk be absent from now on."""
        return self._objects.remove([key.to_string()])[0]

    # Reading

    async def get(self, key: CacheEngineKey) -> MemoryObj | None:
        """Return the chunk in memory of LMCache's, or None."""
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        """Yes."""
        return True

    async def batched_get(self, keys: Sequence[CacheEngineKey]) -> Chunks:
        """Return the chunks in memory of LMCache's, None for each that is not there."""
        future = self._loads.submit(self._read, _names(keys))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(_release_loaded)  # a call under way cannot be stopped
            raise

    async def batched_get_non_blocking(self, lookup_id: str, keys: Keys) -> Chunks:
        """Return the chunks from the first one up to the first that is not there."""
        found = await self.batched_get(keys)
        end = next((index for index, chunk in enumerate(found) if chunk is None), len(found))
        _release(found[end:])
        return found[:end]

    # Writing

    async def put(self, key: CacheEngineKey, memory_obj: MemoryObj) -> None:
        """Store the chunk. Raises KVFerryError. The caller releases `memory_obj`."""
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        """Yes."""
        return True

    async def batched_put(self, keys: Sequence[CacheEngineKey], memory_objs: Sequence[MemoryObj]) -> None:
        """Store the chunks; raises the first error, after all were tried. The caller releases them."""
        for chunk in memory_objs:
            chunk.ref_count_up()  # until the call ends: a caller that is cancelled releases its own at once
        try:
            future = self._saves.submit(self._write, _names(keys), memory_objs)
        except RuntimeError:
            _release(memory_objs)
            raise
        future.add_done_callback(lambda _: _release(memory_objs))
        error = await asyncio.wrap_future(future)
        if error is not None:
            raise error

    async def close(self) -> None:
        """Let go of the store and end the threads."""
        pools = (self._lookups, self._loads, self._saves)
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self._objects.close()
        for pool in pools:
            await asyncio.to_thread(pool.shutdown)

    # On our threads

    async def _on(self, pool: ThreadPoolExecutor, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.wrap_future(pool.submit(call, *arguments))

    def _write(self, names: Sequence[str], chunks: Sequence[MemoryObj]) -> KVFerryError | None:
        values = [[self._head(chunk), _bytes_of(chunk)] for chunk in chunks]
        results = self._objects.put(names, values)
        return next((result.error for result in results if result.error is not None), None)

    def _head(self, chunk: MemoryObj) -> bytes:
        if not self.save_chunk_meta:
            return b""
        length = _bytes_of(chunk).nbytes
        return bytes(RemoteMetadata(length, *_shape_of(chunk)).serialize())

    def _read(self, names: Sequence[str]) -> Chunks:
        """Read what is there: first the sizes, so that no memory is taken for what is not."""
        answer: Chunks = [None] * len(names)
        targets: dict[int, MemoryObj | bytearray] = {}
        sizes = self._objects.sizes(names)
        try:
            for index, size in enumerate(sizes):
                if size is not None and (target := self._target(size - self._head_bytes)) is not None:
                    targets[index] = target
            heads = np.zeros((len(targets), self._head_bytes), np.uint8)
            runs = [[head, _bytes_of(target)] for head, target in zip(heads, targets.values(), strict=True)]
            read = self._objects.get([names[index] for index in targets], runs) if targets else []
            for head, (index, target), size in zip(heads, targets.items(), read, strict=True):
                if size is not None:
                    answer[index] = self._checked(target, head.tobytes(), size - self._head_bytes)
        except BaseException:
            _release(answer)
            raise
        finally:
            _release(target for index, target in targets.items() if answer[index] is not target)
        return answer

    def _target(self, length: int) -> MemoryObj | bytearray | None:
        """Return what to read an object into: memory of LMCache's, if it is known how that has to be."""
        shape = self._shapes.get(length)
        if shape is None and self.save_chunk_meta:
            return bytearray(max(length, 0))
        return self._allocated(shape or self._whole)

    def _allocated(self, shape: _Shape) -> MemoryObj | None:
        # LMCache would wait for memory without end otherwise, and a chunk that is missed is only computed.
        chunk = self._memory.allocate(shape.shapes, shape.dtypes, shape.format, busy_loop=False)
        if chunk is None:
            self._objects.note_unusable("no_memory", "LMCache has no memory left for chunks of the store")
        return chunk

    def _checked(self, target: MemoryObj | bytearray, head: bytes, length: int) -> MemoryObj | None:
        """Return the chunk in the shape that it was stored in, None if it is none. It is `target` itself, or
        memory of its own; `target` stays the caller's.
        """
        if not self.save_chunk_meta:
            return self._cut(target, length)
        shape = _described(head, length)
        if shape is None:
            self._refuse()
            return None
        if not isinstance(target, bytearray) and shape == _shape_of(target):
            return target
        return self._moved(target, shape, length)

    def _cut(self, chunk: MemoryObj, length: int) -> MemoryObj | None:
        try:
            return self.reshape_partial_chunk(chunk, length)
        except ValueError:  # no whole number of tokens
            self._refuse()
            return None

    def _moved(self, source: MemoryObj | bytearray, shape: _Shape, length: int) -> MemoryObj | None:
        """Return a chunk of a shape that was not known; the next one of its size is read in place."""
        if len(self._shapes) < _MAX_SHAPES:
            self._shapes[length] = shape
        chunk = self._allocated(shape)
        if chunk is None:
            return None
        try:
            _bytes_of(chunk)[:length] = _bytes_of(source)[:length]
        except BaseException:
            _release([chunk])
            raise
        return chunk

    def _refuse(self) -> None:
        self._objects.note_unusable("mismatch", _ADVICE)


def _prefix_of(config: Config, context: ConnectorContext) -> str:
    """Return what the names of this engine's chunks begin with. LMCache's own key has the model's name, the
    ranks, the dtype and the tokens' hash; this is the rest that the bytes depend on.
    """
    lmcache, metadata = context.config, context.metadata
    identity = KeyIdentity(
        model=metadata.model_name,
        dtype=str(metadata.kv_dtype),
        geometry=repr(tuple(int(each) for each in metadata.kv_shape)),
        layout=f"mla={bool(metadata.use_mla)} layerwise={bool(lmcache.use_layerwise)}",
        tensor_parallel=metadata.world_size,
        tenant=config.store.tenant,
        extra={
            "chunk": str(metadata.chunk_size),
            "hashing": str(lmcache.pre_caching_hash_algorithm),
            "serde": str(lmcache.remote_serde),
            "head": str((lmcache.extra_config or {}).get("save_chunk_meta", True)),
            **({"namespace": config.pool.namespace} if config.pool.namespace else {}),
        },
    )
    return f"lmcache/{KeySpace(identity, secret=config.transfer.cluster_secret).root.hex()}/"


def _names(keys: Sequence[CacheEngineKey]) -> list[str]:
    return [key.to_string() for key in keys]


def _bytes_of(chunk: MemoryObj | bytearray) -> memoryview:
    return memoryview(chunk if isinstance(chunk, bytearray) else chunk.byte_array).cast("B")


def _shape_of(chunk: MemoryObj) -> _Shape:
    return _Shape(chunk.get_shapes(), chunk.get_dtypes(), chunk.get_memory_format())


def _release(chunks: Iterable[MemoryObj | bytearray | None]) -> None:
    for chunk in chunks:
        if chunk is not None and not isinstance(chunk, bytearray):
            chunk.ref_count_down()


def _release_loaded(future: Future[Chunks]) -> None:
    if not future.cancelled() and future.exception() is None:
        _release(future.result())


def _described(head: bytes, length: int) -> _Shape | None:
    """Read a chunk's head. None: it is none, or does not describe `length` bytes."""
    try:
        found = RemoteMetadata.deserialize(head)
    except (struct.error, ValueError, KeyError):
        return None
    sizes = [
        shape[0] if dtype is None else math.prod(shape) * dtype.itemsize
        for shape, dtype in zip(found.shapes, found.dtypes, strict=True)
    ]
    if found.length != length or sum(sizes) != length or any(size < 0 for size in sizes):
        return None
    return _Shape(found.shapes, found.dtypes, found.fmt)
