"""A pytest plugin for LMCache's own tests of its storages: where they make LMCache's own, they make ours.

Run by `tools/upstream_lmcache_tests.py`, which starts a node for them. LMCache's mock L2 adapter becomes
ours, empty each time; its file system connector becomes ours, in a namespace for each path. What the tests
then assert is theirs.
"""

from __future__ import annotations

import itertools
from typing import Any

_fresh = itertools.count()


def pytest_configure() -> None:
    """Replace the two before the tests import them."""
    from lmcache.v1.distributed.l2_adapters import mock_l2_adapter
    from lmcache.v1.storage_backend.connector import fs_adapter

    from kvferry_lmcache.l2 import L2Adapter

    class Ours(L2Adapter):
        """Takes the mock's configuration, and leaves it alone."""

        def __init__(self, _config: Any) -> None:
            super().__init__({"pool.namespace": f"mock-{next(_fresh)}"})

    mock_l2_adapter.MockL2Adapter = Ours
    fs_adapter.FsConnectorAdapter.create_connector = _our_connector


def _our_connector(_adapter: Any, context: Any) -> Any:
    from kvferry_lmcache import _support
    from kvferry_lmcache.remote import Connector

    path = (context.config.extra_config or {}).get(
        f"remote_storage_plugin.{context.plugin_name}.base_path", context.url
    )
    settings = {"remote_storage_plugin.kvferry.pool.namespace": path[-255:]}
    return Connector(_support.plugin_config(_support.URL, settings), context)
