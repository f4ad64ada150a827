"""What this machine is made of."""

from __future__ import annotations

from kvferry import _native
from kvferry._native import Topology


def topology(root: str = "/") -> Topology:
    """Look at NUMA nodes, network interfaces and accelerators through /sys and /proc; takes milliseconds.

    Never fails: what cannot be read is absent, and `Topology.notes` says so. `root`: where /sys and /proc
    are; other than "/" it is a copy of another machine's, which has no interface addresses. Thread-safe.
    """
    return _native.discover_topology(root)
