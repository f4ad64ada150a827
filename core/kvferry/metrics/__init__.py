"""Metrics: one table of definitions, and registries made from it.

`prometheus_client` is imported only when a registry is made.
"""

from __future__ import annotations

from kvferry.metrics.metric import Kind, Metric
from kvferry.metrics.registry import MetricRegistry, Sample
from kvferry.metrics.table import METRICS, definition, lint, metrics_of, to_markdown

__all__ = [
    "METRICS",
    "Kind",
    "Metric",
    "MetricRegistry",
    "Sample",
    "definition",
    "lint",
    "metrics_of",
    "to_markdown",
]
