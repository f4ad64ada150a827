"""A node of the pool as a process: the native node, its membership of the cluster, its HTTP interface.

Loaded by `kvferry node`, not by engines.
"""

from __future__ import annotations

from kvferry.node.process import NodeProcess, run

__all__ = ["NodeProcess", "run"]
