"""The store's calls to be awaited.

A native call gives up the interpreter lock while it waits, so a thread per call under way is all it takes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from kvferry._native import NodeStats, ObjectInfo
from kvferry.errors import KVFerryError
from kvferry.store.results import GetResult, PutResult
from kvferry.store.view import View

if TYPE_CHECKING:
    from kvferry.store._arguments import Keys
    from kvferry.store.client import Store

_MAX_CALLS = 32  # under way at once; more wait their turn

P = ParamSpec("P")
T = TypeVar("T")


class AsyncStore:
    """Awaitable forms of the calls of `Store`, with the same arguments, results and errors.

    Cancelling a task does not cancel its call, which ends at its own deadline; memory that it reads into
    belongs to it until then.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pid = os.getpid()
        self._threads = ThreadPoolExecutor(_MAX_CALLS, thread_name_prefix="kvferry-store")

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if os.getpid() != self._pid:  # forked: the threads stayed behind, and every call fails at once
            return call(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))

    async def put(self, key: bytes | str, value: Any, **options: Any) -> PutResult:
        """As `Store.put`."""
        return await self._run(self._store.put, key, value, **options)

    async def put_many(self, keys: Keys, values: Sequence[Any], **options: Any) -> list[PutResult]:
        """As `Store.put_many`."""
        return await self._run(self._store.put_many, keys, values, **options)

    async def get(self, key: bytes | str, *, timeout_s: float | None = None) -> bytes | None:
        """As `Store.get`."""
        return await self._run(self._store.get, key, timeout_s=timeout_s)

    async def get_into(self, key: bytes | str, target: Any, *, timeout_s: float | None = None) -> int:
        """As `Store.get_into`."""
        return await self._run(self._store.get_into, key, target, timeout_s=timeout_s)

    async def get_many_into(self, keys: Keys, targets: Sequence[Any], **options: Any) -> list[GetResult]:
        """As `Store.get_many_into`."""
        return await self._run(self._store.get_many_into, keys, targets, **options)

    async def get_range(
        self, key: bytes | str, offset: int, target: Any, *, timeout_s: float | None = None
    ) -> int:
        """As `Store.get_range`."""
        return await self._run(self._store.get_range, key, offset, target, timeout_s=timeout_s)

    async def view(self, key: bytes | str, *, timeout_s: float | None = None) -> View:
        """As `Store.view`."""
        return await self._run(self._store.view, key, timeout_s=timeout_s)

    async def exists(self, key: bytes | str, *, timeout_s: float | None = None) -> bool:
        """As `Store.exists`."""
        return await self._run(self._store.exists, key, timeout_s=timeout_s)

    async def exists_many(self, keys: Keys, *, timeout_s: float | None = None) -> np.ndarray:
        """As `Store.exists_many`."""
        return await self._run(self._store.exists_many, keys, timeout_s=timeout_s)

    async def match_prefix(self, keys: Keys, *, timeout_s: float | None = None) -> int:
        """As `Store.match_prefix`."""
        return await self._run(self._store.match_prefix, keys, timeout_s=timeout_s)

    async def scan(
        self, prefix: bytes | str = b"", *, after: bytes | str = b"", timeout_s: float | None = None
    ) -> AsyncIterator[ObjectInfo]:
        """As `Store.scan`."""
        found = self._store.scan(prefix, after=after, timeout_s=timeout_s)
        end = object()
        while (info := await self._run(next, found, end)) is not end:
            assert isinstance(info, ObjectInfo)  # noqa: S101  (tells the type checker)
            yield info

    async def sizes(self, keys: Keys, *, timeout_s: float | None = None) -> list[int | None]:
        """As `Store.sizes`."""
        return await self._run(self._store.sizes, keys, timeout_s=timeout_s)

    async def node_stats(self, *, timeout_s: float | None = None) -> NodeStats:
        """As `Store.node_stats`."""
        return await self._run(self._store.node_stats, timeout_s=timeout_s)

    async def remove(self, key: bytes | str, *, timeout_s: float | None = None) -> None:
        """As `Store.remove`."""
        await self._run(self._store.remove, key, timeout_s=timeout_s)

    async def remove_many(self, keys: Keys, *, timeout_s: float | None = None) -> list[KVFerryError | None]:
        """As `Store.remove_many`."""
        return await self._run(self._store.remove_many, keys, timeout_s=timeout_s)

    async def remove_tag(self, tag: str, *, timeout_s: float | None = None) -> int:
        """As `Store.remove_tag`."""
        return await self._run(self._store.remove_tag, tag, timeout_s=timeout_s)
