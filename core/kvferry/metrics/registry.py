"""Prometheus registries made from the metric table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from kvferry.errors import NotFoundError
from kvferry.metrics.metric import Kind, Metric
from kvferry.metrics.table import definition

if TYPE_CHECKING:
    import prometheus_client


class Sample(NamedTuple):
    """One value of one metric: a number, or the counts of a histogram with the sum of what it observed."""

    name: str
    labels: tuple[str, ...]  # in the order of the table
    value: float = 0.0
    counts: Sequence[int] = ()


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

    def read_from(self, collect: Callable[[], Iterable[Sample]]) -> None:
        """Take samples from `collect` at each export. It is called by the thread that exports.

        For metrics that something else counts; the registry must not hold them itself. Histograms give one
        count per bucket of the table and one for all above, and the sum.
        """
        self._registry.register(_Reader(collect))

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


class _Reader:
    """What prometheus_client calls a custom collector."""

    def __init__(self, collect: Callable[[], Iterable[Sample]]) -> None:
        self._collect = collect

    def describe(self) -> list[prometheus_client.Metric]:
        return []  # so that registering does not collect

    def collect(self) -> Iterator[prometheus_client.Metric]:
        families: dict[str, prometheus_client.Metric] = {}
        for sample in self._collect():
            metric = definition(sample.name)
            if sample.name not in families:
                families[sample.name] = _family(metric)
            _add(families[sample.name], metric, sample)
        yield from families.values()


def _family(metric: Metric) -> prometheus_client.Metric:
    from prometheus_client import core

    if metric.kind is Kind.COUNTER:
        return core.CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    if metric.kind is Kind.GAUGE:
        return core.GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    return core.HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)


def _add(family: prometheus_client.Metric, metric: Metric, sample: Sample) -> None:
    if metric.kind is not Kind.HISTOGRAM:
        family.add_metric(sample.labels, sample.value)  # type: ignore[attr-defined]
        return
    bounds = [*(repr(bound) for bound in metric.buckets), "+Inf"]
    sums = itertools.accumulate(sample.counts)
    family.add_metric(sample.labels, list(zip(bounds, sums, strict=True)), sample.value)  # type: ignore[attr-defined]


def _make(metric: Metric, registry: prometheus_client.CollectorRegistry) -> object:
    import prometheus_client

    if metric.kind is Kind.COUNTER:
        return prometheus_client.Counter(metric.name, metric.help, metric.labels, registry=registry)
    if metric.kind is Kind.GAUGE:
        return prometheus_client.Gauge(metric.name, metric.help, metric.labels, registry=registry)
    return prometheus_client.Histogram(
        metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry
    )
