"""The pooled, tiered store of KV objects: put by one process, got by any other, held by the nodes of a
cluster.

`open_store()` attaches to the node of this machine (`kvferry node`), `open_embedded()` brings a node along.
Errors are those of `kvferry.errors`.
"""

from __future__ import annotations

from kvferry._native import NodeStats, ObjectInfo
from kvferry.store._arguments import Keys, Runs, runs_of
from kvferry.store._options import node_options
from kvferry.store.aio import AsyncStore
from kvferry.store.client import Store
from kvferry.store.discovery import Advert, Advertisement, find_nodes
from kvferry.store.opening import check_settings, named_node, open_embedded, open_store
from kvferry.store.results import GetResult, PutResult
from kvferry.store.view import View

__all__ = [
    "Advert",
    "Advertisement",
    "AsyncStore",
    "GetResult",
    "Keys",
    "NodeStats",
    "ObjectInfo",
    "PutResult",
    "Runs",
    "Store",
    "View",
    "check_settings",
    "find_nodes",
    "named_node",
    "node_options",
    "open_embedded",
    "open_store",
    "runs_of",
]
