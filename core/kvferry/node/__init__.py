"""A node of the pool as a process: the native node, its membership of the cluster, its HTTP interface.

Loaded by `kvferry node`, and by engines only where they bring a member of a cluster along.
"""

from __future__ import annotations

from kvferry.node.process import NodeProcess, run

__all__ = ["NodeProcess", "run"]
