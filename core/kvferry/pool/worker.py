"""The worker's side of the pool: moves blocks between an engine's KV cache and the store, on threads of its
own.

A block of one rank is one object: the bytes of all layers of its group, one behind the other. The store
reads and writes the engine's memory in place.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvferry.errors import (
    CancelledError,
    DataCorruptError,
    DeadlineExceededError,
    InternalError,
    KVFerryError,
    OutOfRangeError,
)
from kvferry.handoff import WarningThrottle
from kvferry.pool.jobs import BlockSpan, LoadJob, PoolOrders, SavedCounts, SaveJob
from kvferry.pool.keys import names_of
from kvferry.pool.memory import GroupMemory

logger = logging.getLogger(__name__)

BATCH_BYTES = 32 << 20  # moved by one call; between calls a load can be cancelled
AT_ONCE_S = 0.1  # how long an idle step may load itself
SLOW_S = 0.02  # what takes longer was not in memory, or the processor is busy,
PAUSE_S = 2.0  # and idle steps leave loads to other threads for so long


class PoolLoad(NamedTuple):
    """How a load ended. `error` None: all blocks arrived. `blocks`: how many of the first ones did, of all
    groups, in order of the job's spans.
    """

    request_id: str
    error: KVFerryError | None
    blocks: int
    bytes: int
    seconds: float  # from the order to the end

    @property
    def cancelled(self) -> bool:
        """Whether it ended because nobody wanted it any more."""
        return isinstance(self.error, CancelledError)


class PoolLimits(NamedTuple):
    """Times of a worker, in seconds, queueing included."""

    load_timeout_s: float = 10.0
    save_timeout_s: float = 30.0


class _Runs(NamedTuple):
    """As `kvferry.store.Runs`."""

    addresses: np.ndarray
    lengths: np.ndarray
    counts: np.ndarray
    owners: list[object]


class _Load:
    def __init__(self, job: LoadJob, started_at: float) -> None:
        self.job = job
        self.started_at = started_at
        self.cancelled = False
        self.blocks = 0
        self.bytes = 0


class PoolWorker:
    """One worker's loads and saves. Thread-safe; no method but `close` blocks.

    `store` returns the store, or raises `KVFerryError`; it may connect first. `local` returns it if blocks
    lie in this machine's memory, most likely, else None. `verify` says whether reads check digests, see
    `StoreLink`. `loads` and `saves` run a job on another thread, and bound by their number of threads how
    many run at once.
    """

    def __init__(
        self,
        store: Callable[[], Any],
        memory: Sequence[GroupMemory],
        *,
        rank: int,
        loads: Callable[[Callable[[], None]], bool],
        saves: Callable[[Callable[[], None]], bool],
        limits: PoolLimits,
        local: Callable[[], Any] = lambda: None,
        verify: Callable[[], bool | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._local = local
        self._verify = verify
        self._at_once_from = clock()
        self._memory = tuple(memory)
        self._rank = rank
        self._submit_load = loads
        self._submit_save = saves
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._loads: dict[str, _Load] = {}
        self._results: list[PoolLoad] = []
        self._saved: Counter[int] = Counter()
        self._saves_running = 0
        self._counts: Counter[str] = Counter()
        self._warnings = WarningThrottle(clock=clock)

    def start_loads(self, orders: PoolOrders, *, idle: bool = False) -> None:
        """Begin the loads of a step, and end those that nobody wants any more.

        `idle`: the step has nothing else to do, so what lies in this machine's memory is loaded here and now,
        in at most `AT_ONCE_S`: other threads would have to be waited for.
        """
        at_once_until = self._clock() + AT_ONCE_S if idle else 0.0
        for job in orders.loads:
            load = _Load(job, self._clock())
            with self._lock:
                if job.request_id in self._loads:
                    self._counts["loads|duplicate"] += 1
                    continue
                self._loads[job.request_id] = load
            if self._loaded_at_once(load, at_once_until):
                continue
            if not self._submit_load(functools.partial(self._run_load, load)):
                self._end_load(load, CancelledError("the engine is shutting down"))
        for request_id in orders.cancels:
            with self._lock:
                wanted = self._loads.get(request_id)
                if wanted is not None:
                    wanted.cancelled = True

    def start_saves(self, orders: PoolOrders) -> None:
        """Begin the saves of a step; to be called when the step has written its blocks."""
        if not orders.saves:
            return
        deadline = self._clock() + self._limits.save_timeout_s
        with self._lock:
            self._saves_running += len(orders.saves)
        for jobs in self._together(orders.saves):
            if not self._submit_save(functools.partial(self._run_saves, jobs, orders.tag, deadline)):
                self._end_saves(jobs)

    @property
    def saving(self) -> bool:
        """Whether saves are under way and none waits to be taken note of."""
        with self._lock:
            return self._saves_running > 0 and not self._saved

    def take_results(self) -> list[PoolLoad]:
        """Return the loads that ended since the last call, each once."""
        if not self._results:
            return []
        with self._lock:
            results, self._results = self._results, []
            return results

    def take_saved(self) -> SavedCounts | None:
        """Return the save jobs that ended since the last call, each once: nothing reads their blocks."""
        if not self._saved:
            return None
        with self._lock:
            saved, self._saved = self._saved, Counter()
        return SavedCounts(dict(saved)) if saved else None

    def take_counts(self) -> dict[str, int]:
        """Return what was counted since the last call, as `metric|label`, see kvferry_pool_* in the table."""
        if not self._counts:
            return {}
        with self._lock:
            counts, self._counts = self._counts, Counter()
            return {name: count for name, count in counts.items() if count}

    def _loaded_at_once(self, load: _Load, until: float) -> bool:
        """Load in this thread if that is quick; False: it is not, or not known to be."""
        if not self._at_once_from <= self._clock() < until or self._local() is None:
            return False
        started = self._clock()
        failure = self._tried(load, until)
        if self._clock() - started > SLOW_S:
            self._at_once_from = self._clock() + PAUSE_S
        if isinstance(failure, DeadlineExceededError):
            load.blocks = load.bytes = 0
            return False
        self._end_load(load, failure)
        return True

    def _run_load(self, load: _Load) -> None:
        self._end_load(load, self._tried(load, load.started_at + self._limits.load_timeout_s))

    def _tried(self, load: _Load, deadline: float) -> KVFerryError | None:
        """Load; return why that failed. A bug must neither keep the request for ever nor reach an engine's
        step."""
        try:
            self._load(load, deadline)
        except KVFerryError as failure:
            return failure
        except Exception as failure:
            logger.exception("load of request %s from the pool failed unexpectedly", load.job.request_id)
            return InternalError(f"{type(failure).__name__}: {failure}")
        return None

    def _load(self, load: _Load, deadline: float) -> None:
        for batch in self._batches(load.job.spans):
            if load.cancelled:
                raise CancelledError("the request was aborted")
            left_s = self._left_s(deadline, load.job.request_id)
            runs, sizes = self._runs(batch)
            results = self._store().get_runs_into(
                names_of(batch.keys, [self._rank]), runs, timeout_s=left_s, verify=self._verify()
            )
            for result, size in zip(results, sizes, strict=True):
                if result.error is not None:
                    raise result.error
                if result.bytes != size:
                    raise DataCorruptError(f"a block in the pool has {result.bytes} bytes, not {size}")
                load.blocks += 1
                load.bytes += size

    def _left_s(self, deadline: float, request_id: str) -> float:
        left_s = deadline - self._clock()
        if left_s <= 0:
            raise DeadlineExceededError(
                f"request {request_id} was not loaded from the pool within "
                f"{self._limits.load_timeout_s:.1f} s (pool.load_timeout_s)"
            )
        return left_s

    def _end_load(self, load: _Load, error: KVFerryError | None) -> None:
        seconds = self._clock() - load.started_at
        result = PoolLoad(load.job.request_id, error, load.blocks, load.bytes, seconds)
        outcome = "cancelled" if result.cancelled else "failed" if error else "loaded"
        with self._lock:
            del self._loads[load.job.request_id]
            self._results.append(result)
            self._counts[f"loads|{outcome}"] += 1
            self._counts["loaded_bytes"] += load.bytes if error is None else 0
            if outcome == "failed" and error is not None:
                self._counts[f"load_failures|{error.code}"] += 1
        if outcome == "failed" and error is not None:
            level = self._warnings.level(("load", error.code))
            logger.log(
                level, "request %s is computed after %d blocks from the pool: %s",
                result.request_id, result.blocks, error,
            )  # fmt: skip

    def _together(self, jobs: Sequence[SaveJob]) -> Iterator[list[SaveJob]]:
        """Cut a step's saves into pieces for one thread each: many requests add a block in the same step, and
        what a call costs besides its bytes is paid once."""
        piece: list[SaveJob] = []
        size = 0
        for job in jobs:
            job_bytes = sum(len(span.keys) * self._block_bytes(span.group) for span in job.spans)
            if piece and size + job_bytes > BATCH_BYTES:
                yield piece
                piece, size = [], 0
            piece.append(job)
            size += job_bytes
        if piece:
            yield piece

    def _run_saves(self, jobs: Sequence[SaveJob], tag: str, deadline: float) -> None:
        try:
            for batch in self._batches(_joined([span for job in jobs for span in job.spans])):
                self._save(batch, tag, deadline)
        except KVFerryError as error:
            self._save_failed(error)
        except Exception as error:
            logger.exception("a save to the pool failed unexpectedly")
            self._save_failed(InternalError(f"{type(error).__name__}: {error}"))
        finally:  # whatever happened: without an answer the engine would keep the blocks for ever
            self._end_saves(jobs)

    def _save(self, batch: BlockSpan, tag: str, deadline: float) -> None:
        left_s = deadline - self._clock()
        if left_s <= 0:
            raise DeadlineExceededError("blocks waited for longer than pool.save_timeout_s for their save")
        store = self._store()
        names = names_of(batch.keys, [self._rank])
        missing = np.flatnonzero(~store.exists_many(names, timeout_s=left_s))
        self._count("saved_blocks|existed", len(names) - len(missing))
        if not len(missing):
            return
        suffix = names[0].tobytes()[len(batch.keys[0]) :]
        wanted = BlockSpan(
            batch.group,
            tuple(batch.keys[i] for i in missing),
            tuple(batch.block_ids[i] for i in missing),
            tuple(batch.parents[i] + suffix if batch.parents[i] else b"" for i in missing),
        )
        runs, sizes = self._runs(wanted)
        results = store.put_runs(
            names[missing],
            runs,
            parents=wanted.parents,
            tags=[tag],
            timeout_s=max(deadline - self._clock(), 0.001),
        )
        for result, size in zip(results, sizes, strict=True):
            if result.error is None:
                self._count("saved_blocks|saved" if result.created else "saved_blocks|existed", 1)
                self._count("saved_bytes", size if result.created else 0)
            else:
                self._save_failed(result.error)

    def _save_failed(self, error: KVFerryError) -> None:
        self._count("saved_blocks|failed", 1)
        self._count(f"save_failures|{error.code}", 1)
        level = self._warnings.level(("save", error.code))
        logger.log(level, "blocks were not saved to the pool: %s", error)

    def _end_saves(self, jobs: Sequence[SaveJob]) -> None:
        with self._lock:
            self._saved.update(job.job_id for job in jobs)
            self._saves_running -= len(jobs)

    def _batches(self, spans: Sequence[BlockSpan]) -> Iterator[BlockSpan]:
        """Cut spans into pieces of at most `BATCH_BYTES`, at least one block each."""
        for span in spans:
            if not 0 <= span.group < len(self._memory):
                raise OutOfRangeError(f"there is no KV cache group {span.group}")
            size = max(1, BATCH_BYTES // max(1, self._block_bytes(span.group)))
            for first in range(0, len(span.keys), size):
                cut = slice(first, first + size)
                yield BlockSpan(span.group, span.keys[cut], span.block_ids[cut], span.parents[cut])

    def _block_bytes(self, group: int) -> int:
        """Bytes of a block; 0: all layers are in other stages, or there is no such group."""
        return int(self._memory[group].block_bytes.sum()) if group < len(self._memory) else 0

    def _runs(self, span: BlockSpan) -> tuple[_Runs, list[int]]:
        """Return where the blocks of a span lie, and each one's size."""
        memory = self._memory[span.group]
        ids = np.array(span.block_ids, dtype=np.uint64)
        if len(ids) and int(ids.max()) >= memory.num_blocks:
            raise OutOfRangeError(f"block {ids.max()} is outside the cache of {memory.num_blocks} blocks")
        addresses = memory.addresses[None, :] + ids[:, None] * memory.strides[None, :]
        layers = len(memory.addresses)
        runs = _Runs(
            addresses.reshape(-1),
            np.tile(memory.block_bytes, len(ids)),
            np.full(len(ids), layers, dtype=np.int64),
            [],
        )
        return runs, [int(memory.block_bytes.sum())] * len(ids)

    def _count(self, name: str, count: int) -> None:
        with self._lock:
            self._counts[name] += count


def _joined(spans: Sequence[BlockSpan]) -> list[BlockSpan]:
    """Return the same blocks, in one span for each group."""
    by_group: dict[int, list[BlockSpan]] = {}
    for span in spans:
        by_group.setdefault(span.group, []).append(span)
    return [
        BlockSpan(
            group,
            tuple(key for span in found for key in span.keys),
            tuple(block for span in found for block in span.block_ids),
            tuple(parent for span in found for parent in span.parents),
        )
        for group, found in by_group.items()
    ]
