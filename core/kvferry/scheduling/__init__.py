"""Where a request runs: pure decisions, no clock and no I/O, shared by the router and the simulator."""

from __future__ import annotations

from kvferry.scheduling.policy import (
    InstanceView,
    LongestPrefix,
    NoPlacementError,
    Placement,
    Policy,
    RequestFeatures,
    RoundRobin,
    Snapshot,
    longest_prefix,
)

__all__ = [
    "InstanceView",
    "LongestPrefix",
    "NoPlacementError",
    "Placement",
    "Policy",
    "RequestFeatures",
    "RoundRobin",
    "Snapshot",
    "longest_prefix",
]
