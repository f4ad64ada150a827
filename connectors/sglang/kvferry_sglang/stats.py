"""Statistics of the third level, for SGLang's metrics."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import prometheus_client
from sglang.srt.observability.metrics_collector import StorageMetrics

from kvferry.metrics import Kind, metrics_of

PREFIX = "sglang:"
_SKIPPED = {  # as what a call counts that could not be made
    "look-up": "lookups|failed",
    "read": "load_failures|internal",
    "write": "save_failures|internal",
}


class Rates:
    """Pages and speed of reads and writes, as SGLang counts them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metrics = StorageMetrics()

    def read(self, pages: int, page_bytes: int, seconds: float) -> None:
        """Note a read of so many pages."""
        with self._lock:
            _note(self._metrics.prefetch_pgs, self._metrics.prefetch_bandwidth, pages, page_bytes, seconds)

    def written(self, pages: int, page_bytes: int, seconds: float) -> None:
        """Note a write of so many pages."""
        with self._lock:
            _note(self._metrics.backup_pgs, self._metrics.backup_bandwidth, pages, page_bytes, seconds)

    def take(self) -> StorageMetrics:
        """Return what was noted since the last call."""
        with self._lock:
            taken, self._metrics = self._metrics, StorageMetrics()
        return taken


def _note(pages_of: list[int], speeds: list[float], pages: int, page_bytes: int, seconds: float) -> None:
    if pages:
        pages_of.append(pages)
        speeds.append(pages * page_bytes / 2**30 / max(seconds, 1e-9))


class StorageCounters:
    """KVFerry's own counts of the pool (docs/metrics.md) among SGLang's metrics. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._skipped: Counter[str] = Counter()

    def skipped(self, what: str) -> None:
        """Note a call that could not be made at all."""
        if what in _SKIPPED:
            with self._lock:
                self._skipped[_SKIPPED[what]] += 1

    def add(self, counts: Mapping[str, int]) -> None:
        """Add counts by `metric|label`."""
        with self._lock:
            skipped, self._skipped = self._skipped, Counter()
        for key, count in (Counter(counts) + skipped).items():
            name, _, label = key.partition("|")
            counter = _counters()[f"kvferry_pool_{name}_total"]
            (counter.labels(label) if label else counter).inc(count)


@functools.cache
def _counters() -> dict[str, Any]:
    """Return the counters of this process, which all engines in it share as they share its registry."""
    return {
        metric.name: prometheus_client.Counter(PREFIX + metric.name, metric.help, metric.labels)
        for metric in metrics_of("pool")
        if metric.kind is Kind.COUNTER
    }
