"""Statistics in vLLM's form: aggregated over workers, shown in its log line and in its `/metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Counter as PromCounter
from prometheus_client import Histogram as PromHistogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from kvferry.handoff import LoadResult, totals_of
from kvferry.metrics import Kind, metrics_of
from kvferry.pool import PoolLoad

PREFIX = "vllm:"  # vLLM's own, so that it unregisters them together with its metrics

LOAD_SECONDS = "kvferry_handoff_load_seconds"
POOL_SECONDS = "kvferry_pool_load_seconds"
_POOL_SHOWN = {
    "pool hits": "kvferry_pool_lookups_total|hit",
    "pool loads": "kvferry_pool_loads_total|loaded",
    "pool loads failed": "kvferry_pool_loads_total|failed",
    "blocks saved": "kvferry_pool_saved_blocks_total|saved",
}


@dataclass
class KVFerryStats(KVConnectorStats):
    """`data`: "counts" by `metric name|label value`, and for each successful load one number of seconds, by
    histogram."""

    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    @classmethod
    def of(
        cls,
        results: Iterable[LoadResult],
        counts: Mapping[str, int],
        pool_loads: Iterable[PoolLoad] = (),
        pool_counts: Mapping[str, int] | None = None,
    ) -> KVFerryStats:
        """Return the statistics of one worker or scheduler step."""
        stats = cls()
        loads = list(results)
        totals = totals_of(loads, counts)
        stats.data[LOAD_SECONDS] += [load.seconds for load in loads if load.error is None]
        for name, count in (pool_counts or {}).items():
            short, _, label = name.partition("|")
            totals[f"kvferry_pool_{short}_total|{label}"] += count
        stats.data[POOL_SECONDS] += [load.seconds for load in pool_loads if load.error is None]
        stats.data["counts"] = dict(totals)
        return stats

    def reset(self) -> None:
        """Forget everything."""
        self.data = {"counts": {}, LOAD_SECONDS: [], POOL_SECONDS: []}

    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not self.data["counts"]

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add another worker's or step's statistics."""
        counts = Counter(self.data["counts"])
        counts.update(other.data["counts"])
        self.data["counts"] = dict(counts)
        for histogram in (LOAD_SECONDS, POOL_SECONDS):
            self.data[histogram] += other.data[histogram]
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return what vLLM's periodic log line shows."""
        counts, seconds = self.data["counts"], sorted(self.data[LOAD_SECONDS])
        moved = sum(size for key, size in counts.items() if key.startswith("kvferry_handoff_loaded_bytes"))
        shown: dict[str, int | float] = {
            f"loads {outcome}": counts.get(f"kvferry_handoff_loads_total|{outcome}", 0)
            for outcome in ("loaded", "failed", "cancelled")
        }
        shown["MiB"] = round(moved / 2**20, 2)
        if seconds:
            shown["load p50 (ms)"] = round(seconds[len(seconds) // 2] * 1e3, 2)
            shown["load max (ms)"] = round(seconds[-1] * 1e3, 2)
        for title, key in _POOL_SHOWN.items():
            if key in counts:
                shown[title] = counts[key]
        shown["leases granted"] = counts.get("kvferry_handoff_leases_granted_total|", 0)
        shown["leases expired"] = counts.get("kvferry_handoff_leases_ended_total|expired", 0)
        return shown


class KVFerryPromMetrics(KVConnectorPromMetrics):
    """The `handoff` and `pool` metrics of KVFerry's table, registered through vLLM under its prefix."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._collectors: dict[str, Any] = {}
        for metric in (*metrics_of("handoff"), *metrics_of("pool")):
            labels = [*labelnames, *metric.labels]
            if metric.kind is Kind.HISTOGRAM:
                collector = metric_types[PromHistogram](
                    name=PREFIX + metric.name,
                    documentation=metric.help,
                    labelnames=labels,
                    buckets=metric.buckets,
                )
            else:
                collector = metric_types[PromCounter](
                    name=PREFIX + metric.name, documentation=metric.help, labelnames=labels
                )
            self._collectors[metric.name] = collector

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one step's statistics."""
        engine = self.per_engine_labelvalues[engine_idx]
        for key, count in transfer_stats_data["counts"].items():
            name, _, label = key.partition("|")
            values = [*engine, label] if label else engine
            self._collectors[name].labels(*values).inc(count)
        for name in (LOAD_SECONDS, POOL_SECONDS):
            histogram = self._collectors[name].labels(*engine)
            for seconds in transfer_stats_data[name]:
                histogram.observe(seconds)
