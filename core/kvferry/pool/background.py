"""Loads and saves that go on while an engine's scheduler does, each kind in its order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from kvferry.errors import DeadlineExceededError


class BackgroundJobs:
    """Two threads, one for loads and one for saves, and what the saves came to. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._done: deque[bool] = deque()
        self._unfinished: set[Future[None]] = set()
        self._generation = 0  # since the last reset; of older ones nobody is told
        self._loads = ThreadPoolExecutor(1, thread_name_prefix="kvferry-pool-load")
        self._saves = ThreadPoolExecutor(1, thread_name_prefix="kvferry-pool-save")

    def load(self, job: Callable[[], None]) -> None:
        """Queue a load."""
        self._start(self._loads, job)

    def save(self, job: Callable[[], bool]) -> None:
        """Queue a save, which returns whether it succeeded; it has not if it raises."""
        with self._lock:
            generation = self._generation

        def run() -> None:
            saved = False
            try:
                saved = job()
            finally:
                self._ended(saved, generation)

        self._start(self._saves, run)

    def nothing_to_save(self) -> None:
        """Count a save that succeeded, without one."""
        with self._lock:
            self._done.append(True)

    def completed_saves(self) -> int:
        """Return how many saves have ended and were not popped."""
        with self._lock:
            return len(self._done)

    def pop_completed_save(self) -> bool:
        """Return whether the oldest of them succeeded. Raises IndexError if there is none."""
        with self._lock:
            return self._done.popleft()

    def reset(self, timeout_s: float) -> None:
        """Drop what has not started, wait for what runs, and forget what all of it came to.

        Raises DeadlineExceededError if something still runs after `timeout_s`: it may read or write the
        cache's memory at any time.
        """
        with self._lock:
            self._generation += 1
            self._done.clear()
            unfinished = set(self._unfinished)
        running = [future for future in unfinished if not future.cancel()]
        busy = wait(running, timeout_s).not_done
        if busy:
            raise DeadlineExceededError(
                f"{len(busy)} of KVFerry's loads and saves still use the KV cache after {timeout_s:g} s, so "
                "it cannot be emptied: look whether `kvferry node` still answers, and start the engine anew"
            )

    def close(self) -> None:
        """Start nothing any more; idempotent."""
        for threads in (self._loads, self._saves):
            threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, threads: ThreadPoolExecutor, job: Callable[[], None]) -> None:
        future = threads.submit(job)
        with self._lock:
            self._unfinished.add(future)
        future.add_done_callback(self._forget)

    def _forget(self, future: Future[None]) -> None:
        with self._lock:
            self._unfinished.discard(future)

    def _ended(self, saved: bool, generation: int) -> None:
        with self._lock:
            if generation == self._generation:
                self._done.append(saved)
