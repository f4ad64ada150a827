"""What the router counts. The definitions are in kvferry.metrics; this keeps the samples in use at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvferry.metrics import MetricRegistry, metrics_of

if TYPE_CHECKING:
    import prometheus_client


class RouterMetrics:
    """The metrics of one router, in a registry of their own. Used from its event loop only.

    Names are given without `kvferry_router_` and, for counters, without `_total`.
    """

    def __init__(self) -> None:
        self.registry = MetricRegistry(metrics_of("router"))
        self._counters: dict[tuple[str, ...], prometheus_client.Counter] = {}
        self._gauges: dict[tuple[str, ...], prometheus_client.Gauge] = {}
        self._histograms: dict[tuple[str, ...], prometheus_client.Histogram] = {}

    def count(self, name: str, *labels: str) -> None:
        """Add one to a counter."""
        key = (name, *labels)
        if key not in self._counters:
            self._counters[key] = self.registry.counter(f"kvferry_router_{name}_total").labels(*labels)
        self._counters[key].inc()

    def gauge(self, name: str, *labels: str) -> prometheus_client.Gauge:
        """Return one sample of a gauge."""
        key = (name, *labels)
        if key not in self._gauges:
            self._gauges[key] = self.registry.gauge(f"kvferry_router_{name}").labels(*labels)
        return self._gauges[key]

    def histogram(self, name: str, *labels: str) -> prometheus_client.Histogram:
        """Return one sample of a histogram."""
        key = (name, *labels)
        if key not in self._histograms:
            histogram = self.registry.histogram(f"kvferry_router_{name}")
            self._histograms[key] = histogram.labels(*labels) if labels else histogram
        return self._histograms[key]
