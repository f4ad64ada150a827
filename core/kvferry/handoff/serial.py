"""A thread that owns some state: others post jobs to it and go on."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

Job = Callable[[], object]

TICK_S = 0.1
COALESCE_S = 0.002  # what is posted within this time is flushed together


class SerialThread:
    """Runs posted jobs in order, then `flush`; `tick` about ten times a second. `post` never blocks.

    `flush` says whether it wants to be called again soon although nothing was posted.
    """

    def __init__(self, name: str, flush: Callable[[], bool], tick: Callable[[], None]) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._flush = flush
        self._tick = tick
        self._closed = False  # set by the thread
        self.post: Callable[[Job], None] = self._jobs.put
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop the thread after what is queued, and wait for it."""
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        next_tick, again = 0.0, False
        while not self._closed:
            try:
                job = self._jobs.get(timeout=COALESCE_S if again else TICK_S)
            except queue.Empty:
                pass
            else:
                time.sleep(COALESCE_S)
                self._run_all(job)
            again = self._guarded(self._flush) is True
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK_S
                self._guarded(self._tick)

    def _run_all(self, job: Job | None) -> None:
        while job is not None:
            self._guarded(job)
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
        self._closed = True

    def _guarded(self, job: Job) -> object:
        """Run a job; the thread must outlive a bug in it, or all streams would hang until their deadlines."""
        try:
            return job()
        except Exception:
            self.failures += 1
            logger.exception("a job of the stream thread failed")
            return None
