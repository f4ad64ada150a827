"""Pages in the store, for engines that look up, load and save by themselves, in threads of their own.

A page of one rank is one object: its pieces, wherever they lie in the engine's memory, one behind the other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kvferry.config import Config
from kvferry.errors import ConflictError, DataCorruptError, KVFerryError, NotFoundError
from kvferry.handoff import WarningThrottle
from kvferry.pool.link import StoreLink
from kvferry.pool.service import REMOVE_TIMEOUT_S, bring_node, registered
from kvferry.store import PutResult, Runs, open_embedded, open_store

logger = logging.getLogger(__name__)


class PagePool:
    """The pool as such an engine uses it. Thread-safe; a call returns within its `pool.*_timeout_s`.

    None of the calls that move or look for pages raises: what fails counts as absent or not saved, is
    counted, and is logged once in a while. Names are those of `names_of`, uint8 [values, 18].
    """

    def __init__(self, config: Config, *, open_node: Callable[[Config], Any] = open_embedded) -> None:
        """Use this machine's node, or bring one along if none runs and `pool.node` allows it.

        Raises KVFerryError if that node cannot be made. One that does not answer yet is tried again later.
        """
        self._config = config
        self._embedded = bring_node(config, open_node)
        self._lock = threading.Lock()
        self._buffers: list[Any] = []
        self._counts: Counter[str] = Counter()
        self._warnings = WarningThrottle()
        self._link = StoreLink(self._open, checked=config.transfer.checksum)
        if self._embedded is not None:
            self._link.get()

    @property
    def embedded(self) -> bool:
        """Whether the node came with this pool, and goes with it."""
        return self._embedded is not None

    def keep(self, buffer: Any) -> None:
        """Register memory that pages lie in, so that other hosts' pages are read straight into it. It must
        stay as it is until `close`.
        """
        with self._lock:
            self._buffers.append(buffer)
        store = self._link.current()
        if store is not None:
            registered(store, [buffer])

    def attach(self) -> None:
        """Open the way to the store now rather than when it is needed. Blocks for some seconds at most."""
        self._link.attach()

    def hits(self, names: np.ndarray) -> int:
        """Return how many of the values are there, from the first on."""
        found = 0
        if len(names):
            found = self._asked(lambda store, left_s: store.match_prefix(names, timeout_s=left_s), 0)
        return int(found)

    def present(self, names: np.ndarray) -> np.ndarray:
        """Return for each of the values whether it is there."""
        if not len(names):
            return np.zeros(0, np.bool_)
        absent = np.zeros(len(names), np.bool_)
        found: np.ndarray = self._asked(
            lambda store, left_s: store.exists_many(names, timeout_s=left_s), absent
        )
        return found

    def load(self, names: np.ndarray, runs: Runs) -> list[bool]:
        """Read values into memory; return for each whether it is there. Memory of one that is not may hold
        anything.
        """
        sizes = _sizes(runs)
        try:
            store, timeout_s = self._link.get(), self._config.pool.load_timeout_s
            results = store.get_runs_into(names, runs, timeout_s=timeout_s, verify=self._link.verify())
        except KVFerryError as error:
            self._failed("load", error)
            self._count({"loads|failed": 1})
            return [False] * len(names)
        loaded = []
        for result, size in zip(results, sizes, strict=True):
            failure = result.error
            if failure is None and result.bytes != size:
                failure = DataCorruptError(f"a page in the pool has {result.bytes} bytes, not {size}")
            if failure is not None:
                self._failed("load", failure)
            loaded.append(failure is None)
        moved = sum(size for size, ok in zip(sizes, loaded, strict=True) if ok)
        outcome = "loaded" if all(loaded) else "failed"
        self._count({f"loads|{outcome}": 1, "loaded_bytes": moved})
        return loaded

    def save(self, names: np.ndarray, runs: Runs, *, parents: Sequence[bytes], tag: str) -> list[bool]:
        """Write values that are not there yet; return for each whether it is there now.

        `parents`: the name of the page before each, empty for none. `tag`: for `forget`.
        """
        end = time.monotonic() + self._config.pool.save_timeout_s
        there = np.zeros(len(names), np.bool_)
        try:
            store = self._link.get()
            there = np.array(store.exists_many(names, timeout_s=self._config.pool.save_timeout_s))
            missing = np.flatnonzero(~there)
            self._count({"saved_blocks|existed": len(names) - len(missing)})
            if len(missing):
                chosen = _chosen(runs, missing)
                results = store.put_runs(
                    names[missing],
                    chosen,
                    parents=[parents[index] for index in missing.tolist()],
                    tags=[tag],
                    timeout_s=max(end - time.monotonic(), 0.001),
                )
                there[missing] = self._saved(results, _sizes(chosen))
        except KVFerryError as error:
            self._failed("save", error)
            self._count({"saved_blocks|failed": int(np.count_nonzero(~there))})
        return [bool(each) for each in there]

    def _saved(self, results: Sequence[PutResult], sizes: Sequence[int]) -> list[bool]:
        counts: Counter[str] = Counter()
        saved = []
        for result, size in zip(results, sizes, strict=True):
            # Another process's page of this name: the same tokens, computed elsewhere, are as good.
            ok = result.error is None or isinstance(result.error, ConflictError)
            if not ok and result.error is not None:
                self._failed("save", result.error)
            outcome = "failed" if not ok else "saved" if result.created else "existed"
            counts[f"saved_blocks|{outcome}"] += 1
            counts["saved_bytes"] += size if outcome == "saved" else 0
            saved.append(ok)
        self._count(counts)
        return saved

    def forget(self, tag: str) -> int | None:
        """Remove everything that was saved with `tag`; return how many objects, None if that failed. For
        administrators.
        """
        try:
            return int(self._link.get().remove_tag(tag, timeout_s=REMOVE_TIMEOUT_S))
        except KVFerryError as error:
            logger.warning("the pool could not be emptied: %s", error)
            return None

    def take_counts(self) -> dict[str, int]:
        """Return what was counted since the last call, as `metric|label`, see kvferry_pool_* in the table."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            return {name: count for name, count in counts.items() if count}

    def close(self) -> None:
        """Detach, and end the node if it is ours; idempotent. What runs fails."""
        self._link.close()
        with self._lock:
            self._buffers.clear()

    def _open(self) -> Any:
        store = self._embedded if self._embedded is not None else open_store(self._config)
        with self._lock:
            buffers = list(self._buffers)
        return registered(store, buffers)

    def _asked(self, question: Callable[[Any, float], Any], default: Any) -> Any:
        try:
            answer = question(self._link.get(), self._config.pool.lookup_timeout_s)
        except KVFerryError as error:
            self._count({"lookups|failed": 1})
            logger.log(self._warnings.level(("lookup", error.code)), "the pool was not asked: %s", error)
            return default
        self._count({f"lookups|{'hit' if np.any(answer) else 'miss'}": 1})
        return answer

    def _failed(self, what: str, error: KVFerryError) -> None:
        self._count({f"{what}_failures|{error.code}": 1})
        # A page that left the pool between the look-up and its load is nothing to be told of.
        level = (
            logging.DEBUG if isinstance(error, NotFoundError) else self._warnings.level((what, error.code))
        )
        logger.log(level, "a %s of pages failed: %s", what, error)

    def _count(self, counts: Mapping[str, int]) -> None:
        with self._lock:
            self._counts.update(counts)


def _sizes(runs: Runs) -> list[int]:
    """Return the bytes of each value."""
    ends = np.cumsum(runs.counts)
    total = np.concatenate([[0], np.cumsum(runs.lengths.astype(np.int64))])
    return [int(each) for each in total[ends] - total[ends - runs.counts]]


def _chosen(runs: Runs, values: np.ndarray) -> Runs:
    """Return the runs of some of the values."""
    if len(values) == len(runs.counts):
        return runs
    wanted = np.zeros(len(runs.counts), np.bool_)
    wanted[values] = True
    kept = np.repeat(wanted, runs.counts)
    return Runs(runs.addresses[kept], runs.lengths[kept], runs.counts[wanted], runs.owners)
