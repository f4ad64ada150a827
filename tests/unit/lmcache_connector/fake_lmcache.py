"""As much of LMCache's modules as our plugins touch, for tests without LMCache; its shapes, not its logic."""

from __future__ import annotations

import math
import struct
import sys
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

SHAPE = (2, 2, 16, 4)  # a whole chunk: K and V, layers, tokens, hidden
HEAD = "iiiiiii"


class DType:
    """Stands for a torch dtype."""

    def __init__(self, name: str, itemsize: int, code: int) -> None:
        self.name, self.itemsize, self.code = name, itemsize, code

    def __repr__(self) -> str:
        return self.name


HALF, BFLOAT = DType("float16", 2, 2), DType("bfloat16", 2, 3)


class Format(IntEnum):
    KV_2LTD = 1
    KV_MLA_FMT = 2


@dataclass
class Meta:
    shape: tuple[int, ...]
    dtype: DType
    fmt: Format = Format.KV_2LTD
    shapes: list[tuple[int, ...]] | None = None
    dtypes: list[DType] | None = None


class Chunk:
    """A memory object: counts references; `freed` when none is left."""

    def __init__(self, shape: tuple[int, ...], dtype: DType, fmt: Format = Format.KV_2LTD) -> None:
        self.metadata = Meta(shape, dtype, fmt)
        self.data = bytearray(math.prod(shape) * dtype.itemsize)
        self.references = 1

    @property
    def freed(self) -> bool:
        return self.references == 0

    @property
    def byte_array(self) -> memoryview:
        assert not self.freed
        return memoryview(self.data)

    def get_shapes(self) -> list[tuple[int, ...]]:
        return [self.metadata.shape]

    def get_dtypes(self) -> list[DType]:
        return [self.metadata.dtype]

    def get_memory_format(self) -> Format:
        return self.metadata.fmt

    def ref_count_up(self) -> None:
        self.references += 1

    def ref_count_down(self) -> None:
        assert self.references > 0
        self.references -= 1


class Memory:
    """The engine's host memory: room for so many chunks."""

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.allocated: list[Chunk] = []

    @property
    def in_use(self) -> int:
        return sum(not chunk.freed for chunk in self.allocated)

    def allocate(self, shapes: Any, dtypes: Any, fmt: Format, *, busy_loop: bool) -> Chunk | None:
        assert not busy_loop, "this would wait without end"
        if self.in_use == self.room:
            return None
        self.allocated.append(Chunk(shapes[0], dtypes[0], fmt))
        return self.allocated[-1]


@dataclass(frozen=True)
class CacheKey:
    text: str

    def to_string(self) -> str:
        return self.text


@dataclass
class RemoteMetadata:
    length: int
    shapes: list[tuple[int, ...]]
    dtypes: list[DType]
    fmt: Format

    def serialize(self) -> bytes:
        return struct.pack(HEAD, self.length, int(self.fmt), self.dtypes[0].code, *self.shapes[0])

    @staticmethod
    def deserialize(head: bytes) -> RemoteMetadata:
        length, fmt, code, *shape = struct.unpack(HEAD, head)
        dtype = {each.code: each for each in (HALF, BFLOAT)}[code]
        return RemoteMetadata(length, [tuple(shape)], [dtype], Format(fmt))


