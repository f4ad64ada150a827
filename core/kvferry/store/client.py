"""The store as programs use it."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from kvferry import _native
from kvferry._native import NodeStats, ObjectInfo
from kvferry.errors import InvalidArgumentError, KVFerryError, NotFoundError, OutOfRangeError
from kvferry.store._arguments import (
    Keys,
    Runs,
    buffers_or_runs,
    flag_argument,
    key_bytes,
    keys_argument,
    runs_of,
    seconds_argument,
    tag_argument,
    tags_argument,
    ttl_argument,
    whole_argument,
)
from kvferry.store.aio import AsyncStore
from kvferry.store.results import GetResult, PutResult
from kvferry.store.view import View
from kvferry.transfer import memory_of

_tuple: Any = tuple.__new__  # a named one from one without names, without a call of Python for each
_MAX_LIST = 1000  # objects asked for at once by `scan`
_MAX_REPLICAS = 16  # as store.replicas


class Store:
    """Puts objects to the nodes of a cluster and gets them back; made by `kvferry.store.open_store`.

    Objects are bytes under keys (at most 1 KiB, any bytes; text counts as UTF-8), written once: putting the
    same bytes again is fine, other bytes under the same key are a `ConflictError`. A cache may forget, so
    every reader must be ready for absence; what it does get are the right bytes. Values are buffers (bytes,
    numpy arrays, torch tensors) or lists of buffers that are stored one behind the other. Calls of one key
    raise errors; calls of many return one result per key, in order. Times are seconds; `timeout_s` None means
    the store's default. All methods are thread-safe and give up the interpreter lock; `aio` has the same ones
    awaitable. A context manager.
    """

    def __init__(self, native: _native.Store, *, timeout_s: float, owned: Any = None) -> None:
        self._native = native
        self._timeout_s = timeout_s
        self._usual = _native.PutArguments()  # of puts without any option
        self._usual.timeout_s = timeout_s
        self._owned = owned  # e.g. the node embedded with it, closed after it

    @functools.cached_property
    def aio(self) -> AsyncStore:
        """The same calls to be awaited."""
        return AsyncStore(self)

    # Writing

    def put(
        self,
        key: bytes | str,
        value: Any,
        *,
        replicas: int = 0,
        ttl_s: float | None = None,
        tags: Sequence[str] = (),
        parent: bytes | str | None = None,
        timeout_s: float | None = None,
    ) -> PutResult:
        """Store `value` under `key`. `replicas` 0: as the cluster's default. `ttl_s`: absent again after that
        long, from 0.001 on and cut to 1e6 (11 days). `parent`: the key before it in its chain.

        Raises `ConflictError` (other bytes are there), `ResourceExhaustedError` (all memory is in use right
        now), `OutOfRangeError` (larger than the node's memory), `InvalidArgumentError`, `UnavailableError`,
        `DeadlineExceededError`.
        """
        arguments = self._put_arguments(replicas, ttl_s, tags, False, timeout_s)
        parents = None if parent is None else [key_bytes(parent)]
        [result] = self._put([key_bytes(key)], buffers_or_runs((value,), writable=False), arguments, parents)
        if result.error is not None:
            raise result.error
        return result

    def put_many(
        self,
        keys: Keys,
        values: Sequence[Any],
        *,
        replicas: int = 0,
        ttl_s: float | None = None,
        tags: Sequence[str] = (),
        parents: Keys | None = None,
        chain: bool = False,
        timeout_s: float | None = None,
    ) -> list[PutResult]:
        """Store many values. `chain`: each key's parent is the one before it, as in a prefix of KV blocks."""
        arguments = self._put_arguments(replicas, ttl_s, tags, chain, timeout_s)
        before = None if parents is None else keys_argument(parents)
        return self._put(keys_argument(keys), buffers_or_runs(values, writable=False), arguments, before)

    def put_runs(
        self,
        keys: Keys,
        runs: Runs,
        *,
        replicas: int = 0,
        ttl_s: float | None = None,
        tags: Sequence[str] = (),
        parents: Keys | None = None,
        chain: bool = False,
        timeout_s: float | None = None,
    ) -> list[PutResult]:
        """As `put_many`, from addresses: for callers that have thousands of runs in arrays."""
        arguments = self._put_arguments(replicas, ttl_s, tags, chain, timeout_s)
        before = None if parents is None else keys_argument(parents)
        return self._put(keys_argument(keys), runs, arguments, before)

    def _put_arguments(
        self, replicas: int, ttl_s: float | None, tags: Sequence[str], chain: bool, timeout_s: float | None
    ) -> _native.PutArguments:
        untimed = ttl_s is None and timeout_s is None and chain is False
        if untimed and isinstance(tags, tuple) and not tags and isinstance(replicas, int) and replicas == 0:
            return self._usual
        arguments = _native.PutArguments()
        arguments.timeout_s = self._timeout(timeout_s)
        replicas = whole_argument("replicas", replicas)
        if not 0 <= replicas <= _MAX_REPLICAS:
            raise InvalidArgumentError(
                f"{replicas} replicas are not possible, only 1 to {_MAX_REPLICAS} (0: as the cluster has it)"
            )
        arguments.replicas = replicas
        arguments.ttl_s = None if ttl_s is None else ttl_argument(ttl_s)
        arguments.tags = tags_argument(tags)
        arguments.chain = flag_argument("chain", chain)
        return arguments

    def _put(
        self, keys: Any, memory: _native.BufferRuns | Runs, arguments: _native.PutArguments, parents: Any
    ) -> list[PutResult]:
        if isinstance(memory, _native.BufferRuns):
            found = self._native.put_buffers(keys, memory, arguments, parents)
        else:  # `Runs`, or what has the same fields
            found = self._native.put(
                keys, memory.addresses, memory.lengths, memory.counts, arguments, parents
            )
        return [_tuple(PutResult, each) for each in found]

    # Reading

    def get(self, key: bytes | str, *, timeout_s: float | None = None) -> bytes | None:
        """Return a copy of the object, or None if it is absent."""
        end = time.monotonic() + self._timeout(timeout_s)
        target = bytearray(4096)
        while True:  # once more if it is longer than guessed, or was stored anew, longer, in between
            left_s = max(end - time.monotonic(), 0.0)
            [result] = self.get_many_into([key], [target], timeout_s=left_s)
            if isinstance(result.error, OutOfRangeError):
                target = bytearray(result.bytes)
            elif isinstance(result.error, NotFoundError):
                return None
            elif result.error is not None:
                raise result.error
            else:
                return bytes(memoryview(target)[: result.bytes])

    def get_into(self, key: bytes | str, target: Any, *, timeout_s: float | None = None) -> int:
        """Read the object into a buffer, or a list of buffers, without a copy in between; return its size.

        Raises `NotFoundError` (absent), `OutOfRangeError` (longer than the target), `DeadlineExceededError`,
        `UnavailableError`. After an error the content of the target is undefined.
        """
        [result] = self._get([key_bytes(key)], buffers_or_runs((target,), writable=True), timeout_s, None)
        if result.error is not None:
            raise result.error
        return result.bytes

    def get_many_into(
        self,
        keys: Keys,
        targets: Sequence[Any],
        *,
        timeout_s: float | None = None,
        verify: bool | None = None,
    ) -> list[GetResult]:
        """Read many objects. `verify`: check the digest of what was read (default: the store's setting)."""
        return self._get(keys_argument(keys), buffers_or_runs(targets, writable=True), timeout_s, verify)

    def get_runs_into(
        self, keys: Keys, runs: Runs, *, timeout_s: float | None = None, verify: bool | None = None
    ) -> list[GetResult]:
        """As `get_many_into`, to addresses: for callers that have thousands of runs in arrays."""
        return self._get(keys_argument(keys), runs, timeout_s, verify)

    def _get(
        self, keys: Any, memory: _native.BufferRuns | Runs, timeout_s: float | None, verify: bool | None
    ) -> list[GetResult]:
        check = None if verify is None else flag_argument("verify", verify)
        limit_s = self._timeout(timeout_s)
        if isinstance(memory, _native.BufferRuns):
            found = self._native.get_into_buffers(keys, memory, limit_s, check)
        else:
            found = self._native.get_into(
                keys, memory.addresses, memory.lengths, memory.counts, limit_s, check
            )
        return [_tuple(GetResult, each) for each in found]

    def get_range(self, key: bytes | str, offset: int, target: Any, *, timeout_s: float | None = None) -> int:
        """Fill the buffer with the object's bytes from `offset` on; return how many.

        Raises as `get_into`; `OutOfRangeError` if offset and length leave the object.
        """
        offset = whole_argument("offset", offset)
        if not 0 <= offset < 1 << 63:
            raise OutOfRangeError(f"an offset of {offset} lies outside any object")
        runs = runs_of([(target,)], writable=True)
        return self._native.get_range(
            key_bytes(key), offset, int(runs.addresses[0]), int(runs.lengths[0]), self._timeout(timeout_s)
        )

    def view(self, key: bytes | str, *, timeout_s: float | None = None) -> View:
        """Pin the object in the memory of this host's node and return a read-only view of it, without a copy.

        What lies on SSD or on another host is brought here first. Raises `NotFoundError`, `UnsupportedError`
        (the node is on another host), `ResourceExhaustedError` (no room here, or too many views),
        `DeadlineExceededError`.
        """
        return View(self._native.view(key_bytes(key), self._timeout(timeout_s)))

    # Asking

    def exists(self, key: bytes | str, *, timeout_s: float | None = None) -> bool:
        """Say whether the object is there. Neither pins it nor counts as an access."""
        return bool(self.exists_many([key], timeout_s=timeout_s)[0])

    def exists_many(self, keys: Keys, *, timeout_s: float | None = None) -> np.ndarray:
        """Return a bool array with one element per key."""
        found = self._native.exists(keys_argument(keys), self._timeout(timeout_s))
        return np.frombuffer(found, dtype=np.bool_)

    def match_prefix(self, keys: Keys, *, timeout_s: float | None = None) -> int:
        """Return how many of the keys, from the first on, are there: one call for a whole chain. Counts as an
        access.
        """
        return self._native.match_prefix(keys_argument(keys), self._timeout(timeout_s))

    def sizes(self, keys: Keys, *, timeout_s: float | None = None) -> list[int | None]:
        """Return each object's size in bytes, None if it is absent."""
        answer: list[int | None] = []
        for found in self._native.sizes(keys_argument(keys), self._timeout(timeout_s)):
            if isinstance(found, int):
                answer.append(found)
            elif isinstance(found, NotFoundError):
                answer.append(None)
            else:
                raise found
        return answer

    def scan(
        self, prefix: bytes | str = b"", *, after: bytes | str = b"", timeout_s: float | None = None
    ) -> Iterator[ObjectInfo]:
        """Go through the objects whose keys begin with `prefix` and come after `after`, sorted by key."""
        last = key_bytes(after)
        while True:
            found = self._native.list_objects(key_bytes(prefix), last, _MAX_LIST, self._timeout(timeout_s))
            yield from found
            if len(found) < _MAX_LIST:
                return
            last = found[-1].key

    # Forgetting, and the rest

    def remove(self, key: bytes | str, *, timeout_s: float | None = None) -> None:
        """Let the object be absent from now on; fine if it is already. Readers that hold it pinned keep their
        bytes.

        Raises `UnavailableError` naming nodes that may still hold a copy; they drop it when they come back.
        What a node holds that left the cluster before is not known: it drops that, too, if it is back within
        10 minutes and not all who heard of the removal are gone; else the object is there again.
        """
        [error] = self.remove_many([key], timeout_s=timeout_s)
        if error is not None:
            raise error

    def remove_many(self, keys: Keys, *, timeout_s: float | None = None) -> list[KVFerryError | None]:
        """Remove many objects; return an error or None for each key."""
        return self._native.remove(keys_argument(keys), self._timeout(timeout_s))

    def remove_tag(self, tag: str, *, timeout_s: float | None = None) -> int:
        """Remove all objects of this tenant that were put with `tag`; return how many.

        Only what living nodes hold is found: one that left the cluster before, and comes back with objects
        on its SSD, has theirs again, to be removed by another call. Raises `UnavailableError` or
        `DeadlineExceededError` naming a member that did not answer; the rest is removed.
        """
        return self._native.remove_tag(tag_argument(tag), self._timeout(timeout_s))

    def prefetch(self, keys: Keys, *, within_s: float = 30.0) -> None:
        """Ask for the objects to be in this host's memory soon; return at once. Only a node that was lost and
        must be found again is waited for, `within_s` at most.

        Raises `UnavailableError`, `DeadlineExceededError` (the node could not be told by then).
        """
        self._native.prefetch(keys_argument(keys), seconds_argument("within_s", within_s))

    def register(self, buffer: Any) -> None:
        """Register memory, so that bytes move between it and other hosts without a copy in between. Optional.

        The memory must stay valid until `unregister`. Raises `InvalidArgumentError`,
        `ResourceExhaustedError`.
        """
        runs = runs_of([(buffer,)], writable=False)
        self._native.register_memory(int(runs.addresses[0]), int(runs.lengths[0]))

    def unregister(self, buffer: Any) -> None:
        """Take a registration back. Raises `NotFoundError` if there is none, `DeadlineExceededError` if it is
        in use.
        """
        self._native.unregister_memory(memory_of(buffer).address)

    def node_stats(self, *, timeout_s: float | None = None) -> NodeStats:
        """Return what the node that this store is attached to holds and has done."""
        return self._native.node_stats(self._timeout(timeout_s))

    @property
    def own_endpoint(self) -> str:
        """Where other processes of this user reach the node that came with this store; empty if none did."""
        return "" if self._owned is None else str(self._owned.endpoint)

    @property
    def members(self) -> list[_native.Member]:
        """The nodes of the cluster as this store knows them."""
        return self._native.members()

    @property
    def in_place(self) -> bool:
        """Whether it is attached to a node of this host, whose memory it reads and writes itself."""
        return self._native.in_place()

    @property
    def error(self) -> KVFerryError | None:
        """None while it is attached to its node, else why not."""
        error: KVFerryError | None = self._native.error()
        return error

    @property
    def counters(self) -> dict[str, int]:
        """What this store has done, by the names of docs/metrics.md."""
        return self._native.counters()

    def close(self) -> None:
        """Detach; fails what is under way. Idempotent."""
        self.__dict__.pop("aio", None)
        self._native.close()
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _timeout(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else seconds_argument("timeout_s", timeout_s)
