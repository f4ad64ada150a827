"""LMCache's objects in the store: many per call, failures counted and logged, never raised.

For LMCache an error is a miss. So what fails here is told by counts and by one log line per cause and
interval, and the caller gets "not there".
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kvferry.config import PoolOptions
from kvferry.errors import ConflictError, KVFerryError, NotFoundError, UnavailableError
from kvferry.handoff import WarningThrottle
from kvferry.pool import StoreLink
from kvferry.store import PutResult

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Objects:
    """The objects whose keys begin with `prefix`. Thread-safe; a call takes at most the time that the section
    `pool` allows for lookups, loads and saves.
    """

    def __init__(self, link: StoreLink, prefix: str, limits: PoolOptions) -> None:
        self._link = link
        self._prefix = prefix.encode()
        self._limits = limits
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._store: Any = None  # what the last call went to
        self._warnings = WarningThrottle()

    @property
    def counts(self) -> dict[str, int]:
        """What was done since the start: `loaded`, `missed`, `saved`, `existed`, `loaded_bytes`,
        `saved_bytes`, and `failed|<what>|<error code>`."""
        with self._lock:
            return dict(self._counts)

    @property
    def reachable(self) -> bool:
        """Whether the store is there, as far as is known without asking. Never blocks."""
        store = self._store
        return store is not None and store.error is None

    def ping(self) -> bool:
        """Say whether the store's node answers now."""

        def ask(store: Any) -> bool:
            store.node_stats(timeout_s=self._limits.lookup_timeout_s)
            return True

        return self._tried("ping", ask, False)

    def present(self, names: Sequence[str]) -> list[bool]:
        """Say of each object whether it is there."""

        def ask(store: Any) -> list[bool]:
            found = store.exists_many(self._keys(names), timeout_s=self._limits.lookup_timeout_s)
            return [bool(each) for each in found]

        return self._tried("lookup", ask, [False] * len(names))

    def still_present(self, names: Sequence[str]) -> list[bool] | None:
        """Say the same where the store is open already; None: nobody knows now."""

        def ask(store: Any) -> list[bool] | None:
            found = store.exists_many(self._keys(names), timeout_s=self._limits.lookup_timeout_s)
            return [bool(each) for each in found]

        return None if self._link.current() is None else self._tried("lookup", ask, None)

    def room(self) -> tuple[int, int]:
        """Return the bytes that the node holds and those that it has room for, memory and SSD together;
        (0, 0) if nobody knows now, and where there are several nodes: then it is not one's alone.
        """

        def ask(store: Any) -> tuple[int, int]:
            if len(store.members) != 1:
                return 0, 0
            stats = store.node_stats(timeout_s=self._limits.lookup_timeout_s)
            return stats.dram_used + stats.ssd_used, stats.dram_bytes + stats.ssd_bytes

        return (0, 0) if self._link.current() is None else self._tried("ping", ask, (0, 0))

    def leading(self, names: Sequence[str]) -> int:
        """Return how many of the objects, from the first on, are there."""

        def ask(store: Any) -> int:
            return int(store.match_prefix(self._keys(names), timeout_s=self._limits.lookup_timeout_s))

        return self._tried("lookup", ask, 0)

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """Return each object's bytes, None if it is absent."""

        def ask(store: Any) -> list[int | None]:
            return list(store.sizes(self._keys(names), timeout_s=self._limits.lookup_timeout_s))

        return self._tried("lookup", ask, [None] * len(names))

    def put(self, names: Sequence[str], values: Sequence[Sequence[Any]]) -> list[PutResult]:
        """Store values, each the buffers that follow one another, where there is none yet.

        An object that is there stays as it is: KV that was computed again may differ in its last bits.
        """
        results = [PutResult(None, False, 0)] * len(names)
        missing = [index for index, found in enumerate(self.present(names)) if not found]
        self._count("existed", len(names) - len(missing))

        def store_them(store: Any) -> list[PutResult]:
            found = store.put_many(
                self._keys([names[index] for index in missing]),
                [list(values[index]) for index in missing],
                timeout_s=self._limits.save_timeout_s,
            )
            return [self._saved(each) for each in found]

        if missing:
            lost = PutResult(UnavailableError("the store could not be reached"), False, 0)
            for index, result in zip(
                missing, self._tried("save", store_them, [lost] * len(missing)), strict=True
            ):
                results[index] = result
                if result.created:
                    self._count("saved_bytes", sum(memoryview(part).nbytes for part in values[index]))
        return results

    def get(self, names: Sequence[str], targets: Sequence[Sequence[Any]]) -> list[int | None]:
        """Read objects into targets, each the buffers to fill one behind the other; return each one's bytes,
        or None if it could not be read. The targets' content is undefined then.
        """

        def read(store: Any) -> list[int | None]:
            results = store.get_many_into(
                self._keys(names),
                [list(each) for each in targets],
                timeout_s=self._limits.load_timeout_s,
                verify=self._link.verify(),
            )
            return [self._loaded(result.error, result.bytes) for result in results]

        return self._tried("load", read, [None] * len(names))

    def remove(self, names: Sequence[str]) -> list[bool]:
        """Let the objects be absent; say of each whether it is now."""

        def ask(store: Any) -> list[bool]:
            errors = store.remove_many(self._keys(names), timeout_s=self._limits.lookup_timeout_s)
            for error in errors:
                if error is not None:
                    self._failed("remove", error)
            return [error is None for error in errors]

        return self._tried("remove", ask, [False] * len(names))

    def listed(self, begin: str = "", *, after: str = "", limit: int | None = None) -> list[tuple[str, int]]:
        """Return names and bytes of the objects whose names begin with `begin` and come after `after`,
        sorted, `limit` at most."""

        def ask(store: Any) -> list[tuple[str, int]]:
            found: list[tuple[str, int]] = []
            last = self._prefix + after.encode() if after else b""
            for info in store.scan(self._prefix + begin.encode(), after=last):
                if limit is not None and len(found) == limit:
                    break
                name = info.key[len(self._prefix) :].decode(errors="replace")
                found.append((name, info.nbytes))
            return found

        return self._tried("list", ask, [])

    def note_unusable(self, cause: str, text: str) -> None:
        """Count and log an object that is there and cannot be used."""
        self._count(f"failed|load|{cause}", 1)
        logger.log(self._warnings.level(("unusable", cause)), "%s", text)

    def close(self) -> None:
        """Let go of the store; fails what is under way. Idempotent."""
        self._link.close()

    def _keys(self, names: Sequence[str]) -> list[bytes]:
        return [self._prefix + name.encode() for name in names]

    def _tried(self, what: str, call: Callable[[Any], T], otherwise: T) -> T:
        try:
            self._store = self._link.get()
            return call(self._store)
        except KVFerryError as error:
            self._failed(what, error)
            return otherwise

    def _saved(self, result: PutResult) -> PutResult:
        if isinstance(result.error, ConflictError):  # somebody else stored it in between
            result = PutResult(None, False, 0)
        if result.error is not None:
            self._failed("save", result.error)
        else:
            self._count("saved" if result.created else "existed", 1)
        return result

    def _loaded(self, error: KVFerryError | None, size: int) -> int | None:
        if isinstance(error, NotFoundError):
            self._count("missed", 1)
            return None
        if error is not None:
            self._failed("load", error)
            return None
        self._count("loaded", 1)
        self._count("loaded_bytes", size)
        return size

    def _failed(self, what: str, error: KVFerryError) -> None:
        self._count(f"failed|{what}|{error.code}", 1)
        logger.log(self._warnings.level((what, error.code)), "a %s failed: %s", what, error)

    def _count(self, name: str, count: int) -> None:
        if count:
            with self._lock:
                self._counts[name] += count