class RemoteConnector:
    def __init__(self, config: Any, metadata: Any) -> None:
        self.save_chunk_meta = config.extra_config.get("save_chunk_meta", True)
        self.meta_shapes, self.meta_dtypes, self.meta_fmt = [SHAPE], [metadata.kv_dtype], Format.KV_2LTD
        self.full_chunk_size_bytes = math.prod(SHAPE) * metadata.kv_dtype.itemsize
        self.remote_metadata_bytes = struct.calcsize(HEAD)

    def reshape_partial_chunk(self, chunk: Chunk, length: int) -> Chunk:
        token = self.full_chunk_size_bytes // SHAPE[2]
        if length % token or not 0 < length <= self.full_chunk_size_bytes:
            raise ValueError(length)
        chunk.metadata.shape = (*SHAPE[:2], length // token, SHAPE[3])
        chunk.data = chunk.data[:length]
        return chunk


class ConnectorAdapter:
    def __init__(self, schema: str) -> None:
        self.schema = schema


def context(url: str = "plugin://kvferry", memory: Memory | None = None, **extra: Any) -> Any:
    """A ConnectorContext; `extra` goes into `extra_config`."""
    metadata = types.SimpleNamespace(
        model_name="m", world_size=1, kv_dtype=HALF, kv_shape=(2, 2, 16, 1, 4), use_mla=False, chunk_size=16
    )
    config = types.SimpleNamespace(
        extra_config=extra, use_layerwise=False, pre_caching_hash_algorithm="sha256", remote_serde="naive"
    )
    return types.SimpleNamespace(
        url=url, config=config, metadata=metadata, local_cpu_backend=memory or Memory(), plugin_name=None
    )


# The server's side


@dataclass(frozen=True)
class EncodedObjectKey:
    chunk_hash_hex: str
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


@dataclass(frozen=True)
class ObjectKey:
    chunk_hash: bytes
    model_name: str = "m"
    kv_rank: int = 0
    object_group_id: int = 0
    cache_salt: str = ""


@dataclass(frozen=True)
class KeyEntry:
    key: EncodedObjectKey
    size_bytes: int


@dataclass(frozen=True)
class KeyListPage:
    entries: tuple[KeyEntry, ...]
    next_page_token: str | None


@dataclass(frozen=True)
class L1MemoryDesc:
    ptr: int
    size: int
    align_bytes: int = 1
    stable_registration_size: int | None = None


class StoreResult(int):
    def __new__(cls, ok: bool, count: int) -> StoreResult:
        return super().__new__(cls, count if ok else -1)


class Bitmap:
    def __init__(self, size: int) -> None:
        self.bits = [False] * size

    def set(self, index: int) -> None:
        self.bits[index] = True


class Notifier:
    def __init__(self) -> None:
        self.told = 0
        self.closed = False

    def fileno(self) -> int:
        return 7

    def notify(self) -> None:
        assert not self.closed
        self.told += 1

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class AdapterUsage:
    total_bytes_used: int
    total_capacity_bytes: int
    bytes_by_cache_salt: dict[str, int]


@dataclass
class L2AdapterInterface:
    """Counts as LMCache does: by salt, what it is told was stored and deleted."""

    usage: Counter[str] = field(default_factory=Counter)
    stored: dict[ObjectKey, int] = field(default_factory=dict)
    accessed: list[ObjectKey] = field(default_factory=list)
    deleted: dict[ObjectKey, int] = field(default_factory=dict)

    def _notify_keys_stored(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        self.stored.update(zip(keys, sizes, strict=True))
        for key, size in zip(keys, sizes, strict=True):
            self.usage[key.cache_salt] += size

    def _notify_keys_accessed(self, keys: list[ObjectKey]) -> None:
        self.accessed += keys

    def _notify_keys_deleted(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        self.deleted.update(zip(keys, sizes, strict=True))
        for key, size in zip(keys, sizes, strict=True):
            self.usage[key.cache_salt] -= size
            assert self.usage[key.cache_salt] >= 0, "more was deleted than stored"

    def get_usage(self) -> AdapterUsage:
        return AdapterUsage(self.usage.total(), 0, dict(+self.usage))


class IrrecoverableException(Exception):
    pass


_MODULES: dict[str, dict[str, Any]] = {
    "lmcache": {},
    "lmcache.utils": {"CacheEngineKey": CacheKey},
    "lmcache.lmcache_native": {"Bitmap": Bitmap},
    "lmcache.v1": {},
    "lmcache.v1.exceptions": {"IrrecoverableException": IrrecoverableException},
    "lmcache.v1.memory_management": {"MemoryObj": Chunk},
    "lmcache.v1.protocol": {"RemoteMetadata": RemoteMetadata},
    "lmcache.v1.platform": {"create_event_notifier": Notifier},
    "lmcache.v1.storage_backend": {},
    "lmcache.v1.storage_backend.connector": {
        "ConnectorAdapter": ConnectorAdapter,
        "ConnectorContext": object,
    },
    "lmcache.v1.storage_backend.connector.base_connector": {"RemoteConnector": RemoteConnector},
    "lmcache.v1.distributed": {},
    "lmcache.v1.distributed.api": {
        "EncodedObjectKey": EncodedObjectKey,
        "KeyEntry": KeyEntry,
        "KeyListPage": KeyListPage,
        "MemoryLayoutDesc": object,
        "ObjectKey": ObjectKey,
    },
    "lmcache.v1.distributed.internal_api": {"L1MemoryDesc": L1MemoryDesc, "L2StoreResult": StoreResult},
    "lmcache.v1.distributed.l2_adapters": {},
    "lmcache.v1.distributed.l2_adapters.base": {
        "AdapterUsage": AdapterUsage,
        "L2AdapterInterface": L2AdapterInterface,
        "L2TaskId": int,
    },
}


@contextmanager
def installed() -> Iterator[None]:
    """Have `import lmcache...` find these, and our plugins import them anew."""
    ours = ("kvferry_lmcache.remote", "kvferry_lmcache.l2")
    kept = {name: sys.modules.pop(name, None) for name in (*_MODULES, *ours)}
    for name, content in _MODULES.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module in kept.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
