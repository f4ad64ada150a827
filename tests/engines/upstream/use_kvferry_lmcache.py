"""A pytest plugin for LMCache's own tests of its storages: where they make LMCache's own, they make ours.

Run by `tools/upstream_lmcache_tests.py`, which starts a node for them. LMCache's mock L2 adapter and its file
system adapter become ours, empty each time; its file system connector becomes ours, in a namespace for each
path. What the tests then assert is theirs.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

_fresh = itertools.count()


def pytest_configure() -> None:
    """Replace them before the tests import them."""
    from lmcache.v1.distributed.l2_adapters import fs_l2_adapter, mock_l2_adapter
    from lmcache.v1.storage_backend.connector import fs_adapter

    from kvferry_lmcache.l2 import L2Adapter

    class Ours(L2Adapter):
        """Takes another one's configuration, and leaves it alone."""

        def __init__(self, _config: Any) -> None:
            super().__init__({"pool.namespace": f"mock-{next(_fresh)}"})

        def submit_store_task(self, keys: Any, objects: Any) -> Any:
            return super().submit_store_task(keys, [_described(each) for each in objects])

        def submit_load_task(self, keys: Any, objects: Any) -> Any:
            return super().submit_load_task(keys, [_described(each) for each in objects])

    mock_l2_adapter.MockL2Adapter = fs_l2_adapter.FSL2Adapter = Ours
    fs_adapter.FsConnectorAdapter.create_connector = _our_connector


def _described(memory: Any) -> Any:
    """Give a test's stand-in for memory of LMCache what all of that says of itself."""
    if hasattr(memory, "metadata"):
        return memory
    shape = (memoryview(memory.byte_array).nbytes,)
    metadata = SimpleNamespace(shapes=None, dtypes=None, shape=shape, dtype="bytes", fmt=None)
    return SimpleNamespace(byte_array=memory.byte_array, metadata=metadata)


def _our_connector(_adapter: Any, context: Any) -> Any:
    from kvferry_lmcache import _support
    from kvferry_lmcache.remote import Connector

    path = (context.config.extra_config or {}).get(
        f"remote_storage_plugin.{context.plugin_name}.base_path", context.url
    )
    settings = {"remote_storage_plugin.kvferry.pool.namespace": path[-255:]}
    return Connector(_support.plugin_config(_support.URL, settings), context)
