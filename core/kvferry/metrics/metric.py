"""What a metric is."""

from __future__ import annotations

import enum
from typing import NamedTuple

SECONDS_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)

TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0)

# The native engine counts by powers of two of a microsecond; what took 18 minutes or more is the rest.
TRANSFER_BUCKETS = tuple(2**power / 1e6 for power in range(31))


class Kind(enum.Enum):
    """What a metric may do: only grow, go both ways, or count observations by size."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric. Label values must come from a small set: no request ids, no addresses a client chooses."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def group(self) -> str:
        """The part of KVFerry it belongs to: the word after `kvferry_`."""
        return self.name.split("_")[1]
