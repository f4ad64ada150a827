"""One log line per interval that sums a worker's hand-offs up."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from kvferry.handoff.consumer import LoadResult

logger = logging.getLogger(__name__)

# Counts that say something went wrong, shown only when they are not zero.
_TROUBLES = (
    "expired",
    "late_notices",
    "unknown_notices",
    "duplicate_notices",
    "malformed_messages",
    "late_answers",
    "release_failures",
    "failed_renewals",
    "internal_errors",
)


class Summary:
    """Collects results and counts, and logs them when an interval with activity is over. Thread-safe."""

    def __init__(self, interval_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._next_at = clock() + interval_s
        self._begin()

    def add(self, results: Iterable[LoadResult], counts: Mapping[str, int]) -> None:
        """Take in what has happened since the last call."""
        with self._lock:
            self._counts.update(counts)
            for result in results:
                self._outcomes[
                    "cancelled" if result.cancelled else "failed" if result.error else "loaded"
                ] += 1
                if result.error is None:
                    self._bytes[result.transport] += result.bytes
                    self._seconds.append(result.seconds)

    def tick(self) -> None:
        """Log if the interval is over and anything happened in it."""
        with self._lock:
            if self._clock() < self._next_at:
                return
            self._next_at = self._clock() + self._interval_s
            line = self._line()
            self._begin()
        if line:
            logger.info("%s", line)

    def _begin(self) -> None:
        self._counts: Counter[str] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._seconds: list[float] = []

    def _line(self) -> str:
        parts = [
            f"{name}={self._outcomes[name]}" for name in ("loaded", "failed", "cancelled") if self._outcomes
        ]
        parts += [f"{transport}_bytes={size}" for transport, size in sorted(self._bytes.items())]
        if self._seconds:
            ordered = sorted(self._seconds)
            parts += [f"load_p50_s={ordered[len(ordered) // 2]:.4f}", f"load_max_s={ordered[-1]:.4f}"]
        if self._counts["granted"]:
            parts += [f"leases={self._counts['granted']}", f"fetched={self._counts['done']}"]
        parts += [f"{name}={self._counts[name]}" for name in _TROUBLES if self._counts[name]]
        return f"last {self._interval_s:.0f} s: {' '.join(parts)}" if parts else ""
