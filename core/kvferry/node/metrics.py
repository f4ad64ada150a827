"""What a node holds and has done, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from kvferry import _native
from kvferry.meta import Membership
from kvferry.metrics import MetricRegistry, Sample

_GAUGES = {
    "kvferry_store_dram_bytes": "dram_bytes",
    "kvferry_store_dram_used_bytes": "dram_used",
    "kvferry_store_dram_largest_free_bytes": "dram_largest_free",
    "kvferry_store_pinned_objects": "pinned_objects",
    "kvferry_store_ssd_bytes": "ssd_bytes",
    "kvferry_store_ssd_used_bytes": "ssd_used",
    "kvferry_store_directory_entries": "directory_entries",
    "kvferry_store_clients": "clients",
    "kvferry_store_index_bytes": "index_bytes",
    "kvferry_store_metadata_bytes": "metadata_bytes",
}


class NodeMetrics:
    """The metrics of one node, read from it at each export. Thread-safe."""

    def __init__(self, node: _native.Node, membership: Membership) -> None:
        self._node = node
        self._membership = membership
        self.registry = MetricRegistry(())
        self.registry.read_from(self._samples)

    def _samples(self) -> Iterator[Sample]:
        stats = self._node.stats()
        yield Sample("kvferry_store_objects", ("dram",), stats.dram_objects)
        yield Sample("kvferry_store_objects", ("ssd",), stats.ssd_objects)
        for metric, field in _GAUGES.items():
            yield Sample(metric, (), getattr(stats, field))
        yield Sample("kvferry_store_ssd_written_bytes_total", (), stats.ssd_written)
        yield Sample("kvferry_store_ssd_stored_bytes_total", (), stats.ssd_stored)
        yield Sample("kvferry_store_degraded", (), len(stats.degraded))
        for name, count in sorted(stats.counters.items()):
            yield Sample(f"kvferry_store_{name}", (), count)
        yield from self._membership.samples()
