"""Prometheus registries made from the metric table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from kvferry.errors import NotFoundError
from kvferry.metrics.table import Kind, Metric, definition

if TYPE_CHECKING:
    import prometheus_client


class MetricRegistry:
    """The metrics of one component, in a registry of its own: two components of one process do not meet.

    Thread-safe. `MetricRegistry(metrics_of("router"))`, then
    `registry.counter("kvferry_router_requests_total").labels(...).inc()`. Asking for a name that the
    table does not have, or by the wrong kind, raises NotFoundError.
    """

    def __init__(self, metrics: Iterable[Metric]) -> None:
        import prometheus_client

        self._registry = prometheus_client.CollectorRegistry(auto_describe=True)
        self._collectors = {metric.name: _make(metric, self._registry) for metric in metrics}

    def counter(self, name: str) -> prometheus_client.Counter:
        """Return the counter called `name`."""
        return cast("prometheus_client.Counter", self._get(name, Kind.COUNTER))

    def gauge(self, name: str) -> prometheus_client.Gauge:
        """Return the gauge called `name`."""
        return cast("prometheus_client.Gauge", self._get(name, Kind.GAUGE))

    def histogram(self, name: str) -> prometheus_client.Histogram:
        """Return the histogram called `name`."""
        return cast("prometheus_client.Histogram", self._get(name, Kind.HISTOGRAM))

    def value(self, name: str, **labels: str) -> float:
        """Return the present value of one sample, e.g. `kvferry_router_requests_total`; 0 if never set."""
        return self._registry.get_sample_value(name, labels) or 0.0

    def export(self) -> bytes:
        """Return all metrics in the Prometheus text format (see `content_type`)."""
        import prometheus_client

        return prometheus_client.generate_latest(self._registry)

    @property
    def content_type(self) -> str:
        """The HTTP content type of what `export` returns."""
        import prometheus_client

        return prometheus_client.CONTENT_TYPE_LATEST

    def _get(self, name: str, kind: Kind) -> object:
        if definition(name).kind is not kind:
            raise NotFoundError(f"{name} is a {definition(name).kind.value}, not a {kind.value}")
        if name not in self._collectors:
            raise NotFoundError(f"{name} is not part of this registry")
        return self._collectors[name]


def _make(metric: Metric, registry: prometheus_client.CollectorRegistry) -> object:
    import prometheus_client

    if metric.kind is Kind.COUNTER:
        return prometheus_client.Counter(metric.name, metric.help, metric.labels, registry=registry)
    if metric.kind is Kind.GAUGE:
        return prometheus_client.Gauge(metric.name, metric.help, metric.labels, registry=registry)
    return prometheus_client.Histogram(
        metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry
    )
