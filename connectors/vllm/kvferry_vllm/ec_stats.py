"""Statistics of encoder outputs in vLLM's form. Counters only: `data` has a number by `name|label value`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter as PromCounter
from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats

from kvferry.metrics import metrics_of
from kvferry_vllm.stats import PREFIX


@dataclass
class EncoderStats(ECConnectorStats):
    """See the module."""

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> EncoderStats:
        """Return statistics of these counts of kvferry.encoder."""
        return cls(data=dict(counts))

    def reset(self) -> None:
        """Forget everything."""
        self.data: dict[str, Any] = {}

    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not self.data

    def aggregate(self, other: ECConnectorStats) -> ECConnectorStats:
        """Add another worker's or step's statistics."""
        self.data = dict(Counter(self.data) + Counter(other.data))
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return what vLLM's periodic log line shows."""
        return {key.replace("|", " ").rstrip(): count for key, count in sorted(self.data.items())}


class EncoderPromMetrics(ECConnectorPromMetrics):
    """The `encoder` metrics of KVFerry's table, registered through vLLM under its prefix."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], values: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, values)
        self._counters = {
            metric.name: metric_types[PromCounter](
                name=PREFIX + metric.name,
                documentation=metric.help,
                labelnames=[*labelnames, *metric.labels],
            )
            for metric in metrics_of("encoder")
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one step's statistics."""
        for key, count in transfer_stats_data.items():
            name, _, label = key.partition("|")
            labels = [*self.per_engine_labelvalues[engine_idx], *([label] if label else [])]
            self._counters[f"kvferry_encoder_{name}_total"].labels(*labels).inc(count)
