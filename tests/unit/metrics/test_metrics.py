from __future__ import annotations

import pytest

from kvferry.errors import NotFoundError
from kvferry.metrics import METRICS, Kind, Metric, MetricRegistry, definition, lint, metrics_of, to_markdown


def test_the_table_is_clean() -> None:
    assert lint(METRICS) == []


@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        (Metric("kvferry_router_requests", Kind.COUNTER, "X."), "end in _total"),
        (Metric("kvferry_router_requests_total", Kind.GAUGE, "X."), "end in _total"),
        (Metric("router_requests_total", Kind.COUNTER, "X."), "lower case"),
        (Metric("kvferry_router_wait_ms", Kind.GAUGE, "X."), "base unit"),
        (Metric("kvferry_router_wait", Kind.HISTOGRAM, "X.", (), (1.0,)), "ends in its unit"),
        (Metric("kvferry_router_wait_seconds", Kind.HISTOGRAM, "X."), "have buckets"),
        (Metric("kvferry_router_wait_seconds", Kind.HISTOGRAM, "X.", (), (2.0, 1.0)), "rising order"),
        (Metric("kvferry_router_wait_seconds_count", Kind.GAUGE, "X."), "reserved"),
        (Metric("kvferry_router_up", Kind.GAUGE, "X.", ("le",)), "label"),
        (Metric("kvferry_router_up", Kind.GAUGE, "Up"), "sentence"),
    ],
)
def test_lint_finds_a_bad_definition(metric: Metric, problem: str) -> None:
    assert any(problem in found for found in lint([metric]))


def test_lint_finds_a_metric_defined_twice() -> None:
    assert any("twice" in problem for problem in lint([METRICS[0], METRICS[0]]))


def test_every_metric_of_a_group_is_exported_under_its_own_name() -> None:
    registry = MetricRegistry(metrics_of("router"))
    text = registry.export().decode()
    for metric in metrics_of("router"):
        assert f"# TYPE {metric.name} {metric.kind.value}" in text
        assert f"# HELP {metric.name} {metric.help}" in text
    assert registry.content_type.startswith("text/plain")


def test_values_are_exact_and_registries_do_not_share_them() -> None:
    first, second = MetricRegistry(METRICS), MetricRegistry(METRICS)
    counter = first.counter("kvferry_router_requests_total").labels(endpoint="chat", outcome="done")
    for _ in range(3):
        counter.inc()
    first.histogram("kvferry_router_prefill_seconds").observe(0.2)
    assert first.value("kvferry_router_requests_total", endpoint="chat", outcome="done") == 3
    assert first.value("kvferry_router_prefill_seconds_count") == 1
    assert second.value("kvferry_router_requests_total", endpoint="chat", outcome="done") == 0


def test_a_wrong_name_or_kind_is_refused() -> None:
    registry = MetricRegistry(metrics_of("router"))
    with pytest.raises(NotFoundError, match="did you mean kvferry_router_requests_total"):
        registry.counter("kvferry_router_request_total")
    with pytest.raises(NotFoundError, match="is a counter, not a gauge"):
        registry.gauge("kvferry_router_requests_total")
    with pytest.raises(NotFoundError, match="not part of this registry"):
        MetricRegistry(()).counter("kvferry_router_requests_total")


def test_the_reference_page_has_each_metric_once() -> None:
    page = to_markdown()
    for metric in METRICS:
        assert page.count(f"| `{metric.name}` |") == 1
        assert definition(metric.name) is metric
