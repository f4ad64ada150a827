"""`mooncake.store` on KVFerry: objects by key, from and to addresses, integers for results."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvferry.errors import KVFerryError, UnsupportedError
from kvferry.store import Runs, Store
from kvferry_mooncake.codes import (
    INVALID_PARAMS,
    OBJECT_NOT_FOUND,
    OK,
    TRANSFER_FAIL,
    logger,
    refused,
    store_code,
)
from kvferry_mooncake.store.arguments import Many, ManyMany, alike, each_flat, each_nested, each_ranges
from kvferry_mooncake.store.memory import BufferHandle
from kvferry_mooncake.store.opened import OpenedStore, code_of
from kvferry_mooncake.store.replication import ReplicateConfig, replicas_of

Config = ReplicateConfig | None

_REMOVED_AT_ONCE = 1000


class MooncakeDistributedStore(OpenedStore):
    """Objects in KVFerry's pool, with the calls and return codes of Mooncake's store.

    0, or a number of bytes, is success; less than 0 an error. Objects are read and written where they lie,
    without a copy in between; a batch is one call of the store. All methods are thread-safe and let other
    threads run while they wait. Before `setup` and after `close` every call fails.
    """

    # Writing

    def put(self, key: str, value: Any, config: Config = None) -> int:
        """Store bytes (not none: -600). 0 also if the key is there; it keeps its bytes."""
        return self.put_parts(key, value, config=config) if _has_bytes(key, value) else INVALID_PARAMS

    def put_parts(self, key: str, *args: Any, config: Config = None) -> int:
        """Store several buffers as one object."""
        store = self._store
        if store is None:
            return INVALID_PARAMS
        return code_of(lambda: store.put(key, list(args), replicas=replicas_of(config)), "put")

    def put_batch(self, keys: Sequence[str], values: Sequence[Any], config: Config = None) -> int:
        """Store many; 0, or the code of the first that failed."""
        store = self._store
        if store is None or not alike(keys, values):
            return INVALID_PARAMS
        try:
            results = store.put_many(list(keys), list(values), replicas=replicas_of(config))
        except KVFerryError as error:
            return store_code(error, "put")
        codes = (store_code(result.error, "put") for result in results)
        return next((code for code in codes if code != OK), OK)

    def put_from(self, key: str, buffer_ptr: int, size: int, config: Config = None) -> int:
        """Store what lies at an address."""
        return self.batch_put_from([key], [buffer_ptr], [size], config)[0]

    def batch_put_from(
        self, keys: Sequence[str], buffer_ptrs: Many, sizes: Many, config: Config = None
    ) -> list[int]:
        """Store many, each from one address; a code for each."""
        return each_flat(keys, buffer_ptrs, sizes, lambda some, runs: self._put_runs(some, runs, config))

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: ManyMany,
        all_sizes: ManyMany,
        config: Config = None,
    ) -> list[int]:
        """Store many, each from several addresses; a code for each."""
        return each_nested(
            keys, all_buffer_ptrs, all_sizes, lambda some, runs: self._put_runs(some, runs, config)
        )

    def _put_runs(self, keys: list[str], runs: Runs, config: Config) -> list[int]:
        store = self._store
        if store is None:
            return [INVALID_PARAMS] * len(keys)
        try:
            results = store.put_runs(keys, runs, replicas=replicas_of(config))
        except KVFerryError as error:
            return [store_code(error, "put")] * len(keys)
        return [store_code(result.error, "put") for result in results]

    def upsert(self, key: str, value: Any, config: Config = None) -> int:
        """Store bytes in place of what is there; readers in between may find nothing."""
        if not _has_bytes(key, value):
            return INVALID_PARAMS
        return self._forget(key) or self.put(key, value, config)

    def upsert_parts(self, key: str, *args: Any, config: Config = None) -> int:
        """As `upsert`, from several buffers."""
        return self._forget(key) or self.put_parts(key, *args, config=config)

    def upsert_batch(self, keys: Sequence[str], values: Sequence[Any], config: Config = None) -> int:
        """As `upsert`, many."""
        if not alike(keys, values):
            return INVALID_PARAMS
        forgotten = self._forget_many(keys)
        return next((code for code in forgotten if code != OK), OK) or self.put_batch(keys, values, config)

    def upsert_from(self, key: str, buffer_ptr: int, size: int, config: Config = None) -> int:
        """As `upsert`, from an address."""
        return self.batch_upsert_from([key], [buffer_ptr], [size], config)[0]

    def batch_upsert_from(
        self, keys: Sequence[str], buffer_ptrs: Many, sizes: Many, config: Config = None
    ) -> list[int]:
        """As `upsert_from`, many; a code for each."""
        return each_flat(keys, buffer_ptrs, sizes, lambda some, runs: self._replace_runs(some, runs, config))

    def _replace_runs(self, keys: list[str], runs: Runs, config: Config) -> list[int]:
        forgotten, put = self._forget_many(keys), self._put_runs(keys, runs, config)
        return [first or second for first, second in zip(forgotten, put, strict=True)]

    def _forget(self, key: str) -> int:
        return self._forget_many([key])[0]

    def _forget_many(self, keys: Sequence[str]) -> list[int]:
        """Remove what is there; a code for each key: where old bytes may be left, nothing is stored."""
        store = self._store
        if store is None:
            return [INVALID_PARAMS] * len(keys)
        try:
            return [store_code(error, "remove") for error in store.remove_many(list(keys))]
        except KVFerryError as error:
            return [store_code(error, "remove") or TRANSFER_FAIL] * len(keys)

    # Reading

    def get(self, key: str) -> bytes:
        """Return a copy of the object; no bytes if it is absent."""
        handle = self.get_buffer(key)
        return b"" if handle is None else handle.tobytes()

    def get_batch(self, keys: Sequence[str]) -> list[bytes]:
        """Return copies of many; no bytes for what is absent."""
        return [self.get(key) for key in keys]

    def get_buffer(self, key: str) -> BufferHandle | None:
        """Return the object to be read in place; None if it is absent."""
        store = self._store
        if store is None:
            return None
        try:
            return BufferHandle.of(store.view(key))
        except UnsupportedError:  # the node is on another host
            return self._copied(store, key)
        except KVFerryError as error:
            store_code(error, "get")
            return None

    def _copied(self, store: Store, key: str) -> BufferHandle | None:
        try:
            found = store.get(key)
        except KVFerryError as error:
            store_code(error, "get")
            return None
        return None if found is None else np.frombuffer(found, np.uint8).view(BufferHandle)

    def batch_get_buffer(self, keys: Sequence[str]) -> list[BufferHandle | None]:
        """Return many to be read in place; None for what is absent."""
        return [self.get_buffer(key) for key in keys]

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Read the object to an address; its size, -704 if it is absent, -600 if it is larger than `size`."""
        return self.batch_get_into([key], [buffer_ptr], [size])[0]

    def batch_get_into(self, keys: Sequence[str], buffer_ptrs: Many, sizes: Many) -> list[int]:
        """Read many, each to one address; what `get_into` says for each."""
        return each_flat(keys, buffer_ptrs, sizes, self._get_runs)

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: ManyMany,
        all_sizes: ManyMany,
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Read many, each to several addresses; what `get_into` says for each."""
        return each_nested(keys, all_buffer_ptrs, all_sizes, self._get_runs)

    def _get_runs(self, keys: list[str], runs: Runs) -> list[int]:
        store = self._store
        if store is None:
            return [INVALID_PARAMS] * len(keys)
        try:
            # A network may have had the bytes, unless they lie in this host's memory.
            here = store.in_place and len(store.members) == 1
            results = store.get_runs_into(keys, runs, verify=None if here else True)
        except KVFerryError as error:
            return [store_code(error, "get")] * len(keys)
        return [
            result.bytes if result.error is None else store_code(result.error, "get") or TRANSFER_FAIL
            for result in results
        ]

    # Sessions

    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]:
        """Begin to read ranges of objects, which stay where they are until the end; 0 or -704 for each."""
        gets = self._gets
        return [INVALID_PARAMS if gets is None else gets.start(key) for key in keys]

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: ManyMany,
        all_sizes: ManyMany,
        all_src_offsets: ManyMany,
    ) -> list[int]:
        """Read ranges of objects with a session; how many bytes, or -600, for each."""
        gets = self._gets
        if gets is None:
            return [INVALID_PARAMS] * len(keys)
        return each_ranges(keys, all_buffer_ptrs, all_sizes, all_src_offsets, gets.read)

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        """End sessions; 0."""
        for key in keys:
            if self._gets is not None:
                self._gets.end(key)
        return OK

    def batch_put_session_start(self, keys: Sequence[str], sizes: Many, config: Config = None) -> list[int]:
        """Begin to write objects of these sizes range by range; 0, or -705 if there is one, for each."""
        puts, replicas = self._puts, replicas_of(config)
        if puts is None or not alike(keys, sizes):
            return [INVALID_PARAMS] * len(keys)
        return [puts.start(key, size, replicas) for key, size in zip(keys, sizes, strict=True)]

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: ManyMany,
        all_sizes: ManyMany,
        all_dst_offsets: ManyMany,
    ) -> list[int]:
        """Write ranges of objects with a session; how many bytes, or -600, for each."""
        puts = self._puts
        if puts is None:
            return [INVALID_PARAMS] * len(keys)
        return each_ranges(keys, all_buffer_ptrs, all_sizes, all_dst_offsets, puts.write)

    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]:
        """Make objects readable; 0 or -600 for each."""
        return [INVALID_PARAMS if self._puts is None else self._puts.end(key) for key in keys]

    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]:
        """Give objects up; 0 or -600 for each."""
        return [INVALID_PARAMS if self._puts is None else self._puts.revoke(key) for key in keys]

    # Asking

    def is_exist(self, key: str) -> int:
        """1: there, 0: absent, -1: no answer."""
        return self.batch_is_exist([key])[0]

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """What `is_exist` says, for each key, in one call."""
        store = self._store
        if store is None:
            return [-1] * len(keys)
        if not keys:
            return []
        try:
            return [int(there) for there in store.exists_many(list(keys))]
        except KVFerryError as error:
            store_code(error, "is_exist")
            return [-1] * len(keys)

    def get_size(self, key: str) -> int:
        """Return the object's size; -704 if it is absent."""
        store = self._store
        if store is None:
            return INVALID_PARAMS
        try:
            [size] = store.sizes([key])
        except KVFerryError as error:
            return store_code(error, "get_size")
        return OBJECT_NOT_FOUND if size is None else size

    # Forgetting: at once, whoever reads keeps the bytes; `force` changes nothing

    def remove(self, key: str, force: bool = False) -> int:
        """Remove an object; 0, or -704 if it is absent."""
        return self.batch_remove([key])[0]

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        """Remove many; what `remove` says for each."""
        store, there = self._store, self.batch_is_exist(keys)
        if store is None:
            return [INVALID_PARAMS] * len(keys)
        try:
            errors = store.remove_many(list(keys))
        except KVFerryError as error:
            return [store_code(error, "remove")] * len(keys)
        return [
            store_code(error, "remove") if found else OBJECT_NOT_FOUND
            for error, found in zip(errors, there, strict=True)
        ]

    def remove_all(self, force: bool = False) -> int:
        """Remove all objects of this tenant; how many."""
        return self._remove_where(lambda _key: True)

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Remove objects in whose keys the pattern is found; how many, -600 for a wrong pattern."""
        try:
            pattern = re.compile(regex_pattern)
        except re.error as error:
            logger.error("the pattern %r is wrong: %s", regex_pattern, error)
            return INVALID_PARAMS
        return self._remove_where(lambda key: pattern.search(key) is not None)

    def _remove_where(self, meant: Callable[[str], bool]) -> int:
        store = self._store
        if store is None:
            return INVALID_PARAMS
        try:
            keys = [info.key for info in store.scan() if meant(info.key.decode(errors="surrogateescape"))]
            for start in range(0, len(keys), _REMOVED_AT_ONCE):
                store.remove_many(keys[start : start + _REMOVED_AT_ONCE])
        except KVFerryError as error:
            return store_code(error, "remove")
        return len(keys)


def _has_bytes(key: str, value: Any) -> bool:
    if memoryview(value).nbytes:
        return True
    refused("no bytes", "%r is to have no bytes; an object has some", key)
    return False
